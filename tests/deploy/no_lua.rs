//! Servers that run no Lua scripts for the client: by an ACL, or because they have no Lua. The
//! tests need a server with commands of its own in place of scripts: Valkey from 9.0 on, Redis
//! from 8.4 on. On others they do nothing.

use super::*;
use redlatch::{Error, LockOptions, NodeError, NodeReply};

/// The ACL rule in docs/operations.md for plain locks without scripts.
const RULE: &str = "~lock:* ~redlatch:node -@all +set +get +pttl +exists +delifeq +delex +select \
                    +info +time +command|info +client|tracking +client|caching +client|kill \
                    +client|setname +client|setinfo";

/// Servers that refuse scripts to the client of this configuration. `None` if this server has
/// nothing in the place of scripts.
fn with_acl(count: usize) -> Option<(Fleet, Config)> {
    let server = crate::support::Server::get();
    let least = if server.valkey { (9, 0) } else { (8, 4) };
    if server.version < least {
        println!("not run: {} {:?} has no compare-and-delete", server.binary, server.version);
        return None;
    }
    let fleet = Fleet::start(count);
    let foreign = if server.valkey { "+delex" } else { "+delifeq" };
    for node in &fleet {
        let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", ">zebra"];
        command.extend(RULE.split_ascii_whitespace().filter(|word| *word != foreign));
        assert!(node.command(&command).is_ok(), "{command:?}");
    }
    let urls: Vec<_> = fleet.iter().map(|node| url(node, "worker:zebra@", "")).collect();
    Some((fleet, config(urls)))
}

/// Servers without Lua. `None` if Lua is no module of this server.
fn without_lua(count: usize) -> Option<(Fleet, Config)> {
    some_without_lua(count, count)
}

/// Servers the first ones of which have no Lua.
fn some_without_lua(count: usize, without: usize) -> Option<(Fleet, Config)> {
    let server = crate::support::Server::get();
    if !server.valkey || server.version < (9, 1) {
        println!("not run: {} {:?} has no module lua", server.binary, server.version);
        return None;
    }
    let fleet = Fleet::with(count, &["--enable-module-command", "yes"]);
    for node in fleet.iter().take(without) {
        assert!(node.command(&["MODULE", "UNLOAD", "lua"]).is_ok());
    }
    let config = config(fleet.urls());
    Some((fleet, config))
}

fn each(count: usize) -> impl Iterator<Item = (Fleet, Config)> {
    [with_acl, without_lua].into_iter().filter_map(move |start| start(count))
}

/// What each node said.
fn replies(error: &Error) -> Vec<NodeReply> {
    error.report().expect("it has a report").nodes.iter().map(|node| node.reply).collect()
}

#[test]
fn plain_lock_works_on_servers_without_scripts() {
    let paper = include_str!("../../docs/operations.md");
    let told = paper.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(RULE), "docs/operations.md does not have the rule: {RULE}");
    for (fleet, config) in each(3) {
        let [client, other] = [config.clone(), config].map(ready);
        let mut guard = client.try_lock("lock:a", TTL).unwrap();
        assert!(matches!(other.try_lock("lock:a", TTL), Err(Error::Contended(_))));
        guard.extend(2 * TTL).unwrap();
        guard.extend(millis(100)).unwrap();
        assert!(guard.remaining() > TTL, "an extend shortened the lock");
        let left: Vec<i64> = fleet.iter().map(|node| node.pttl("lock:a")).collect();
        assert!(left.iter().all(|&left| left > 15_000), "{left:?}");
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        // A lock that is handed on, and one that is kept for longer than its ttl.
        let token = client.try_lock("lock:a", TTL).unwrap().into_token().unwrap();
        let adopted = other.adopt("lock:a", token, TTL).unwrap();
        assert_eq!(adopted.release(), Ok(ReleaseOutcome::Released));
        let kept = LockOptions::once(millis(500)).auto_extend(10 * SECOND);
        let guard = client.lock("lock:a", kept).unwrap();
        let end = Instant::now() + millis(1500);
        while Instant::now() < end {
            client.drive(millis(5)).unwrap();
            assert!(!guard.remaining().is_zero(), "it was lost");
        }
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        assert!(fleet.keys_everywhere().is_empty(), "{:?}", fleet.keys_everywhere());
        // The servers refused nothing but scripts.
        for node in &fleet {
            let log = format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
            let objects = log.matches("\"object\"").count();
            let of_scripts: usize = ["\"eval\"", "\"evalsha\"", "\"script|load\""]
                .map(|it| log.matches(it).count())
                .iter()
                .sum();
            assert_eq!(objects, of_scripts, "refused: {log}");
        }
    }
}

#[test]
fn locks_that_need_scripts_say_so_on_servers_without_them() {
    for (_fleet, config) in each(3) {
        let client = ready(config.restart_guard(RestartGuard::On).max_ttl(TTL));
        let errors = [
            client.lock(&["lock:a", "lock:b"][..], LockOptions::once(TTL)).map(drop),
            client.lock("lock:a", LockOptions::once(TTL).fenced()).map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            println!("{error}");
            assert!(matches!(error, Error::Config(_)), "{error}");
            assert!(error.to_string().contains("runs no Lua scripts"), "{error}");
            assert_eq!(replies(&error)[0], NodeReply::Failed(NodeError::NoLua));
        }
    }
}

/// The markers are written without a script: a client that comes later trusts the nodes for them,
/// and distrusts one that was flushed.
#[test]
fn restart_guard_notices_a_flush_on_servers_without_scripts() {
    for (fleet, config) in each(3) {
        let guarded = || config.clone().restart_guard(RestartGuard::On).max_ttl(2 * SECOND);
        let ttl = millis(1900);
        let first = Client::connect(guarded()).unwrap();
        let wait = LockOptions::new(ttl).wait(10 * SECOND);
        assert_eq!(first.lock("lock:a", wait).unwrap().release(), Ok(ReleaseOutcome::Released));
        drop(first);
        let later = Client::connect(guarded()).unwrap();
        eventually(SOON, "the nodes are trusted for their markers", || {
            later.drive(millis(5)).unwrap();
            later.nodes().iter().all(|state| *state == NodeState::Ready)
        });
        drop(later);
        fleet[0].command(&["FLUSHALL"]);
        let last = Client::connect(guarded()).unwrap();
        eventually(SOON, "the node that was flushed is not trusted", || {
            last.drive(millis(5)).unwrap();
            matches!(last.nodes()[0], NodeState::Quarantined(_))
        });
        eventually(SOON, "the marker is written, and stays", || {
            last.drive(millis(5)).unwrap();
            fleet[0].pttl("redlatch:node") == -1
        });
    }
}

/// One server of three runs no scripts.
#[test]
fn set_is_held_by_the_servers_that_run_scripts() {
    let Some((fleet, config)) = some_without_lua(3, 1) else { return };
    let client = ready(config);
    let mut guard = client.lock(&["lock:a", "lock:b"][..], LockOptions::once(TTL)).unwrap();
    guard.extend(2 * TTL).unwrap();
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    lock_extend_and_release(&client);
    assert!(fleet.keys_everywhere().is_empty());
}
