//! A node that loses the key of a held lock gets it again; a lost connection costs nothing.

use super::monitor_lines::{What, heard};
use super::*;
use crate::support::{Cut, Node, Proxy};
use redlatch::LostReason;

/// After a push the client checks the node within a twentieth of this ttl.
const SHORT: Duration = Duration::from_secs(4);

fn token_of(guard: &Guard) -> Vec<u8> {
    guard.token().to_string().into_bytes()
}

#[test]
fn keys_that_are_deleted_one_by_one_are_healed_and_the_lock_is_never_lost() {
    let (fleet, client) = fleet_and_client(5);
    // The lock is renewed, so a push reports the deletion.
    let guard = client.lock("a", kept(SHORT)).unwrap();
    let token = token_of(&guard);
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 5);
    for round in 0..10 {
        let node = &fleet[round * 3 % 5];
        assert_eq!(node.command(&["DEL", "a"]).int(), 1);
        let what = "it has the key again";
        let took = client.drive_until(SHORT, what, || node.get("a").as_ref() == Some(&token));
        println!("kept, ttl {SHORT:?}: deleted on one of five: healed after {took:?}");
        // The heal gives the key the time until the client's deadline. By the drift, that is less
        // than the key has on the other nodes.
        let others = fleet.iter().filter(|other| other.port() != node.port());
        let others = others.map(|other| other.pttl("a")).min().unwrap_or_default();
        let left = node.pttl("a");
        assert!(left > 0 && left + 20 <= others, "{left} ms are left, of {others}");
        guard.check().unwrap();
    }
    client.drive_until(SOON, "the last one answers, too", || client.stats().healed >= 10);
    assert_eq!(fleet.values("a"), vec![token; 5]);
    assert_eq!(client.stats().lost, 0);
    drop(guard);
    fleet.wait_empty();

    // The lock is not renewed, so each extend finds the deletion and heals the key.
    let mut guard = client.try_lock("a", TTL).unwrap();
    let token = token_of(&guard);
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 5);
    for node in &fleet {
        assert_eq!(node.command(&["DEL", "a"]).int(), 1);
        guard.extend(TTL).unwrap();
        let what = "it has the key again";
        client.drive_until(SOON, what, || node.get("a").as_ref() == Some(&token));
    }
    guard.extend(TTL).unwrap();
    assert_eq!(guard.release().unwrap(), redlatch::ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn key_that_another_client_has_is_healed_when_it_is_free_and_not_before() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock("a", TTL).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let node = &fleet[1];
    assert!(node.command(&["SET", "a", "another's"]).is_ok());
    let monitor = node.monitor();
    for _ in 0..3 {
        guard.extend(TTL).unwrap();
        client.drive(millis(50)).unwrap();
        assert_eq!(node.get("a"), Some(b"another's".to_vec()));
    }
    assert!(heard(&monitor).iter().all(|heard| heard.what != What::Set), "it was asked in vain");
    assert_eq!(node.command(&["DEL", "a"]).int(), 1);
    guard.extend(TTL).unwrap();
    client.drive_until(SOON, "it is healed", || node.get("a") == Some(token_of(&guard)));
}

#[test]
fn a_node_that_restarts_empty_is_healed_after_the_next_extend_that_is_won() {
    let (fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", kept(SHORT)).unwrap();
    let token = token_of(&guard);
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    for node in &fleet {
        node.restart();
        assert_eq!(node.keys(), [b""; 0]);
        let monitor = node.monitor();
        let what = "it has the key again";
        let took = client.drive_until(SHORT, what, || node.get("a").as_ref() == Some(&token));
        println!("ttl {SHORT:?}: restarted empty: healed after {took:?}");
        let whats: Vec<What> = heard(&monitor).iter().map(|heard| heard.what).collect();
        assert_eq!(whats[..2], [What::Extend, What::Set], "not by an extend that found it absent");
        client.wait_ready(3);
    }
    // By now each of the three nodes has lost the key once.
    guard.check().unwrap();
    assert_eq!(fleet.values("a"), vec![token; 3]);
}

/// The longest ttl under the restart guard. A quarantine lasts for this time and the drift.
const MAX_TTL: Duration = Duration::from_secs(6);

#[test]
fn a_key_that_was_healed_in_quarantine_counts_when_that_is_over_and_not_before() {
    despite_stalls(millis(500), |times| heals_in_quarantine(times * MAX_TTL, times * 2 * SECOND));
}

fn heals_in_quarantine(max_ttl: Duration, ttl: Duration) {
    let fleet = Fleet::start(3);
    let guarded = config(&fleet).node_timeout(millis(100)).max_ttl(max_ttl);
    let client = ready::client(guarded.restart_guard(RestartGuard::On));
    for early in [true, false] {
        let guard = client.lock("a", kept(ttl)).unwrap();
        let token = token_of(&guard);
        client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
        fleet[0].restart();
        let what = "it is healed in quarantine";
        let healed = || fleet[0].get("a").as_ref() == Some(&token);
        let took = client.drive_until(SOON, what, healed);
        println!("healed after {took:?}, {:?}", client.nodes()[0]);
        assert!(matches!(client.nodes()[0], NodeState::Quarantined(_)), "{:?}", client.nodes());
        if !early {
            client.wait_ready(3);
            // A renewal has begun since the restart.
            client.drive(ttl).unwrap();
        }
        fleet[1].stop();
        if early {
            // Two nodes hold the key, but one of them may have forgotten that the key was another
            // client's.
            let told = client.until_lost(&guard);
            println!("in quarantine: {}", told.error);
            assert_eq!(told.reason(), LostReason::Expired);
        } else {
            client.drive(3 * ttl).unwrap();
            guard.check().expect("the healed node counts now");
            println!("after it: held on, {:?} are left", guard.remaining());
        }
        fleet[1].cont();
        drop(guard);
        client.wait_ready(3);
        client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    }
}

/// Ends the library's connections to the node, and no others.
fn end_our_connections(node: &Node) -> i64 {
    let ours = node.client_list().into_iter().filter(|line| line.contains(" name=redlatch "));
    let ids = ours.map(|line| line.split(' ').next().unwrap_or_default().replace("id=", ""));
    ids.map(|id| node.command(&["CLIENT", "KILL", "ID", &id]).int()).sum()
}

#[test]
fn keys_of_a_bare_majority_stay_when_its_connections_are_reset() {
    let fleet = Fleet::start(3);
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
    let config = plain(proxies.iter().map(Proxy::url)).reconnect(millis(5), millis(20));
    let client = ready::client(config);
    assert!(fleet[2].command(&["SET", "a", "another's"]).is_ok());
    let guard = client.lock("a", kept(SHORT)).unwrap();
    let token = token_of(&guard);
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    let as_before = vec![token.clone(), token, b"another's".to_vec()];
    assert_eq!(fleet.values("a"), as_before);
    for how in [Cut::Reset, Cut::Fin, Cut::Reset] {
        let renewed = client.stats().renewed;
        proxies[..2].iter().for_each(|proxy| proxy.cut(how));
        client.drive(millis(2)).unwrap();
        client.wait_ready(3);
        client.drive(millis(50)).unwrap();
        assert_eq!(fleet.values("a"), as_before);
        let what = "it is renewed over the new connections";
        let took = client.drive_until(SHORT, what, || client.stats().renewed > renewed);
        println!("{how:?} of a bare majority, ttl {SHORT:?}: renewed again after {took:?}");
        guard.check().unwrap();
    }
    // The connections are reset during a renewal. The unanswered extend may have prolonged the key,
    // which the lock still needs, so the client must not release it.
    for how in [Cut::Reset, Cut::Fin] {
        let renewed = client.stats().renewed;
        proxies[..2].iter().for_each(Proxy::hold);
        client.drive(SHORT / 3 + millis(100)).unwrap();
        assert_eq!(client.stats().renewed, renewed, "nothing came through");
        proxies[..2].iter().for_each(|proxy| proxy.cut(how));
        proxies[..2].iter().for_each(Proxy::heal);
        let what = "it is renewed over the new connections";
        let took = client.drive_until(SHORT, what, || client.stats().renewed > renewed);
        println!("{how:?} while it is renewed: renewed again after {took:?}");
        assert_eq!(fleet.values("a"), as_before);
    }
    // Now the servers end the connections.
    for _ in 0..10 {
        for node in &fleet {
            assert_eq!(end_our_connections(node), 1);
        }
        client.drive(millis(50)).unwrap();
        client.wait_ready(3);
    }
    client.drive(SHORT).unwrap();
    assert_eq!(fleet.values("a"), as_before);
    guard.check().unwrap();
    for monitor in &monitors {
        let heard = heard(monitor);
        assert!(heard.iter().all(|heard| heard.what != What::Release), "{heard:?}");
    }
    assert_eq!(client.stats().lost, 0);
    assert_eq!(guard.release().unwrap(), redlatch::ReleaseOutcome::Released);
    client.drive_until(SOON, "ours is gone", || fleet.keys_everywhere().len() == 1);
}
