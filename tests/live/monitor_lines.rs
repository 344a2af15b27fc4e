//! The commands about locks that a node was sent, read from the lines of MONITOR.

use crate::support::Monitor;
use redlatch::proto::command::{EXTEND, RELEASE};
use redlatch::proto::sets::ADOPT;
use redlatch::testing::inside::HAND_OVER;

use super::*;

/// What a command does to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// `SET ... NX`: an acquire, or a heal.
    Set,
    Extend,
    Release,
    Adopt,
    Delete,
}

/// One command that a node executed.
#[derive(Debug, Clone)]
pub struct Heard {
    pub what: What,
    pub key: String,
    /// The token; empty if there is none.
    pub token: String,
}

/// The commands about locks that the node executed, in its order.
pub fn heard(monitor: &Monitor) -> Vec<Heard> {
    monitor.lines().iter().filter_map(|line| read(line)).collect()
}

/// The node's commands that write, to any key. Commands inside a script are left out.
pub fn writes(monitor: &Monitor) -> Vec<String> {
    const READS: [&str; 7] =
        ["\"GET\"", "\"GETRANGE\"", "\"ZRANGE\"", "\"PTTL\"", "\"TIME\"", "\"CLIENT\"", "\"KEYS\""];
    let mut lines = monitor.lines();
    lines.retain(|line| !line.contains(" lua]") && !READS.iter().any(|read| line.contains(read)));
    lines
}

fn read(line: &str) -> Option<Heard> {
    let (who, command) = line.split_once("] ")?;
    if who.ends_with(" lua") {
        // The line is a command inside a script.
        return None;
    }
    let arguments: Vec<&str> =
        command.strip_prefix('"')?.strip_suffix('"')?.split("\" \"").collect();
    let argument = |at: usize| arguments.get(at).copied().unwrap_or_default().to_owned();
    let of = |what, key, token| {
        // The handshake tries the release script without a key, and such a line is about no lock.
        (key < arguments.len()).then(|| Heard { what, key: argument(key), token: argument(token) })
    };
    match (arguments[0], argument(1)) {
        ("SET", _) => of(What::Set, 1, 2),
        ("DEL", _) => of(What::Delete, 1, usize::MAX),
        ("DELIFEQ", _) => of(What::Release, 1, 2),
        ("DELEX", _) => of(What::Release, 1, 3),
        ("EVAL" | "EVALSHA", script) if script == EXTEND.sha1 || script == EXTEND.source => {
            of(What::Extend, 3, 4)
        }
        ("EVAL" | "EVALSHA", script) if script == RELEASE.sha1 || script == RELEASE.source => {
            of(What::Release, 3, 4)
        }
        ("EVAL" | "EVALSHA", script) if script == HAND_OVER.sha1 || is_hand_over(&script) => {
            of(What::Release, 3, 5)
        }
        ("EVAL", script) if script == ADOPT => of(What::Adopt, 3, 5),
        _ => None,
    }
}

/// MONITOR writes two backslashes for one.
fn is_hand_over(script: &str) -> bool {
    script.replace(r"\\", r"\") == *HAND_OVER.source
}

#[test]
fn monitor_lines_are_parsed() {
    let (fleet, client) = fleet_and_client(1);
    let monitor = fleet[0].monitor();
    let mut guard = client.try_lock("a", TTL).unwrap();
    guard.extend(TTL).unwrap();
    let old = guard.token().to_string();
    let token = guard.into_token().unwrap();
    let adopted = client.adopt("a", token, TTL).unwrap();
    let new = adopted.token().to_string();
    adopted.release().unwrap();
    client.dangerously_force_release("a").unwrap();
    let heard = heard(&monitor);
    let whats: Vec<What> = heard.iter().map(|heard| heard.what).collect();
    assert_eq!(whats, [What::Set, What::Extend, What::Adopt, What::Release, What::Delete]);
    assert!(heard.iter().all(|heard| heard.key == "a"), "{heard:?}");
    let tokens: Vec<&str> = heard.iter().map(|heard| heard.token.as_str()).collect();
    assert_eq!(tokens, [&old, &old, &new, &new, ""]);
    assert_eq!(writes(&monitor).len(), 5);
}
