//! Leader election by a client that a caller drives, and by an engine in a caller's loop.

use super::*;
use redlatch::{CampaignId, Candidate, Leadership, Outcome, Standing};

const NAME: &str = "scheduler";

/// A client that trusts these new servers: an election needs the restart guard.
fn trusting(fleet: &Fleet) -> Client {
    let config = Config::new(fleet.urls()).expect("good addresses");
    ready::vouched(config.node_timeout(NODE_TIMEOUT))
}

fn campaign(client: &Client, name: &str) -> CampaignId {
    client.campaign(NAME, Candidate::named(name).address("h:1"), TTL).unwrap()
}

/// Drives all clients until this one has a standing that `is_so`. Other standings are left out.
#[track_caller]
fn drive_until(
    clients: &[&Client],
    of: &Client,
    what: &str,
    is_so: impl Fn(&Standing) -> bool,
) -> Standing {
    let mut found = None;
    eventually(SOON, what, || {
        clients.iter().for_each(|client| client.drive(millis(1)).unwrap());
        while let (None, Some(change)) = (&found, of.poll_standing()) {
            found = Some(change.standing).filter(&is_so);
        }
        found.is_some()
    });
    found.expect("it was found")
}

fn leads(standing: &Standing) -> bool {
    matches!(standing, Standing::Leading(_))
}

fn follows(name: &'static str) -> impl Fn(&Standing) -> bool {
    move |it| matches!(it, Standing::Following(Some(leader)) if leader.name() == name)
}

#[test]
fn candidates_of_blocking_clients_lead_one_after_the_other() {
    let fleet = Fleet::start(3);
    let (one, two) = (trusting(&fleet), trusting(&fleet));
    assert_eq!(one.leader(NAME), Ok(Leadership::Nobody));
    let first = campaign(&one, "first");
    let both = [&one, &two];
    let Standing::Leading(lock) = drive_until(&both, &one, "it leads", leads) else { panic!() };
    assert!(one.remaining_term(first) > TTL / 2);
    let second = campaign(&two, "second");
    drive_until(&both, &two, "it follows", follows("first"));
    assert!(two.remaining_term(second).is_zero());
    let Leadership::Leader(leader) = two.leader(NAME).unwrap() else { panic!("nobody leads") };
    assert_eq!((leader.to_string().as_str(), leader.token()), ("first@h:1", &lock.token()));

    one.resign(first, 600 * SECOND).unwrap();
    assert!(one.remaining_term(first).is_zero());
    // The next candidate may lead by now.
    drive_until(&both, &one, "its term is over", |it| matches!(it, Standing::Following(_)));
    one.end_term(first);
    let Standing::Leading(next) = drive_until(&both, &two, "the next leads", leads) else {
        panic!()
    };
    assert!(next.fence() > lock.fence());
    let seen = || matches!(one.leader(NAME), Ok(Leadership::Leader(it)) if it.name() == "second");
    eventually(SOON, "the next one is seen", seen);
    assert!(one.resign(first, SECOND).is_err(), "it does not lead");

    // A candidate that withdraws gives the lock back.
    two.withdraw(second);
    one.withdraw(first);
    let is_free = |node: &crate::support::Node| node.get(NAME).is_none();
    eventually(SOON, "the lock is free", || {
        both.iter().for_each(|client| client.drive(millis(1)).unwrap());
        fleet.iter().all(is_free)
    });
}

#[test]
fn blocking_client_whose_calls_wait_for_something_else_goes_on_with_its_campaign() {
    let fleet = Fleet::start(3);
    let (one, two) = (trusting(&fleet), trusting(&fleet));
    let guard = two.lock("other", TTL).unwrap();
    let me = campaign(&one, "me");
    // This wait drives the campaign; its standings are kept until they are polled.
    assert!(one.lock("other", LockOptions::new(TTL).wait(millis(300))).is_err());
    let changes: Vec<_> = std::iter::from_fn(|| one.poll_standing()).collect();
    let leading = changes.iter().find(|it| leads(&it.standing));
    assert_eq!(leading.map(|it| it.campaign), Some(me), "{changes:?}");
    guard.release().unwrap();
}

#[test]
fn engine_reports_the_standings_of_its_candidate() {
    let fleet = Fleet::start(3);
    let vouching = trusting(&fleet);
    let config = Config::new(fleet.urls()).expect("good addresses");
    let mut embedded = Loop::ready(config.node_timeout(NODE_TIMEOUT));
    let engine = &mut embedded.engine;
    let me = engine.campaign(NAME, Candidate::named("me"), TTL, 7).unwrap();
    let mut standings = Vec::new();
    embedded.turn_until("it leads", |engine| {
        assert!(engine.poll_completion().is_none(), "requests of the campaign are its own");
        standings.extend(std::iter::from_fn(|| engine.poll_standing()));
        standings.iter().any(|it| leads(&it.standing))
    });
    assert!(standings.iter().all(|it| (it.campaign, it.data) == (me, 7)), "{standings:?}");
    let lock = embedded.engine.term(me).map(|lock| lock.token());
    let Leadership::Leader(leader) = vouching.leader(NAME).unwrap() else { panic!("nobody") };
    assert_eq!((leader.name(), Some(leader.token())), ("me", lock.as_ref()));

    // The release that a candidate resigns with is a request as any other.
    let op = embedded.engine.resign(me, 600 * SECOND, 8).unwrap();
    let done = embedded.completion();
    assert_eq!((done.op, done.data), (op, 8));
    assert!(matches!(done.result, Ok(Outcome::Released(_))), "{done:?}");
    embedded.engine.withdraw(me);
    embedded.turn_until("nothing is open", |engine| engine.coordinator().open_records() == 0);
}
