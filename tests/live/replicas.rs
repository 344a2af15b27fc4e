//! Masters that become replicas while their client is connected.

use super::*;
use redlatch::{LostReason, NodeError};

#[test]
fn auto_extend_does_not_succeed_on_one_master_and_its_replicas() {
    let fleet = Fleet::start(3);
    let ttl = millis(600);
    // Without the guard, whose quarantine would hide the matter: the first copy of the master's
    // keys reports a flush.
    let client = client(&fleet);
    let guard = client.lock("a", kept(ttl)).unwrap();
    client.drive(ttl).unwrap();
    guard.check().expect("three masters renew it");
    for node in [1, 2] {
        let port = fleet[0].port().to_string();
        assert!(fleet[node].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    }
    let start = Instant::now();
    let told = client.until_lost(&guard);
    println!("lost after {:?}: {}", start.elapsed(), told.error);
    assert!(start.elapsed() < ttl * 2, "it was renewed by replicas");
    assert!(matches!(told.reason(), LostReason::Expired | LostReason::Gone), "{}", told.error);
    client.drive_until(5 * SECOND, "both are rejected", || {
        client.nodes()[1..] == [NodeState::Rejected(NodeError::Replica); 2]
    });
}

#[test]
fn extend_does_not_count_a_replica_whose_copy_lives_long_enough_already() {
    let fleet = Fleet::start(3);
    let client = client(&fleet);
    let mut guard = client.try_lock("a", 2 * SECOND).unwrap();
    for node in [1, 2] {
        let port = fleet[0].port().to_string();
        assert!(fleet[node].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    }
    // The copies live longer than this extend asks for, so there is nothing to prolong.
    let error = guard.extend(SECOND).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let error = error.to_string();
    assert_eq!(error.matches("is a replica").count(), 2, "{error}");
}
