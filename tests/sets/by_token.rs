//! Locks over several keys, on real servers, that are extended by their token alone.

use redlatch::{KeySet, LockToken, NodeState, Outcome};

use super::*;
use crate::engine_loop::Loop;
use crate::ready::drive_until;

/// The token of a lock on `a` and `b` that every node granted and that has no holder any more.
fn given(fleet: &Fleet) -> LockToken {
    let holder = client(fleet);
    let guard = holder.try_lock(["a", "b"], TTL).unwrap();
    drive_until(&holder, SOON, "all have it", || keys(fleet).len() == 6);
    guard.into_token().unwrap()
}

/// The ttls of both keys on a node, in seconds, rounded up.
fn lives(fleet: &Fleet, node: usize) -> [i64; 2] {
    ["a", "b"].map(|key| (fleet[node].pttl(key) + 999) / 1_000)
}

#[test]
fn extend_by_token_of_a_set_prolongs_every_key_everywhere() {
    let fleet = Fleet::start(3);
    let (token, script) = (given(&fleet), client(&fleet));
    let deadline = script.extend_token(["b", "a"], token.clone(), 3 * TTL).unwrap();
    assert!(deadline.saturating_since(redlatch::clock::now()) > 2 * TTL);
    drive_until(&script, SOON, "every key lives longer", || {
        (0..3).all(|node| lives(&fleet, node).iter().all(|&left| left > 20))
    });
    // An extend never shortens, and a node that forgot the script gets it again.
    fleet.command(&["SCRIPT", "FLUSH"]);
    let shorter = script.extend_token(["a", "b"], token.clone(), TTL).unwrap();
    assert!(shorter < deadline, "a majority agreed to no more than that");
    script.drive(millis(50)).unwrap();
    assert!((0..3).all(|node| lives(&fleet, node).iter().all(|&left| left > 20)));
    assert_eq!(script.release_token(["a", "b"], token).unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn extend_by_token_of_a_set_leaves_all_keys_of_a_node_that_lost_one() {
    let fleet = Fleet::start(3);
    let (token, script) = (given(&fleet), client(&fleet));
    fleet[0].command(&["DEL", "b"]);
    script.extend_token(["a", "b"], token.clone(), 3 * TTL).expect("two of three have both");
    drive_until(&script, SOON, "two prolong both", || {
        (1..3).all(|node| lives(&fleet, node).iter().all(|&left| left > 20))
    });
    script.drive(millis(50)).unwrap();
    assert!((1..=10).contains(&lives(&fleet, 0)[0]), "{:?}", lives(&fleet, 0));
    assert_eq!(fleet[0].get("b"), None, "an extend makes no key");
    // On a second node one key has another client's token, so two of three nodes do not have the
    // set.
    fleet[1].command(&["SET", "b", &"c".repeat(40), "PX", "30000"]);
    let error = script.extend_token(["a", "b"], token.clone(), 6 * TTL).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    assert!(error.to_string().contains("for \"b\", one of 2 keys"), "{error}");
    script.drive(millis(50)).unwrap();
    assert!(lives(&fleet, 1).iter().all(|&left| left <= 30), "{:?}", lives(&fleet, 1));
    // A call for only one key of the set works as for any single key.
    script.extend_token("a", token.clone(), TTL).unwrap();
    let released = script.release_token(["a", "b"], token).unwrap();
    assert_eq!(released, ReleaseOutcome::TakenByOther);
    fleet[1].command(&["DEL", "b"]);
    fleet.wait_empty();
}

/// The longest ttl here. A quarantine lasts for this time and the drift.
const MAX_TTL: Duration = Duration::from_secs(30);

#[test]
fn extend_by_token_of_a_set_does_not_count_nodes_in_quarantine() {
    let fleet = Fleet::start(3);
    let token = given(&fleet);
    let guarded = config(fleet.urls()).restart_guard(RestartGuard::On).max_ttl(MAX_TTL);
    // These servers are seconds old, so all of them are in quarantine.
    let script = Client::connect(guarded).unwrap();
    let is_guarded = |state| matches!(state, NodeState::Quarantined(_));
    drive_until(&script, SOON, "all may be asked", || script.nodes().into_iter().all(is_guarded));
    let error = script.extend_token(["a", "b"], token.clone(), 2 * TTL).unwrap_err();
    println!("{error}");
    let Error::NoQuorum(report) = &error else { panic!("{error}") };
    let quarantined = NodeReply::Failed(NodeError::Quarantined);
    assert!(report.nodes.iter().all(|node| node.reply == quarantined), "{error}");
    let released = script.release_token(["a", "b"], token).unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
}

#[test]
fn extend_by_token_of_a_set_is_there_in_every_interface() {
    let fleet = Fleet::start(3);
    let token = given(&fleet);
    let both = KeySet::new(["a", "b"]).unwrap();
    // Checks that an interface's extend prolonged both keys on a majority.
    let prolonged = |seconds: i64| {
        let is_longer = |&node: &usize| lives(&fleet, node).iter().all(|&left| left > seconds);
        assert!((0..3).filter(is_longer).count() >= 2, "{seconds} s");
    };
    client(&fleet).extend_token(&both, token.clone(), 2 * TTL).unwrap();
    prolonged(15);
    let shared = ready::shared(config(fleet.urls()));
    shared.extend_token(["a", "b"], token.clone(), 3 * TTL).wait().unwrap();
    prolonged(25);
    let error = shared.extend_token([""; 0], token.clone(), TTL).wait().unwrap_err();
    assert_eq!(error.to_string(), "keys: the list is empty; name at least one");
    let mut it = Loop::ready(config(fleet.urls()));
    it.engine.extend_token(vec!["a", "b"], token.clone(), 4 * TTL, 7).unwrap();
    let done = it.completion();
    assert!(matches!(done.result, Ok(Outcome::Extended { .. })), "{done:?}");
    prolonged(35);
    let released = shared.release_token(["a", "b"], token).wait().unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    fleet.wait_empty();
}
