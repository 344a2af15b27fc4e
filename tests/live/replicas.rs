//! Masters that become replicas while their client is connected.

use super::*;
use redlatch::{LostReason, NodeError};

#[test]
fn auto_extend_does_not_succeed_on_one_master_and_its_replicas() {
    let fleet = Fleet::start(3);
    // The ttl is so long that the renewals go on if the machine stalls for two seconds.
    let ttl = 4 * SECOND;
    // The restart guard is off. When the replica first copies the master's keys, it reports a
    // flush, and the quarantine after that would hide what this test looks for.
    let client = client(&fleet);
    let guard = client.lock("a", kept(ttl)).unwrap();
    client.drive_until(2 * ttl, "three masters renew it", || client.stats().renewed >= 2);
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
    client.drive_until(SOON, "both are rejected", || {
        client.nodes()[1..] == [NodeState::Rejected(NodeError::Replica); 2]
    });
}

#[test]
fn extend_does_not_count_a_replica_whose_copy_lives_long_enough_already() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock("a", 2 * TTL).unwrap();
    for node in [1, 2] {
        let port = fleet[0].port().to_string();
        assert!(fleet[node].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    }
    // The copies live longer than this extend asks for, so the replica has nothing to write.
    let error = guard.extend(TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let error = error.to_string();
    assert_eq!(error.matches("is a replica").count(), 2, "{error}");
}

/// A replica passes on what its master publishes, to its own subscribers.
#[test]
fn a_hand_over_that_a_replica_relays_is_no_vote_of_the_replica() {
    let fleet = Fleet::start(3);
    let ttl = 60 * SECOND;
    let waiting = || LockOptions::new(ttl).wait(ttl);
    let line_config = || config(&fleet).hand_over_ttl(ttl);
    let holder = ready::client(line_config());
    // The holder waits in line behind another program's key, so its release hands the key over.
    fleet.command(&["SET", "a", "other", "PX", "300"]);
    let guard = holder.lock("a", waiting()).expect("it is free soon");
    let mut waiter = Loop::ready(line_config());
    waiter.engine.acquire("a", waiting(), 1).expect("it can be asked for");
    let in_line = |node: &crate::support::Node| node.command(&["ZCARD", "redlatch:line:{a}"]).int();
    waiter.turn_until("it stands in line, and no answer is missing", |engine| {
        let core = engine.coordinator();
        let unanswered = (0..3).map(|node| core.unanswered(NodeId::new(node))).sum::<usize>();
        unanswered == 0 && fleet.iter().all(|node| in_line(node) == 1)
    });
    // The waiter's loop does not run while one node becomes the replica of another, so no poll of
    // the waiter finds that out.
    fleet[2].command(&["SET", "a", "other", "PX", "60000"]);
    fleet[0].command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let port = fleet[0].port().to_string();
    assert!(fleet[1].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    eventually(20 * SECOND, "it is a replica", || fleet[1].info("master_link_status") == "up");
    let before = fleet[0].get("a");
    let _one_master_released = guard.release();
    eventually(SOON, "the key is handed over and copied", || {
        let now = fleet[0].get("a");
        now != before && now.is_some() && now == fleet[1].get("a")
    });
    waiter.turn_for(SECOND);
    let done = waiter.engine.poll_completion();
    assert!(done.is_none(), "one master and its replica gave it the lock: {done:?}");
}
