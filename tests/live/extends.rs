//! How long keys live on real servers after extends: not shorter than before, and not longer than
//! the longest ttl that was asked for.
//!
//! The tests use one node, so that a returned call means that this node has executed the request.

use super::*;
use redlatch::proto::counter_key;

/// Many times as long as the extends take.
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = millis(20);
const TIMES: usize = 300;

/// Checks that the key ends `LONG` after the node executed the command, which was between these two
/// moments. The server counts whole milliseconds, so up to `more` milliseconds may have been added.
#[track_caller]
fn check_end(node: &Node, key: &str, executed: (Instant, Instant), more: u64, what: &str) {
    let since_after = executed.1.elapsed();
    let left = millis(u64::try_from(node.pttl(key)).expect("the key is there"));
    let since_before = executed.0.elapsed();
    let (earliest, latest) = (since_after + left, since_before + left);
    assert!(latest + millis(1) >= LONG, "{what}: {key} was shortened to {latest:?}");
    assert!(earliest <= LONG + millis(more), "{what}: {key} was prolonged to {earliest:?}");
}

/// Extends again and again for a shorter time than the keys have left.
fn extend_often(fleet: &Fleet, keys: &[&str], once: LockOptions, what: &str) {
    let guarded = config(fleet).restart_guard(RestartGuard::On);
    let client = ready::vouched(guarded);
    let begun = Instant::now();
    let mut guard = client.try_lock(keys, once).expect("it is free");
    let executed = (begun, Instant::now());
    let token = guard.token();
    for round in 0..TIMES {
        if round % 2 == 0 {
            guard.extend(SHORT).expect("it is held");
        } else if let [key] = keys {
            // The node executes this extend, but the answer may come after so short a ttl.
            let _ = client.extend_token(key, token.clone(), SHORT);
        }
    }
    for key in keys {
        check_end(&fleet[0], key, executed, 1, what);
    }
    // An extend to a later end counts from the start of its own call.
    let begun = Instant::now();
    guard.extend(LONG).expect("it is held");
    let executed = (begun, Instant::now());
    for key in keys {
        check_end(&fleet[0], key, executed, 1, what);
    }
    assert_eq!(guard.release(), Ok(redlatch::ReleaseOutcome::Released), "{what}");
    for key in keys.iter().filter(|_| what.contains("fenced")) {
        assert!(fleet[0].get(counter_key(key.as_bytes())).is_some(), "{what}: it was not counted");
    }
}

#[test]
fn extend_for_a_shorter_time_neither_prolongs_nor_shortens_a_key_however_often() {
    let fleet = Fleet::start(1);
    let once = LockOptions::once(LONG);
    extend_often(&fleet, &["a"], once, "plain");
    extend_often(&fleet, &["a", "b"], once, "a set");
    extend_often(&fleet, &["a"], once.fenced(), "fenced");
    extend_often(&fleet, &["a", "b"], once.fenced(), "a fenced set");
}

/// A node without free memory refuses `SET`, but not `PEXPIRE`.
#[test]
fn extend_neither_prolongs_nor_shortens_a_key_on_a_node_without_memory() {
    let (fleet, client) = fleet_and_client(1);
    let begun = Instant::now();
    let mut guard = client.try_lock("a", LONG).expect("it is free");
    let executed = (begun, Instant::now());
    assert!(fleet[0].command(&["CONFIG", "SET", "maxmemory", "1"]).is_ok());
    for _ in 0..TIMES {
        guard.extend(SHORT).expect("it is held");
    }
    // Servers before 7.0 add a millisecond if their clock ticks while the script runs.
    check_end(&fleet[0], "a", executed, 30, "no memory");
    let begun = Instant::now();
    guard.extend(LONG).expect("it is held");
    check_end(&fleet[0], "a", (begun, Instant::now()), 1, "no memory");
}
