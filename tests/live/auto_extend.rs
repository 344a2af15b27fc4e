//! Auto-extend on real servers: a lock is renewed as long as it may be and not longer, and never
//! after its release.

use std::collections::HashSet;

use super::monitor_lines::{What, heard};
use super::*;
use crate::support::{Monitor, Node, again};
use redlatch::{AutoExtend, Lock, LostReason, NodeError, NodeReply, Outcome, ReleaseOutcome};

/// How many locks a test acquires in one turn, and then releases one by one while they are renewed.
const WAVE: usize = 1_000;

/// Acquires as many locks as a wave has, each with auto-extend.
fn acquire_wave(embedded: &mut Loop, wave: usize, ttl: Duration) -> Vec<Lock> {
    for n in 0..WAVE {
        let (key, data) = (format!("{wave}:{n}"), n as u64 + 1);
        embedded.engine.acquire(key, kept(ttl), data).unwrap();
    }
    let locks = (0..WAVE).map(|_| match embedded.completion().result {
        Ok(Outcome::Acquired(lock)) => lock,
        other => panic!("{other:?}"),
    });
    locks.collect()
}

/// Checks that no node prolonged or set a token after its release.
fn check_none_is_prolonged_after_its_release(monitor: &Monitor) {
    let mut released = HashSet::new();
    for heard in heard(monitor) {
        match heard.what {
            What::Release => {
                released.insert(heard.token);
            }
            _ => assert!(!released.contains(&heard.token), "{heard:?} after its release"),
        }
    }
}

#[test]
fn ten_thousand_releases_while_renewals_are_under_way_leave_nothing() {
    let ttl = 3 * SECOND;
    let fleet = Fleet::start(3);
    let mut embedded = Loop::ready(config(&fleet).node_timeout(5 * SECOND));
    let mut dice = Dice::new(1);
    let (mut in_flight, mut good) = (0, 0);
    let start = Instant::now();
    for wave in 0..10 {
        let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
        let mut locks = acquire_wave(&mut embedded, wave, ttl);
        let (mut ended, mut renews) = (0, false);
        while ended < WAVE {
            // `prepare` writes the renewals that are due, and reads no answer to them yet.
            embedded.engine.prepare();
            let busy = embedded.engine.coordinator().unanswered(NodeId::new(0)) > 100;
            // The first renewals come after a third of the ttl. On a fast machine all locks would
            // be released by then.
            renews |= busy;
            for _ in 0..if busy { 50 } else { usize::from(renews) * dice.place(3) } {
                if !locks.is_empty() {
                    let lock = locks.swap_remove(dice.place(locks.len()));
                    embedded.engine.release(lock, 0);
                    in_flight += usize::from(busy);
                }
            }
            embedded.turn();
            while let Some(done) = embedded.engine.poll_completion() {
                if done.data == 0 {
                    ended += 1;
                    good +=
                        usize::from(done.result == Ok(Outcome::Released(ReleaseOutcome::Released)));
                }
            }
        }
        embedded.turn_until("nothing is open", |engine| engine.coordinator().open_records() == 0);
        fleet.wait_empty();
        monitors.iter().for_each(check_none_is_prolonged_after_its_release);
    }
    println!(
        "10,000 locks in {:?}: {} renewals; {good} released; {in_flight} of them while renewals \
         were under way",
        start.elapsed(),
        embedded.engine.stats().renewed,
    );
    assert!(in_flight > 300, "renewals and releases did not meet: {in_flight}");
    assert!(good > 5_000, "the machine is too slow to show anything");
    assert_eq!(embedded.engine.coordinator().open_ops(), 0);
    fleet.wait_empty();
}

#[test]
fn auto_extend_for_ten_ttls_that_ends_by_its_extensions_leaves_nothing() {
    despite_stalls(millis(500), |times| {
        extensions_end(times * SECOND);
    });
}

fn extensions_end(ttl: Duration) {
    let (fleet, client) = fleet_and_client(3);
    let start = Instant::now();
    let guard =
        client.lock("a", LockOptions::new(ttl).auto_extend(AutoExtend::extensions(30))).unwrap();
    let told = client.until_lost(&guard);
    let lasted = start.elapsed();
    let ended = Instant::now();
    wait_until_all_keys_end(&fleet);
    let left = ended.elapsed();
    let renewed = client.stats().renewed;
    println!("30 extensions of a third of {ttl:?}: lost after {lasted:?}, nothing left {left:?}");
    assert_eq!((told.reason(), renewed), (LostReason::Extensions, 30));
    assert!(lasted > 10 * ttl);
    check_warned_once(&told);
    assert!(client.poll_lock_update().is_none());
    assert_eq!(guard.check().unwrap_err(), told.error);
    // The lock is over, so the release has nothing to delete.
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::AlreadyExpired);
}

/// Checks that the holder was warned once at most of each deadline, and of the last one.
#[track_caller]
fn check_warned_once(told: &ReportedLoss) {
    assert!(told.warnings.windows(2).all(|two| two[0] < two[1]), "warned twice: {told:?}");
    assert_eq!(told.warnings.last(), Some(&told.deadline), "not warned of the end");
}

#[test]
fn lock_that_expires_leaves_no_key_a_node_timeout_after_its_ttl() {
    despite_stalls(millis(400), |times| {
        leaves_nothing_behind_its_ttl(times * SECOND, times * millis(100));
    });
}

fn leaves_nothing_behind_its_ttl(ttl: Duration, node_timeout: Duration) {
    let fleet = Fleet::start(3);
    let client = ready::client(config(&fleet).node_timeout(node_timeout));
    let guard = client.lock("a", kept(ttl)).unwrap();
    client.drive(10 * ttl).unwrap();
    guard.check().expect("ten ttls are over, and it is held");
    assert!(client.stats().renewed >= 20, "{}", client.stats().renewed);
    fleet.iter().for_each(Node::stop);
    let told = client.until_lost(&guard);
    assert_eq!(told.reason(), LostReason::Expired);
    check_warned_once(&told);
    fleet.iter().for_each(Node::cont);
    // The nodes execute what was sent before the stop, and then the pending releases.
    let limit = ttl + node_timeout;
    let left = client.drive_until(limit, "nothing", || fleet.keys_everywhere().is_empty());
    println!("all stopped behind ten ttls: lost, and nothing is left {left:?} after they go on");
}

#[test]
fn max_hold_ends_auto_extend_and_no_key_outlives_it() {
    despite_stalls(millis(500), |times| {
        max_hold_ends_it(times * 3 * SECOND, times * millis(3100), times * SECOND);
    });
}

/// An extend may be in flight for `on_its_way` at most. If a renewal asked for the whole ttl, the
/// key would outlive `max_hold` by nearly twice that time.
fn max_hold_ends_it(ttl: Duration, max_hold: Duration, on_its_way: Duration) {
    let (fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", LockOptions::new(ttl).auto_extend(max_hold)).unwrap();
    // `max_hold` counts from before this moment. An extend may be in flight for `on_its_way`, and
    // no longer.
    let end = Instant::now() + max_hold + on_its_way;
    let mut warnings = Vec::new();
    let mut latest = Duration::ZERO;
    let error = loop {
        client.drive(millis(5)).unwrap();
        for node in &fleet {
            let now = Instant::now();
            let left = millis(u64::try_from(node.pttl("a")).unwrap_or(0));
            assert!(now + left <= end, "its key lives {:?} too long", now + left - end);
            latest = latest.max((now + left).saturating_duration_since(end - max_hold));
        }
        match client.poll_lock_update().map(|notice| notice.kind) {
            Some(LockUpdateKind::Expiring { deadline, .. }) => warnings.push(deadline),
            Some(LockUpdateKind::Lost(error)) => break error,
            _ => {}
        }
    };
    println!("max_hold {max_hold:?}: {error}; keys lived up to {:?}", latest + on_its_way);
    assert!(matches!(error, Error::Lost { reason: LostReason::MaxHold, .. }), "{error}");
    assert!(Instant::now() + on_its_way + millis(100) > end, "it ended too early");
    assert!(!warnings.is_empty() && warnings.windows(2).all(|two| two[0] < two[1]));
    wait_until_all_keys_end(&fleet);
    client.drive(millis(50)).unwrap();
    assert!(client.poll_lock_update().is_none(), "an update was reported twice");
    drop(guard);
    // With a ttl above `max_hold` the lock ends with `max_hold`, too.
    let guard = client.lock("a", LockOptions::new(TTL).auto_extend(millis(700))).unwrap();
    assert!(guard.remaining() <= millis(700));
    let told = client.until_lost(&guard);
    assert_eq!((told.reason(), told.warnings.len()), (LostReason::MaxHold, 1));
    // The client sends the releases at the deadline, a moment after the report.
    client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn extending_works_where_memory_is_full() {
    // The ttl is so long that the renewals go on if the machine stalls for two seconds.
    let ttl = 4 * SECOND;
    let (fleet, client) = fleet_and_client(3);
    let mut plain = client.try_lock("plain", TTL).unwrap();
    let guard = client.lock("kept", kept(ttl)).unwrap();
    client.drive_until(SOON, "all have them", || fleet.keys_everywhere().len() == 6);
    fleet.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = client.try_lock("another", ttl).unwrap_err();
    println!("{error}");
    let report = error.report().expect("the nodes were asked");
    let full = NodeReply::Failed(NodeError::OutOfMemory);
    assert!(report.nodes.iter().filter(|node| node.reply == full).count() >= 2, "{error}");
    plain.extend(3 * TTL).expect("it needs no memory");
    for node in &fleet {
        eventually(SOON, "it is prolonged there", || node.pttl("plain") > 15_000);
    }
    // An extend with a shorter ttl shortens nothing, neither the deadline nor the keys.
    let before = plain.deadline();
    plain.extend(millis(100)).unwrap();
    client.drive(2 * ttl).unwrap();
    assert_eq!(plain.deadline(), before);
    assert!(fleet.iter().all(|node| node.pttl("plain") > 5_000));
    guard.check().expect("it was renewed all the time");
    // The node has no memory for the heal. The client tries again, and keeps the lock meanwhile.
    fleet[0].command(&["DEL", "kept"]);
    client.drive(ttl).unwrap();
    guard.check().expect("two of three hold it");
    assert_eq!(fleet[0].get("kept"), None);
    assert!(fleet[0].command(&["CONFIG", "SET", "maxmemory", "0"]).is_ok());
    let healed = || fleet[0].get("kept").is_some();
    let took = client.drive_until(2 * ttl, "it is healed", healed);
    println!("ttl {ttl:?}: healed {took:?} after there was memory again");
    assert_eq!(plain.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn ttl_of_zero_is_never_sent() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock("a", TTL).unwrap();
    client.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let token = guard.token();
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    for ttl in [Duration::ZERO, Duration::from_nanos(1), millis(1), millis(2), Duration::MAX] {
        assert!(matches!(guard.extend(ttl), Err(Error::Config(_))), "{ttl:?}");
        assert!(matches!(client.extend_token("a", token.clone(), ttl), Err(Error::Config(_))));
        assert!(matches!(client.adopt("a", token.clone(), ttl), Err(Error::Config(_))));
        assert!(matches!(client.lock("b", kept(ttl)), Err(Error::Config(_))));
    }
    for max_hold in [Duration::ZERO, millis(2)] {
        assert!(matches!(guard.auto_extend(max_hold), Err(Error::Config(_))), "{max_hold:?}");
        let options = LockOptions::new(TTL).auto_extend(max_hold);
        assert!(matches!(client.lock("b", options), Err(Error::Config(_))));
    }
    client.drive(millis(50)).unwrap();
    for monitor in &monitors {
        let mut lines = monitor.lines();
        lines.retain(|line| !line.contains("\"TIME\""));
        assert_eq!(lines, [""; 0], "something was sent");
    }
    guard.check().unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
}

/// How many scripts the node was asked to run by their SHA1.
fn scripts_run(node: &Node) -> u64 {
    let stats = node.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap_or_default().parse().expect("a number"))
}

/// Makes the node drop all but one of the keys whose changes it has to push to the client. A node
/// pushes no eviction to the client whose command caused it (NOLOOP), so another connection causes
/// them.
fn drop_registrations(node: &Node) {
    let most = |keys: &str| node.command(&["CONFIG", "SET", "tracking-table-max-keys", keys]);
    assert!(most("1").is_ok());
    // One command evicts a hundred keys at most.
    for _ in 0..4 {
        node.command(&["PING"]);
    }
    assert!(most("1000000").is_ok());
}

#[test]
fn nodes_that_drop_registrations_cause_no_storm_of_checks() {
    const LOCKS: u64 = 200;
    // The ttl is so long that the renewals go on if the machine stalls for two seconds.
    let (ttl, ttls) = (4 * SECOND, 2);
    let fleet = Fleet::with(3, &["--tracking-table-max-keys", "1"]);
    let client = client(&fleet);
    let guards: Vec<Guard> =
        (0..LOCKS).map(|n| client.lock(format!("k{n}"), kept(ttl)).unwrap()).collect();
    // At first each node drops registrations because its table has room for one key. Then the test
    // makes it drop all of them, again and again, as fast as possible.
    for pushed in [false, true] {
        let before: Vec<u64> = fleet.iter().map(scripts_run).collect();
        let start = Instant::now();
        while start.elapsed() < ttls * ttl {
            if pushed {
                fleet.iter().for_each(drop_registrations);
            }
            client.drive(millis(10)).unwrap();
            guards.iter().for_each(|guard| guard.check().expect("it is kept"));
        }
        let lasted = start.elapsed();
        let in_ttls = lasted.as_secs_f64() / ttl.as_secs_f64();
        // In each ttl a lock may cause 20 checks and 3 renewals. Requests that were in flight at
        // the beginning come on top.
        let most = (LOCKS as f64 * (23.0 * in_ttls + 3.0)) as u64;
        for (node, before) in fleet.iter().zip(before) {
            let asked = scripts_run(node) - before;
            println!(
                "{LOCKS} locks, ttl {ttl:?}, {lasted:?}, pushed {pushed}: {asked} extends, {:.1} \
                 for each in a ttl (the rule allows {most} in all)",
                asked as f64 / LOCKS as f64 / in_ttls,
            );
            assert!(asked <= most, "{asked} of {most}");
            let many = asked > 5 * LOCKS * u64::from(ttls);
            assert!(many || !pushed, "nothing was pushed: {asked}");
        }
    }
    assert_eq!(client.stats().lost, 0);
    assert_eq!(fleet.keys_everywhere().len() as u64, 3 * LOCKS);
    drop(guards);
    client.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

/// The time that is left on each timer that goes on in suspend, if it is at least a tenth of a
/// second: a shorter sleep uses such a timer, too, for its precision.
#[cfg(target_os = "linux")]
fn timers_of_suspend() -> Vec<Duration> {
    let left = |text: String| {
        // Clock 7 is CLOCK_BOOTTIME.
        text.lines().find(|&line| line == "clockid: 7")?;
        let left = text.lines().find_map(|line| line.strip_prefix("it_value: ("))?;
        let (seconds, nanos) = left.strip_suffix(')')?.split_once(", ")?;
        Some(Duration::new(seconds.parse().ok()?, nanos.parse().ok()?))
    };
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let all = files.filter_map(|file| left(std::fs::read_to_string(file.path()).ok()?));
    all.filter(|&left| left >= millis(100)).collect()
}

/// A poller's timeout does not count the time in which the machine is suspended, so it alone would
/// delay a report by that time.
#[cfg(target_os = "linux")]
#[test]
fn auto_extend_is_woken_by_a_timer_that_goes_on_in_suspend() {
    // /proc lists the timers of all clients of a process. So the test looks at a process that has
    // only one client.
    if let Some(urls) = again::nodes() {
        return auto_extends_with_one_timer(urls);
    }
    let fleet = Fleet::start(3);
    let test = "auto_extend_is_woken_by_a_timer_that_goes_on_in_suspend";
    again::run(module_path!(), test, &fleet.urls());
}

#[cfg(target_os = "linux")]
fn auto_extends_with_one_timer(urls: Vec<String>) {
    let client = ready::client(plain(urls).node_timeout(millis(500)));
    client.drive(millis(20)).unwrap();
    assert!(timers_of_suspend().is_empty(), "no lock needs one");
    let guard = client.lock("a", kept(60 * SECOND)).unwrap();
    // The timer may have fired already; then the next sleep sets it again.
    client.drive_until(SOON, "it is set", || timers_of_suspend().len() == 1);
    guard.release().unwrap();
}
