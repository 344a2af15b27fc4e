//! Nodes that come back as a copy of another node: a new process with that node's keys, tokens,
//! remaining ttls and node marker. Then a key of ours may stand where another client's key stood.

use redlatch::proto::RestartGuard;

use crate::directed::{FORGETFUL, HOLDER, RIVAL, Scenario};

/// The holder's key on the third node expires while the holder cannot reach that node. The node
/// grants the key to the rival, and comes back as a copy of the second node: with the holder's key
/// in the place of the rival's. The node was trusted when it granted the holder's acquire.
fn key_ends_before_its_node_is_a_copy(guard: RestartGuard) {
    let mut it = Scenario::guarded_by(guard);
    it.acquire(HOLDER, 60);
    it.until(2);
    it.assert(it.left(HOLDER) > 50);
    // The holder's requests to node FORGETFUL would arrive at 67 ms; before that the connection
    // ends.
    it.stall(HOLDER, FORGETFUL, 65);
    it.until(30);
    it.extend(HOLDER, 60);
    it.until(64);
    it.assert(it.left(HOLDER) > 20);
    it.let_rival_acquire(60);
    it.until(66);
    it.restart_as_copy_of(1);
    it.stop(RIVAL, 70);
    it.until(72);
    it.assert(it.holds(HOLDER, FORGETFUL) && it.left(HOLDER) > 10);
    it.stall(HOLDER, 0, 200);
    it.extend(HOLDER, 300);
    it.check_rival_has_it(160);
}

#[test]
fn extend_does_not_count_a_copied_key_whose_own_had_ended() {
    key_ends_before_its_node_is_a_copy(RestartGuard::On);
}

/// The holder does not notice the restart, unless the copied marker shows it.
#[test]
fn extend_does_not_count_a_copied_key_on_a_node_that_was_declared_persistent() {
    key_ends_before_its_node_is_a_copy(RestartGuard::Persistent);
}

/// For the holder the third node was in quarantine before: it had restarted with its keys, and the
/// holder noticed that later than the rival did. So the holder gets no event when the node comes
/// back as a copy, while the rival already trusts the node.
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
    // The quarantine would last until 323 ms.
    it.stall(HOLDER, FORGETFUL, 109);
    it.extend(HOLDER, 150);
    it.until(320);
    it.assert(!it.holds(HOLDER, FORGETFUL) && it.left(HOLDER) > 30);
    it.assert(!it.quarantines(RIVAL));
    it.let_rival_acquire(60);
    it.until(322);
    it.restart_as_copy_of(1);
    it.stop(RIVAL, 70);
    it.until(330);
    it.assert(it.quarantines(HOLDER) && it.holds(HOLDER, FORGETFUL));
    it.stall(HOLDER, 0, 200);
    it.extend(HOLDER, 290);
    it.check_rival_has_it(420);
}

/// The node restarts with its keys, and the holder's key there is its own. So its votes count as
/// long as the lock is renewed, far beyond the ttl of the acquire, and the lock survives without
/// the first node.
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
