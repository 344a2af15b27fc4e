//! Nodes that come back as a copy of another node: with its keys, their tokens and what is left of
//! their ttls, with its node marker, and as a new process. That makes a key of ours stand where
//! another client's key may have stood.

use redlatch::proto::RestartGuard;

use crate::directed::{FORGETFUL, HOLDER, RIVAL, Scenario};

/// The holder's key on the third node ends while the holder cannot reach that node. The node grants
/// the key to the rival, and comes back as a copy of the second node: the holder's key stands where
/// the rival's stood. The holder's first question was granted there, by a node that was trusted.
fn key_ends_before_its_node_is_a_copy(guard: RestartGuard) {
    let mut it = Scenario::guarded_by(guard);
    it.acquire(HOLDER, 60);
    it.until(2);
    it.assert(it.left(HOLDER) > 50);
    // The holder's requests to node FORGETFUL would arrive at 67 ms, and the end of the connection
    // does.
    it.stall(HOLDER, FORGETFUL, 65);
    it.until(30);
    it.extend(HOLDER, 60);
    it.until(64);
    it.assert(it.left(HOLDER) > 20);
    // The rival's request reaches node 0 after the holder's key there has ended.
    it.stall(RIVAL, 0, 60);
    it.stall(RIVAL, 1, 60);
    it.acquire(RIVAL, 300);
    it.until(66);
    it.restart_as_copy_of(1);
    it.stop(RIVAL, 70);
    it.until(72);
    it.assert(it.holds(HOLDER, FORGETFUL) && it.left(HOLDER) > 10);
    it.stall(HOLDER, 0, 200);
    it.extend(HOLDER, 300);
    it.until(160);
    it.assert(it.left(HOLDER) == 0);
    it.assert(it.left(RIVAL) > 100);
}

#[test]
fn extend_does_not_count_a_copied_key_whose_own_had_ended() {
    key_ends_before_its_node_is_a_copy(RestartGuard::On);
}

/// No restart is seen here, unless the marker of another node shows it.
#[test]
fn extend_does_not_count_a_copied_key_on_a_node_that_was_declared_persistent() {
    key_ends_before_its_node_is_a_copy(RestartGuard::Persistent);
}

/// The third node was in quarantine for the holder before: it had restarted with its keys, and the
/// holder noticed that later than the rival. So nothing is reported to the holder when the node
/// comes back as a copy, and the rival has trusted it since.
#[test]
fn extend_does_not_count_a_copied_key_on_a_node_that_was_in_quarantine_before() {
    let mut it = Scenario::new();
    it.acquire(HOLDER, 290);
    it.until(10);
    it.assert(it.left(HOLDER) > 270);
    it.restart_with_its_keys();
    it.stop(HOLDER, 200);
    it.until(214);
    it.assert(it.quarantines(HOLDER) && it.left(HOLDER) > 50);
    // The quarantine lasts up to 323 ms.
    it.stall(HOLDER, FORGETFUL, 109);
    it.extend(HOLDER, 150);
    it.until(320);
    it.assert(!it.holds(HOLDER, FORGETFUL) && it.left(HOLDER) > 30);
    it.assert(!it.quarantines(RIVAL));
    it.stall(RIVAL, 0, 60);
    it.stall(RIVAL, 1, 60);
    it.acquire(RIVAL, 300);
    it.until(322);
    it.restart_as_copy_of(1);
    it.stop(RIVAL, 70);
    it.until(330);
    it.assert(it.quarantines(HOLDER) && it.holds(HOLDER, FORGETFUL));
    it.stall(HOLDER, 0, 200);
    it.extend(HOLDER, 290);
    it.until(420);
    it.assert(it.left(HOLDER) == 0);
    it.assert(it.left(RIVAL) > 100);
}

/// The node restarts with its keys, and the holder's key there is its own. So each yes counts, long
/// after the time that the first one gave the key, and the lock lives on without the first node.
#[test]
fn extend_counts_a_key_that_survived_a_restart_as_long_as_it_is_renewed() {
    let mut it = Scenario::new();
    it.acquire(HOLDER, 100);
    it.until(5);
    it.restart_with_its_keys();
    it.until(10);
    it.assert(it.quarantines(HOLDER));
    it.stall(HOLDER, 0, 400);
    for at in [40, 90, 140, 190, 240] {
        it.until(at);
        it.extend(HOLDER, 100);
    }
    it.until(250);
    it.assert(it.quarantines(HOLDER) && it.left(HOLDER) > 80);
}
