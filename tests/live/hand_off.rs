//! A lock that is handed on by its token: at most one client holds it, and no late request of the
//! giver reaches the new holder.

use std::sync::Barrier;

use super::monitor_lines::{What, heard};
use super::*;
use redlatch::{LockToken, LostReason, ReleaseOutcome};

fn text(token: LockToken) -> Vec<u8> {
    token.to_string().into_bytes()
}

#[track_caller]
fn check_gone(error: &Error) {
    println!("{error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
}

#[test]
fn lock_that_is_given_away_is_adopted_and_belongs_to_the_adopter() {
    let fleet = Fleet::start(3);
    let (giver, taker) = (client(&fleet), client(&fleet));
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    for keep in [false, true] {
        let options = if keep { kept(4 * SECOND) } else { LockOptions::new(4 * SECOND) };
        let given = giver.lock("a", options).unwrap().into_token().unwrap();
        let start = Instant::now();
        let guard = taker.adopt("a", given.clone(), kept(TTL)).unwrap();
        println!("taken up in {:?}, {:?} are left", start.elapsed(), guard.remaining());
        assert_ne!(guard.token(), given, "two who took it up would both hold it");
        taker.drive_until(SOON, "all have the new token", || {
            fleet.values("a") == vec![text(guard.token()); 3]
        });
        // No call of the giver affects the lock any more, even after the time of the giver's first
        // renewal.
        giver.drive(2 * SECOND).unwrap();
        taker.drive(millis(100)).unwrap();
        assert!(giver.poll_lock_update().is_none(), "the giver gets no event");
        guard.check().unwrap();
        check_gone(&giver.adopt("a", given.clone(), TTL).unwrap_err());
        assert_eq!(giver.release_token("a", given.clone()).unwrap(), ReleaseOutcome::TakenByOther);
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        fleet.wait_empty();
        for monitor in &monitors {
            let mut heard = heard(monitor);
            heard.retain(|heard| heard.token == given.to_string() && heard.what == What::Release);
            assert_eq!(heard.len(), 1, "the one that was asked for: {heard:?}");
        }
    }
}

#[test]
fn a_lock_is_not_taken_up_with_a_wrong_token_nor_when_it_is_over() {
    let fleet = Fleet::start(3);
    let (giver, taker) = (client(&fleet), client(&fleet));
    let guard = giver.try_lock("a", TTL).unwrap();
    let token = guard.token();
    giver.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    check_gone(&taker.adopt("a", wrong_token(), TTL).unwrap_err());
    taker.drive(millis(50)).unwrap();
    assert_eq!(fleet.values("a"), vec![text(token); 3], "it is untouched");
    guard.check().unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();

    // If the machine stalls, so short a lock is over before it is given away; then the test tries
    // again.
    let give = || giver.lock("a", millis(200)).and_then(Guard::into_token).ok();
    let given = std::iter::repeat_with(give).take(20).flatten().next().expect("a moment without");
    wait_until_all_keys_end(&fleet);
    check_gone(&taker.adopt("a", given, TTL).unwrap_err());
    // If the key is absent, `adopt` does not create it.
    taker.drive(millis(50)).unwrap();
    assert_eq!(fleet.keys_everywhere(), []);
    // A caller that gives away a lock that is over gets an error.
    let over = giver.lock("a", millis(200)).unwrap();
    wait_until_all_keys_end(&fleet);
    let error = over.into_token().unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
}

#[test]
fn a_giver_that_still_believes_in_an_adopted_lock_notices_the_loss() {
    let fleet = Fleet::start(3);
    let (first, second) = (client(&fleet), client(&fleet));
    // The lock is not renewed, so its holder notices the loss with its next extend.
    let mut guard = first.try_lock("a", TTL).unwrap();
    first.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let adopted = second.adopt("a", guard.token(), TTL).unwrap();
    second.drive(millis(20)).unwrap();
    check_gone(&guard.extend(TTL).unwrap_err());
    assert!(guard.check().is_err());
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::TakenByOther);
    first.drive(millis(50)).unwrap();
    assert_eq!(fleet.values("a"), vec![text(adopted.token()); 3]);
    assert_eq!(adopted.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();

    // The lock is renewed, so its holder notices at once, whether another client adopts it or
    // another call of the same client does.
    let ttl = 30 * SECOND;
    for by in [&second, &first] {
        let guard = first.lock("a", kept(ttl)).unwrap();
        first.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
        let start = Instant::now();
        let adopted = by.adopt("a", guard.token(), ttl).unwrap();
        let told = first.until_lost(&guard);
        println!("taken up, ttl {ttl:?}: the giver notices after {:?}", start.elapsed());
        assert!(start.elapsed() < ttl / 4, "told by its renewal");
        assert_eq!(told.reason(), LostReason::Gone);
        drop(guard);
        first.drive(millis(50)).unwrap();
        second.drive(millis(50)).unwrap();
        assert_eq!(fleet.values("a"), vec![text(adopted.token()); 3]);
        adopted.check().unwrap();
        assert_eq!(adopted.release().unwrap(), ReleaseOutcome::Released);
        fleet.wait_empty();
    }
}

/// The result of an adopt: how many nodes then have the new holder's key, or the error.
type Adopted = Result<usize, Error>;

/// Adopts the lock at the same time as the other client. It must not panic, because the threads
/// that wait for it would wait for ever.
fn take_up_together(client: &Client, key: &str, token: LockToken, fleet: &Fleet) -> Adopted {
    let guard = client.adopt(key, token, TTL)?;
    let _ = client.drive(millis(5));
    let token = text(guard.token());
    Ok(fleet.iter().filter(|node| node.get(key).as_ref() == Some(&token)).count())
}

#[test]
fn of_two_clients_that_adopt_one_token_one_at_most_holds_it() {
    const ROUNDS: usize = 200;
    let fleet = Fleet::start(5);
    let clients = [client(&fleet), client(&fleet), client(&fleet)];
    let [giver, first, second] = clients;
    let together = Barrier::new(3);
    let given = std::sync::Mutex::new(wrong_token());
    let outcomes = std::thread::scope(|scope| {
        let adopt = |client: Client| {
            let (together, given, fleet) = (&together, &given, &fleet);
            move || -> Vec<Adopted> {
                let round = |round| {
                    together.wait();
                    let token = given.lock().expect("nobody panics with it").clone();
                    let adopted = take_up_together(&client, &format!("k{round}"), token, fleet);
                    let _ = client.drive(millis(1));
                    together.wait();
                    adopted
                };
                (0..ROUNDS).map(round).collect()
            }
        };
        let others = [first, second].map(|client| scope.spawn(adopt(client)));
        for round in 0..ROUNDS {
            let guard = giver.try_lock(format!("k{round}"), TTL);
            // If a grant is still in flight, the clients find the token on too few nodes to adopt
            // the lock.
            let _ = giver.drive(millis(2));
            let token = guard.and_then(Guard::into_token).unwrap_or(wrong_token());
            *given.lock().expect("nobody panics with it") = token;
            together.wait();
            together.wait();
        }
        others.map(|other| other.join().expect("it panics nowhere"))
    });
    let mut count = [0; 3];
    for (a, b) in outcomes[0].iter().zip(&outcomes[1]) {
        count[[a, b].iter().filter(|adopted| adopted.is_ok()).count()] += 1;
        for adopted in [a, b] {
            match adopted {
                // Whichever keys the other client has released, the winner has a majority.
                Ok(nodes) => assert!(*nodes >= 3, "held on {nodes} nodes"),
                Err(Error::Lost { .. } | Error::Contended(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    println!("of {ROUNDS}: none {}, one {}, two {}", count[0], count[1], count[2]);
    assert_eq!(count[2], 0, "two hold it at once");
    assert!(count[1] > ROUNDS / 2, "nobody could take it up");
    fleet.wait_empty();
}

#[test]
fn hand_off_with_unanswered_commands_never_touches_the_adopter() {
    let fleet = Fleet::start(3);
    let patient =
        |urls: Vec<String>| ready::client(plain(urls).node_timeout(SILENT).reset_after(TTL));
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    // One node is stopped before the acquire, before the extend, or before the adopt.
    for when in ["acquire", "extend", "adopt"] {
        let (giver, taker) = (patient(fleet.urls()), patient(fleet.urls()));
        let stop = |at| (when == at).then(|| fleet[2].stop());
        stop("acquire");
        let mut guard = giver.lock("a", kept(TTL)).unwrap();
        giver.drive(millis(20)).unwrap();
        stop("extend");
        guard.extend(TTL).unwrap();
        let given = guard.into_token().unwrap();
        stop("adopt");
        let adopted = taker.adopt("a", given.clone(), kept(TTL)).unwrap();
        // The giver finds the node silent and is then dropped; the node has not executed its
        // request yet.
        giver.drive(SILENT + millis(200)).unwrap();
        drop(giver);
        fleet[2].cont();
        taker.wait_ready(3);
        taker.drive(millis(300)).unwrap();
        adopted.check().unwrap();
        let token = text(adopted.token());
        let held = fleet.values("a");
        let theirs = held.iter().filter(|held| **held == token).count();
        println!("stopped before the {when}: {theirs} nodes hold it for the taker");
        assert_eq!(held[..2], [token.clone(), token]);
        for monitor in &monitors {
            let heard = heard(monitor);
            let mut releases = heard.iter().filter(|heard| heard.what == What::Release);
            assert!(releases.all(|heard| heard.token != given.to_string()), "{heard:?}");
        }
        assert_eq!(adopted.release().unwrap(), ReleaseOutcome::Released);
        drop(taker);
        fleet.command(&["FLUSHALL"]);
    }
}
