//! A minority of the nodes is frozen. A quorum is usable, so no call waits for the frozen node.

use super::*;
use crate::support::PlainTimer;

/// So long that a call which waits for the frozen node differs from one that does not, however busy
/// the machine is.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Fails if the step takes as long as a call that waits for the frozen node. If a plain timer is
/// late meanwhile, the step may be late, too.
#[track_caller]
fn at_once<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let (start, timer) = (Instant::now(), PlainTimer::start());
    let result = step();
    let took = start.elapsed();
    assert!(took < timer.limit(NODE_TIMEOUT / 2), "{what} took {took:?}");
    result
}

/// Locks, extends and releases. Before each step the caller makes no call for more than a node
/// timeout.
fn lock_extend_release(client: &Client) {
    let away = || std::thread::sleep(NODE_TIMEOUT + millis(20));
    away();
    let mut guard = at_once("the lock", || client.try_lock("a", TTL)).expect("a quorum is there");
    away();
    at_once("the extend", || guard.extend(TTL)).expect("a quorum is there");
    away();
    at_once("the release", || guard.release()).expect("a quorum is there");
}

#[test]
fn a_node_that_froze_delays_no_call_of_a_client_while_its_connection_is_replaced() {
    let fleet = Fleet::start(3);
    let config = plain(fleet.urls()).node_timeout(NODE_TIMEOUT);
    let config = config.reset_after(millis(50)).connect_timeout(20 * SECOND);
    let client = ready::client(config);
    // A client replaces a lost connection without a pause if it was ready for long enough.
    client.drive(millis(600)).unwrap();
    fleet[2].stop();
    let _ = client.try_lock("a", TTL).expect("a quorum is there").release();
    client.drive_until(10 * SECOND, "the connection is being replaced", || {
        client.nodes()[2] == NodeState::Handshake
    });
    lock_extend_release(&client);
    fleet[2].cont();
}

#[test]
fn a_node_that_was_frozen_before_delays_no_call_of_a_new_client() {
    let fleet = Fleet::start(3);
    fleet[2].stop();
    let config = plain(fleet.urls()).node_timeout(NODE_TIMEOUT).connect_timeout(20 * SECOND);
    let client = at_once("connecting", || Client::connect(config)).unwrap();
    assert_eq!(client.nodes()[2], NodeState::Handshake);
    lock_extend_release(&client);
    fleet[2].cont();
}
