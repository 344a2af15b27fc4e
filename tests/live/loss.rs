//! The loss of a lock is reported before its deadline, and as soon as the client can know it; and
//! the lock's keys that are left go.

use super::monitor_lines::{What, heard};
use super::*;
use crate::support::{PlainTimer, Proxy, Way};
use redlatch::{LostReason, Outcome};

/// A ttl so long that no lock of these tests ends by it, and that no renewal is the first to find a
/// loss.
const LONG: Duration = Duration::from_secs(30);

/// The variable with the number of losses to measure. If it is set, the test does not stop at the
/// first loss that is reported in time.
const LOSSES: &str = "REDLATCH_TEST_LOSSES";

/// How many losses the test tries until one is reported in time. The client sets a timer to 2 ms
/// before the deadline, so a machine whose timers are later than that delays the report.
const TRIES: usize = 20;

/// A plain timer that is late by less than this counts as in time.
const LATEST_IN_TIME: Duration = millis(1);

/// Loses locks until one loss is reported before its deadline. A report after its deadline may be
/// late only by as much as a plain timer allows. If five reports are late while plain timers were
/// in time, the test fails.
#[track_caller]
fn check_reported_in_time(what: &str, mut lose: impl FnMut() -> ReportedLoss) {
    let wanted: Option<usize> = std::env::var(LOSSES).ok().and_then(|text| text.parse().ok());
    let timer = PlainTimer::start();
    let (mut in_time, mut late) = (0, 0);
    for _ in 0..wanted.unwrap_or(TRIES) {
        let told = lose();
        let plain = timer.latest();
        let limit = PlainTimer::limit_of(Duration::ZERO, plain);
        assert_eq!(told.reason(), LostReason::Expired);
        let after = told.at.saturating_since(told.deadline);
        println!(
            "{what}: told {:?} before the deadline, or {after:?} after it; a plain timer was late \
             by {plain:?}: {}",
            told.before_the_deadline(),
            told.error
        );
        if told.before_the_deadline().is_some() {
            assert_eq!(told.warnings.last(), Some(&told.deadline), "it was not warned before");
            in_time += 1;
            if wanted.is_none() {
                return;
            }
        }
        assert!(after <= limit, "told {after:?} after the deadline, a plain timer {plain:?}");
        late += usize::from(plain < LATEST_IN_TIME && told.before_the_deadline().is_none());
    }
    println!("{what}: {in_time} in time; {late} were not, though a plain timer was");
    assert!(late < 5, "{what}: it is never told before the deadline");
}

/// Acquires a lock and waits until it was renewed. If the machine stalls meanwhile and the lock is
/// over, tries the next one.
#[track_caller]
fn acquire_renewed(client: &Client) -> Guard<'_> {
    let mut guard = None;
    eventually(2 * SOON, "a lock is renewed", || {
        let kept = client.lock("a", kept(SECOND)).unwrap();
        client.drive(millis(400)).unwrap();
        guard = kept.check().is_ok().then_some(kept);
        guard.is_some()
    });
    guard.expect("it is held")
}

#[test]
fn loss_is_reported_before_the_deadline_when_a_majority_is_stopped() {
    let fleet = Fleet::start(3);
    let client = Client::connect(config(&fleet).node_timeout(millis(100))).unwrap();
    check_reported_in_time("two of three stopped", || {
        client.wait_ready(3);
        let guard = acquire_renewed(&client);
        [&fleet[0], &fleet[2]].into_iter().for_each(Node::stop);
        let told = client.until_lost(&guard);
        assert_eq!(guard.check().unwrap_err(), told.error, "every look says the same");
        assert!(client.poll_lock_update().is_none(), "the loss was reported twice");
        drop(guard);
        [&fleet[0], &fleet[2]].into_iter().for_each(Node::cont);
        let end = Instant::now();
        client.wait_ready(3);
        client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
        println!("nothing was left {:?} after they went on", end.elapsed());
        told
    });
}

#[test]
fn loss_is_reported_before_the_deadline_when_a_majority_is_killed() {
    let fleet = Fleet::start(3);
    let client = Client::connect(config(&fleet).node_timeout(millis(100))).unwrap();
    check_reported_in_time("two of three killed", || {
        client.wait_ready(3);
        let guard = acquire_renewed(&client);
        [&fleet[1], &fleet[2]].into_iter().for_each(Node::kill);
        let told = client.until_lost(&guard);
        drop(guard);
        client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
        [&fleet[1], &fleet[2]].into_iter().for_each(Node::restart);
        told
    });
}

#[test]
fn loss_is_reported_at_once_when_a_majority_of_keys_is_deleted() {
    let (fleet, client) = fleet_and_client(5);
    for round in 0..5 {
        let guard = client.lock("a", kept(LONG)).unwrap();
        client.drive_until(SOON, "all have it", || fleet.values("a").len() == 5);
        // The test deletes any three of the keys, one by one.
        let deleted: Vec<&Node> = (0..3).map(|n| &fleet[(n + round) % 5]).collect();
        let start = Instant::now();
        for node in deleted {
            assert_eq!(node.command(&["DEL", "a"]).int(), 1);
        }
        let told = client.until_lost(&guard);
        let took = start.elapsed();
        println!("deleted on three of five, ttl {LONG:?}: told after {took:?}: {}", told.error);
        assert_eq!(told.reason(), LostReason::Gone);
        assert!(took < LONG / 4, "told after {took:?}: by its renewal");
        assert!(told.warnings.is_empty() && guard.check().is_err());
        client.drive_until(SOON, "the rest is gone", || fleet.keys_everywhere().is_empty());
    }
}

#[test]
fn loss_by_a_flush_of_all_nodes_is_reported_at_once_and_no_key_returns() {
    let (fleet, client) = fleet_and_client(5);
    let guards: Vec<Guard> =
        (0..20).map(|n| client.lock(format!("k{n}"), kept(LONG)).unwrap()).collect();
    client.drive_until(SOON, "all have them", || fleet.keys_everywhere().len() == 100);
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    let start = Instant::now();
    fleet.command(&["FLUSHALL"]);
    client.drive_until(SOON, "all are lost", || guards.iter().all(|it| it.check().is_err()));
    println!("five flushed, ttl {LONG:?}: all of 20 lost after {:?}", start.elapsed());
    for guard in &guards {
        let Err(Error::Lost { reason: LostReason::Gone, .. }) = guard.check() else { panic!() };
    }
    let mut told = 0;
    while let Some(notice) = client.poll_lock_update() {
        assert!(matches!(
            notice.kind,
            LockUpdateKind::Lost(Error::Lost { reason: LostReason::Gone, .. })
        ));
        told += 1;
    }
    assert_eq!(told, 20, "each loss is reported once");
    let end = Instant::now() + millis(500);
    while Instant::now() < end {
        client.drive(millis(5)).unwrap();
        assert_eq!(fleet.keys_everywhere(), [], "a key came back");
    }
    for monitor in &monitors {
        assert!(heard(monitor).iter().all(|heard| heard.what != What::Set), "it was healed");
    }
    assert_eq!(client.stats().healed, 0);
}

/// The masters forget both locks. The caller makes no call but `check`.
#[test]
fn loss_by_a_flush_is_found_by_check_if_the_lock_is_renewed_and_else_by_an_extend() {
    let fleet = Fleet::start(3);
    let (first, second) = (client(&fleet), client(&fleet));
    let mut plain = first.lock("plain", LONG).unwrap();
    let renewed = second.lock("renewed", kept(LONG)).unwrap();
    second.drive_until(SOON, "all have both", || fleet.keys_everywhere().len() == 6);
    second.drive(millis(100)).unwrap();
    fleet.command(&["FLUSHALL"]);
    std::thread::sleep(millis(50));
    assert_eq!(plain.check(), Ok(()), "it reads the clock, and no socket");
    assert_eq!(renewed.check(), Ok(()), "the nodes have not answered yet");
    let (start, mut checks) = (Instant::now(), 1);
    eventually(SOON, "the answers are read", || {
        checks += 1;
        renewed.check().is_err()
    });
    println!("lost after {checks} checks, {:?} after the first", start.elapsed());
    assert!(start.elapsed() < LONG / 4, "by its renewal");
    assert!(matches!(renewed.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
    assert_eq!(plain.check(), Ok(()));
    assert!(matches!(plain.extend(LONG), Err(Error::Lost { reason: LostReason::Gone, .. })));
    assert!(matches!(plain.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
}

#[test]
fn loss_is_reported_when_the_third_of_five_keys_is_replaced() {
    let (fleet, client) = fleet_and_client(5);
    let replace = |node: usize| {
        assert!(fleet[node].command(&["SET", "a", "another's", "PX", "60000"]).is_ok());
    };
    // The lock is not renewed, so the caller's extends find the loss, each on one more node.
    let mut guard = client.try_lock("a", LONG).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 5);
    for node in 0..2 {
        replace(node);
        guard.extend(LONG).unwrap_or_else(|error| panic!("lost with {node}: {error}"));
    }
    guard.extend(LONG).expect("three hold it, in any number of rounds");
    replace(2);
    let error = guard.extend(LONG).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    check_only_other_clients_keys_are_left(&fleet, &client, 3);
    drop(guard);
    let update = client.poll_lock_update().map(|update| update.kind);
    assert_eq!(update, Some(LockUpdateKind::Lost(error)), "kept or not");

    // The lock is renewed, so pushes report the loss.
    fleet.command(&["FLUSHALL"]);
    let guard = client.lock("a", kept(LONG)).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 5);
    let extends = |node: &Node| node.command(&["INFO", "commandstats"]).text();
    for node in [4, 3] {
        let before = extends(&fleet[node]);
        replace(node);
        client.drive_until(LONG / 5, "it is looked after", || extends(&fleet[node]) != before);
        client.drive(millis(100)).unwrap();
        guard.check().unwrap_or_else(|error| panic!("lost with {node}: {error}"));
    }
    let start = Instant::now();
    replace(0);
    let told = client.until_lost(&guard);
    println!("the third replaced, ttl {LONG:?}: told after {:?}", start.elapsed());
    // A check may have begun just before, so the next one follows a twentieth of the ttl later.
    assert!(start.elapsed() < LONG / 6, "told by its renewal");
    assert_eq!(told.reason(), LostReason::Gone);
    check_only_other_clients_keys_are_left(&fleet, &client, 3);
}

/// Checks that the client's keys go, and that the other client's keys stay.
#[track_caller]
fn check_only_other_clients_keys_are_left(fleet: &Fleet, client: &Client, nodes: usize) {
    client.drive_until(SOON, "ours is gone", || fleet.keys_everywhere().len() == nodes);
    assert_eq!(fleet.values("a"), vec![b"another's"; nodes]);
}

#[test]
fn an_extend_whose_answers_come_after_the_old_deadline_is_lost_and_leaves_nothing() {
    despite_stalls(millis(500), |times| extend_is_answered_late(times * SECOND));
}

/// `ttl` is the lock's; the answers are delayed by three times as much.
fn extend_is_answered_late(ttl: Duration) {
    let fleet = Fleet::start(3);
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let client = ready::client(plain(urls).node_timeout(20 * SECOND));
    let mut guard = client.try_lock("a", ttl).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let deadline = guard.deadline().unwrap();
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    // The nodes prolong the key without delay, but their answers arrive after the deadline.
    proxies.iter().for_each(|proxy| proxy.delay(Way::ToClient, 3 * ttl));
    let error = guard.extend(LONG).unwrap_err();
    let late = clock::now().saturating_since(deadline);
    println!("lost {late:?} after the deadline: {error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
    assert!(guard.check().is_err() && late < SOON);
    // The client has sent the releases; only their answers are late.
    let left = fleet.wait_empty();
    println!("what was prolonged is gone {left:?} after that");
    for monitor in &monitors {
        let whats: Vec<What> = heard(monitor).iter().map(|heard| heard.what).collect();
        assert_eq!(whats, [What::Extend, What::Release]);
    }
    // The late answers do not bring the lock back.
    client.drive(4 * ttl).unwrap();
    assert!(guard.check().is_err());
    assert_eq!(fleet.keys_everywhere(), []);
}

#[test]
fn an_extend_that_stopped_nodes_execute_after_the_deadline_leaves_nothing() {
    despite_stalls(millis(500), |times| extend_is_executed_late(times * SECOND));
}

fn extend_is_executed_late(ttl: Duration) {
    let fleet = Fleet::start(3);
    let mut embedded = Loop::ready(config(&fleet).node_timeout(20 * SECOND));
    embedded.engine.acquire("a", LockOptions::once(ttl), 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = embedded.completion().result else { panic!("no lock") };
    eventually(SOON, "all have it", || fleet.values("a").len() == 3);
    // The keys outlive the deadline, so the late extend finds them.
    fleet.command(&["PEXPIRE", "a", "60000"]);
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    [&fleet[0], &fleet[1]].into_iter().for_each(Node::stop);
    embedded.engine.extend(&lock, LONG, 2).unwrap();
    let done = embedded.completion();
    let Err(Error::Lost { reason: LostReason::Expired, .. }) = done.result else {
        panic!("{done:?}")
    };
    embedded.turn();
    [&fleet[0], &fleet[1]].into_iter().for_each(Node::cont);
    let left = fleet.wait_empty();
    println!("nothing is left {left:?} after they went on");
    for monitor in &monitors {
        let whats: Vec<What> = heard(monitor).iter().map(|heard| heard.what).collect();
        assert_eq!(whats, [What::Extend, What::Release]);
    }
}

#[test]
fn an_extend_whose_answers_are_read_after_the_old_deadline_is_lost_and_leaves_nothing() {
    despite_stalls(millis(500), |times| answers_are_read_late(times * SECOND));
}

fn answers_are_read_late(ttl: Duration) {
    let (fleet, mut embedded) = fleet_and_loop(3);
    embedded.engine.acquire("a", LockOptions::once(ttl), 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = embedded.completion().result else { panic!("no lock") };
    eventually(SOON, "all have it", || fleet.values("a").len() == 3);
    embedded.engine.extend(&lock, LONG, 2).unwrap();
    embedded.engine.prepare();
    // All three nodes agree without delay, but the caller reads the answers a moment after the end
    // of the lock.
    for node in &fleet {
        eventually(SOON, "it is prolonged there", || node.pttl("a") > 20_000);
    }
    eventually(SOON, "it is over", || embedded.engine.remaining(&lock).is_zero());
    let done = embedded.completion();
    let Err(Error::Lost { reason: LostReason::Expired, .. }) = done.result else {
        panic!("{done:?}")
    };
    assert!(embedded.engine.remaining(&lock).is_zero());
    embedded.turn();
    let left = fleet.wait_empty();
    println!("what was prolonged in vain is gone after {left:?}");
}

#[test]
fn loss_that_another_call_found_is_reported_by_the_next_check() {
    let (fleet, client) = fleet_and_client(3);
    for look_first in [true, false] {
        let guard = client.lock("a", kept(millis(500))).unwrap();
        let mut other = client.lock("b", millis(500)).unwrap();
        // The test drives no client until both locks are over.
        wait_until_all_keys_end(&fleet);
        assert!(matches!(other.extend(TTL), Err(Error::Lost { .. })));
        let lost = |error| matches!(error, Error::Lost { reason: LostReason::Expired, .. });
        if look_first {
            assert!(lost(guard.check().unwrap_err()), "{:?}", guard.check());
        }
        let notices = std::iter::from_fn(|| client.poll_lock_update());
        let losses =
            notices.filter(|it| matches!(&it.kind, LockUpdateKind::Lost(e) if lost(e.clone())));
        let keys: Vec<_> = losses.map(|it| it.key().unwrap().to_vec()).collect();
        assert_eq!(keys, [b"a", b"b"], "each once, kept or not");
    }
}

#[test]
fn no_check_confirms_a_lock_past_its_deadline_when_its_report_comes_late() {
    despite_stalls(millis(100), |times| no_check_confirms(times * millis(300)));
}

fn no_check_confirms(ttl: Duration) {
    let (fleet, client) = fleet_and_client(3);
    let options = [LockOptions::new(ttl), kept(ttl)];
    for (stopped, options) in [0, 2].iter().flat_map(|n| options.iter().map(move |it| (*n, it))) {
        client.wait_ready(3);
        let guard = client.lock("a", *options).unwrap();
        let deadline = guard.deadline().unwrap();
        fleet.iter().take(stopped).for_each(Node::stop);
        // The only thread that drives the client does not run until the lock is over.
        eventually(SOON, "it is over", || clock::now() >= deadline);
        let late = clock::now().saturating_since(deadline);
        assert_eq!(guard.remaining(), Duration::ZERO);
        let error = guard.check().expect_err("it was confirmed past its deadline");
        println!("{stopped} of three stopped, looked at {late:?} after its deadline: {error}");
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert_eq!(guard.remaining(), Duration::ZERO);
        guard.check().expect_err("a later look confirmed it");
        drop(guard);
        fleet.iter().take(stopped).for_each(Node::cont);
        client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
        while client.poll_lock_update().is_some() {}
    }
}

#[test]
fn no_check_confirms_a_lock_by_a_renewal_whose_answers_are_read_past_its_deadline() {
    let fleet = Fleet::start(3);
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let client = ready::client(plain(urls).node_timeout(20 * SECOND));
    let guard = client.lock("a", kept(3 * SECOND)).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let first = guard.deadline().unwrap();
    // The nodes renew the key after a second. The proxies pass the answers on just after the lock's
    // first deadline, while the only thread that reads them does not. These answers would move the
    // deadline.
    proxies.iter().for_each(|proxy| proxy.delay(Way::ToClient, millis(2100)));
    client.drive(millis(1300)).unwrap();
    let deadline = guard.deadline().unwrap_or(first);
    let away = || clock::now().saturating_since(deadline) > millis(400);
    eventually(SOON, "the answers are there", away);
    assert_eq!(guard.remaining(), Duration::ZERO);
    let error = guard.check().expect_err("it was confirmed past its deadline");
    println!("{error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    guard.check().expect_err("a later look confirmed it");
    drop(guard);
    client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn loss_of_a_lock_without_auto_extend_is_an_event_too() {
    let (fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", millis(300)).unwrap();
    let other = client.lock("b", 2 * TTL).unwrap();
    let start = Instant::now();
    client.drive(TTL).unwrap();
    assert!(start.elapsed() < TTL / 2, "it returns when there is an event");
    let update = client.poll_lock_update().expect("the loss");
    assert_eq!((update.key(), &update.token), (Some(guard.key()), &guard.token()));
    let LockUpdateKind::Lost(error) = update.kind else { panic!("{update:?}") };
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
    assert_eq!(guard.check(), Err(error));
    assert_eq!(other.check(), Ok(()));
    drop((guard, other));
    // No loss is reported here: one lock is released in time, the other after its deadline, before
    // the client noticed.
    let (start, ttl) = (Instant::now(), 3 * SECOND);
    let released = client.lock("c", ttl).unwrap();
    released.release().unwrap();
    let late = client.lock("d", millis(20)).unwrap();
    std::thread::sleep(millis(30));
    drop(late);
    client.drive((start + ttl).saturating_duration_since(Instant::now())).unwrap();
    assert_eq!(client.poll_lock_update(), None);
    fleet.wait_empty();
}

#[test]
fn loss_that_an_extend_finds_is_an_event_and_the_answer_of_every_check() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.lock("a", TTL).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    fleet.command(&["DEL", "a"]);
    assert_eq!(guard.check(), Ok(()), "no node was asked");
    let error = guard.extend(TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    client.drive(Duration::ZERO).unwrap();
    let update = client.poll_lock_update().map(|update| update.kind);
    assert_eq!(update, Some(LockUpdateKind::Lost(error.clone())));
    assert_eq!(guard.check(), Err(error));
    assert_eq!(client.poll_lock_update(), None);
}
