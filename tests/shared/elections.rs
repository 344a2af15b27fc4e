//! Leader election by shared clients: who leads, when a term ends, and what others see of it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use redlatch::shared::{Campaign, Election, Standing, Term};
use redlatch::{Candidate, ClosedReason, ConfigError, Error, Leader, Leadership, LostReason};

const NAME: &str = "scheduler";

/// Where the leader writes its term and its address.
const NOTE: &str = "redlatch:leader:{scheduler}";

/// A client that trusts these new servers: an election needs the restart guard.
fn trusting(fleet: &Fleet) -> SharedClient {
    let config = || Config::new(fleet.urls()).expect("good addresses").node_timeout(5 * SECOND);
    drop(ready::vouched(config()));
    ready::shared(config())
}

fn fleet_and_trusting_client(nodes: usize) -> (Fleet, SharedClient) {
    let fleet = Fleet::start(nodes);
    let client = trusting(&fleet);
    (fleet, client)
}

fn election(client: &SharedClient) -> Election {
    Election::of(client, NAME).ttl(TTL)
}

fn candidate(client: &SharedClient, name: &str) -> Campaign {
    let candidate = Candidate::named(name).address(format!("{name}:80"));
    election(client).campaign(candidate).unwrap()
}

/// The next change, within 30 s.
#[track_caller]
fn change(campaign: &mut Campaign) -> Result<Standing, Error> {
    let (mut changed, mut context) = (campaign.changed(), Context::from_waker(Waker::noop()));
    let mut ready = None;
    eventually(30 * SECOND, "the standing changes", || {
        if let Poll::Ready(standing) = Pin::new(&mut changed).poll(&mut context) {
            ready = Some(standing);
        }
        ready.is_some()
    });
    ready.expect("it has changed")
}

/// The next term of this candidate. Of the others it hears at most that each led once before.
#[track_caller]
fn lead(campaign: &mut Campaign) -> Term {
    for _ in 0..6 {
        if let Standing::Leading(term) = change(campaign).unwrap() {
            return term;
        }
    }
    panic!("others lead again and again");
}

/// Waits until a candidate hears that this one leads.
#[track_caller]
fn follow(campaign: &mut Campaign, name: &str) -> Leader {
    loop {
        match change(campaign).unwrap() {
            Standing::Following(Some(leader)) if leader.name() == name => return leader,
            Standing::Following(_) => {}
            Standing::Leading(term) => panic!("{term:?}"),
        }
    }
}

/// What one look says once it fulfils this.
fn seen(client: &SharedClient, what: &str, is_so: impl Fn(&Leadership) -> bool) -> Leadership {
    let mut last = Leadership::Unknown;
    eventually(SOON, what, || {
        last = election(client).observe().leader().wait().unwrap();
        is_so(&last)
    });
    last
}

#[test]
fn one_candidate_leads_and_the_next_in_line_follows_it() {
    let (fleet, client) = fleet_and_trusting_client(3);
    let other = trusting(&fleet);
    let mut first = candidate(&client, "first");
    let term = lead(&mut first);
    term.check().unwrap();
    assert!(first.is_leading() && term.remaining() > TTL / 2);

    let mut second = candidate(&other, "second");
    let leader = follow(&mut second, "first");
    assert_eq!(leader.address(), Some("first:80"));
    assert!(!second.is_leading());
    let is_known = |seen: &Leadership| {
        seen.leader().is_some_and(|it| it.term().is_some() && it.next().is_some())
    };
    let known = seen(&client, "the term and the next in line are known", is_known);
    let known = known.leader().unwrap();
    assert_eq!((known.name(), known.address()), ("first", Some("first:80")));
    assert_eq!((known.term(), known.token()), (Some(term.number()), &term.token()));
    assert_eq!(known.next().unwrap().to_string(), "second@second:80");
    assert!(known.remaining().unwrap() <= TTL);

    // The first candidate stands behind the second when it asks anew.
    let before = term.number();
    drop(term);
    let after = lead(&mut second);
    assert!(after.number() > before, "{} after {before}", after.number());
    follow(&mut first, "second");
    drop(second);
    after.check().unwrap();
    drop(after);
    assert!(lead(&mut first).number() > before);
    drop(first);
    seen(&client, "nobody leads", |it| *it == Leadership::Nobody);
}

#[test]
fn term_that_is_lost_ends_and_the_candidate_asks_again_only_after_it_is_dropped() {
    let (fleet, client) = fleet_and_trusting_client(3);
    let mut me = candidate(&client, "me");
    let term = lead(&mut me);
    let lost = term.lost();
    fleet.command(&["DEL", NAME]);
    assert!(matches!(lost.wait(), Error::Lost { reason: LostReason::Gone, .. }));
    assert!(term.check().is_err() && !me.is_leading());
    assert!(matches!(change(&mut me), Ok(Standing::Following(None))));
    // Observers see no leader: the candidate asks for the lock again only after its caller has
    // dropped the lost term.
    for _ in 0..3 {
        assert_eq!(election(&client).observe().leader().wait(), Ok(Leadership::Nobody));
    }
    let before = term.number();
    drop(term);
    assert!(lead(&mut me).number() > before);
}

#[test]
fn leader_that_resigns_is_out_for_the_pause() {
    let (fleet, client) = fleet_and_trusting_client(3);
    let (mut first, mut second) = (candidate(&client, "first"), candidate(&client, "second"));
    let term = lead(&mut first);
    follow(&mut second, "first");
    first.resign(600 * SECOND).wait().unwrap();
    assert!(matches!(term.check(), Err(Error::Lost { reason: LostReason::Over, .. })));
    // The next candidate may lead by now.
    assert!(matches!(change(&mut first), Ok(Standing::Following(_))));
    drop(term);
    let after = lead(&mut second);
    drop(after);
    // Nobody else stands in line, so the second one leads again.
    drop(lead(&mut second));
    drop(second);
    seen(&client, "nobody leads", |it| *it == Leadership::Nobody);
    assert!(matches!(first.resign(SECOND).wait(), Err(Error::Lost { .. })), "it does not lead");
    drop(first);
    eventually(SOON, "the lock is free", || fleet.values(NAME).is_empty());
}

#[test]
fn leader_that_is_asked_to_resign_gives_its_term_up() {
    let (fleet, client) = fleet_and_trusting_client(3);
    let other = trusting(&fleet);
    let mut first = candidate(&client, "first");
    let term = lead(&mut first);
    let mut second = candidate(&other, "second");
    let leader = follow(&mut second, "first");
    let observer = election(&other).observe();
    observer.ask_to_resign(&leader, 600 * SECOND).wait().unwrap();
    let why = term.lost().wait();
    assert!(matches!(why, Error::Lost { reason: LostReason::AskedToResign, .. }), "{why}");
    // The key stays until the holder has stopped.
    assert_eq!(fleet[0].get(NAME), Some(term.token().to_string().into_bytes()));
    drop(term);
    let after = lead(&mut second);
    // The same request again is for a leader that is gone: the present one reads it with the look
    // in which it writes its note anew, and goes on.
    observer.ask_to_resign(&leader, SECOND).wait().unwrap();
    for _ in 0..2 {
        fleet[0].command(&["DEL", NOTE]);
        eventually(SOON, "the leader looks once more", || fleet[0].get(NOTE).is_some());
    }
    after.check().unwrap();
    follow(&mut first, "second");
}

#[test]
fn term_ends_at_the_longest_hold_of_its_election() {
    let (_fleet, client) = fleet_and_trusting_client(3);
    let election = election(&client).max_hold(millis(500));
    let mut me = election.campaign(Candidate::named("me")).unwrap();
    let term = lead(&mut me);
    eventually(SOON, "the term is over", || term.check().is_err());
    let why = term.check().unwrap_err();
    assert!(matches!(why, Error::Lost { reason: LostReason::MaxHold, .. }), "{why}");
    let before = term.number();
    drop(term);
    assert!(lead(&mut me).number() > before);
}

#[test]
fn leader_proclaims_another_address() {
    let (_fleet, client) = fleet_and_trusting_client(3);
    let mut me = candidate(&client, "me");
    let term = lead(&mut me);
    let mut observer = election(&client).observe();
    let at = |it: &Leadership| it.leader().and_then(|it| it.address().map(str::to_owned));
    assert_eq!(at(&observer.changed().wait().unwrap()), Some("me:80".into()));
    me.proclaim("me:443").unwrap();
    while at(&observer.changed().wait().unwrap()) != Some("me:443".into()) {}
    term.check().unwrap();
    let refused = me.proclaim("no address");
    assert!(matches!(refused, Err(Error::Config(ConfigError::Owner { .. }))), "{refused:?}");
    // The next term begins with this address.
    drop(term);
    let again = lead(&mut me);
    let seen = seen(&client, "it leads again", |it| {
        it.leader().is_some_and(|it| *it.token() == again.token())
    });
    assert_eq!(at(&seen), Some("me:443".into()));
}

#[test]
fn future_of_a_change_that_is_dropped_loses_no_change() {
    let (_fleet, client) = fleet_and_trusting_client(1);
    let mut me = candidate(&client, "me");
    let changed = me.changed();
    eventually(SOON, "the lock is granted", || client.stats().won > 0);
    drop(changed);
    let term = lead(&mut me);
    term.check().unwrap();
}

#[test]
fn candidate_without_the_right_to_lock_gets_an_error_and_leads_once_it_has_the_right() {
    let (fleet, client) = fleet_and_trusting_client(1);
    let election = Election::of(&client, NAME).ttl(millis(200));
    fleet[0].command(&["ACL", "SETUSER", "default", "resetkeys", "~redlatch:node"]);
    let mut me = election.campaign(Candidate::named("me")).unwrap();
    let error = loop {
        match change(&mut me) {
            Ok(Standing::Following(_)) => {}
            Ok(Standing::Leading(term)) => panic!("{term:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Config(ConfigError::Nodes(_))), "{error}");
    fleet[0].command(&["ACL", "SETUSER", "default", "~*"]);
    let start = Instant::now();
    loop {
        // It may be refused once more meanwhile.
        match change(&mut me) {
            Ok(Standing::Leading(term)) => break term.check().unwrap(),
            Ok(Standing::Following(_)) | Err(_) => {}
        }
        assert!(start.elapsed() < SOON, "it does not lead");
    }
}

#[test]
fn bad_names_candidates_and_ttls_are_refused_before_anything_is_sent() {
    let (fleet, client) = fleet_and_trusting_client(1);
    let me = || Candidate::named("me");
    let refused = [
        Election::of(&client, "redlatch:x").campaign(me()).err(),
        Election::of(&client, "x".repeat(100_000)).campaign(me()).err(),
        Election::of(&client, "x").ttl(Duration::ZERO).campaign(me()).err(),
        Election::of(&client, "x").ttl(3600 * SECOND).campaign(me()).err(),
        Election::of(&client, "x").campaign(Candidate::named("")).err(),
        Election::of(&client, "x").campaign(me().address("a b")).err(),
        Election::of(&client, "redlatch:x").observe().leader().wait().err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::Config(_))), "{error:?}");
    }
    assert!(fleet[0].keys().iter().all(|key| key.starts_with(b"redlatch:node")));
    drop(fleet);
}

#[test]
fn closed_client_ends_its_campaigns_and_terms() {
    let (_fleet, client) = fleet_and_trusting_client(3);
    let (mut first, mut second) = (candidate(&client, "first"), candidate(&client, "second"));
    let term = lead(&mut first);
    follow(&mut second, "first");
    let waits = std::thread::spawn(move || second.changed().wait().map(|_| ()));
    assert_eq!(client.close(5 * SECOND).wait(), 0, "the lock is released");
    let closed = |error: &Error| matches!(error, Error::Closed(ClosedReason::Asked));
    assert!(waits.join().unwrap().is_err_and(|it| closed(&it)));
    assert!(term.check().is_err_and(|it| closed(&it)) && !first.is_leading());
    assert!(first.changed().wait().is_err_and(|it| closed(&it)));
}

#[test]
fn observer_distinguishes_nobody_from_too_few_answers() {
    let (fleet, client) = fleet_and_trusting_client(3);
    let mut observer = election(&client).observe();
    assert_eq!(observer.changed().wait(), Ok(Leadership::Nobody));
    fleet.on([0, 1], Node::kill);
    assert_eq!(observer.changed().wait(), Ok(Leadership::Unknown));
}
