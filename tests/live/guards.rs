//! Guards and waiting, as a user of the blocking client meets them.

use super::*;
use redlatch::{Error, LockOptions, ReleaseOutcome};

#[test]
fn guard_and_event_are_printed_as_one_readable_line() {
    let fleet = Fleet::start(3);
    let client = ready::client(config(&fleet).owner("web-1:7"));
    let key = "invoice\r\n42";
    let guard = client.try_lock(key, LockOptions::new(TTL).wait_forever()).unwrap();
    let (line, token) = (format!("{guard:?} {guard:#?}"), guard.token().to_string());
    let head = format!("Guard {{ key: \"invoice\\r\\n42\", token: {token}, remaining: ");
    assert!(line.starts_with(&head) && !line.contains(['\n', '[']), "{line}");
    assert!(token.ends_with(":web-1:7"));
    // `try_lock` follows the options, but does not wait.
    let error = client.try_lock(key, LockOptions::new(TTL).wait_forever()).unwrap_err();
    assert!(error.is_contended() && error.is_retryable(), "{error}");
    let short = client.lock("short", kept(millis(50))).unwrap();
    eventually(SOON, "its loss is reported", || {
        std::thread::sleep(millis(60));
        short.check().is_err()
    });
    let update = client.poll_lock_update().expect("a kept lock reports its end");
    let line = format!("{update:?}");
    assert!(line.starts_with("LockUpdate { key: \"short\", token: "), "{line}");
    drop(guard);

    let shared = ready::shared(config(&fleet));
    let guard = shared.try_lock(key, kept(TTL)).wait().unwrap();
    let token = guard.token().to_string();
    for (name, line) in
        [("SharedGuard", format!("{guard:?}")), ("LockWatcher", format!("{:?}", guard.watcher()))]
    {
        let head = format!("{name} {{ key: \"invoice\\r\\n42\", token: {token}, remaining: ");
        assert!(line.starts_with(&head) && line.len() < head.len() + 20, "{line}");
    }
}

#[test]
fn a_guard_that_is_dropped_gives_its_lock_back() {
    let (fleet, client) = fleet_and_client(5);
    let guard = client.try_lock("a", TTL).unwrap();
    drop(guard);
    fleet.wait_empty();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = client.try_lock("a", TTL).unwrap();
        panic!("the work failed");
    }));
    assert!(panicked.is_err());
    fleet.wait_empty();
    assert!(client.try_lock("a", TTL).is_ok());
}

#[test]
fn guards_of_one_client_can_be_held_at_the_same_time() {
    let (fleet, client) = fleet_and_client(3);
    let mut guards: Vec<_> =
        (0..20).map(|n| client.try_lock(format!("k{n}"), TTL).unwrap()).collect();
    assert_eq!(guards[7].key(), b"k7");
    for guard in &mut guards {
        guard.extend(TTL).unwrap();
        guard.check().unwrap();
    }
    for guard in guards {
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    }
    fleet.wait_empty();
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_given_back_and_not_before() {
    let fleet = Fleet::start(3);
    let first = client(&fleet);
    let guard = first.try_lock("a", TTL).unwrap();
    let waiting = config(&fleet);
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let second = ready::client(waiting);
        let guard = second.lock("a", TTL).unwrap();
        sender.send(guard.token()).unwrap();
        guard.release().unwrap()
    });
    assert!(receiver.recv_timeout(millis(300)).is_err(), "two hold it at once");
    let token = guard.token();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    let next = receiver.recv_timeout(5 * SECOND).expect("the waiter gets it");
    assert_ne!(next, token);
    assert_eq!(waiter.join().unwrap(), ReleaseOutcome::Released);
}

#[test]
fn a_wait_that_runs_out_returns_the_last_error_and_leaves_nothing_of_its_own() {
    let fleet = Fleet::start(3);
    let (first, second) = (client(&fleet), client(&fleet));
    let guard = first.try_lock("a", TTL).unwrap();
    let start = Instant::now();
    let error = second.lock("a", LockOptions::new(TTL).wait(millis(200))).unwrap_err();
    assert!(matches!(error, Error::Contended(_)), "{error}");
    assert!(start.elapsed() >= millis(200) && start.elapsed() < TTL / 2);
    let token = guard.token().to_string().into_bytes();
    assert!(fleet.values("a").iter().all(|held| *held == token));
    drop(guard);
    fleet.wait_empty();
}

#[test]
fn every_attempt_has_a_token_of_its_own() {
    let fleet = Fleet::start(3);
    let (first, second) = (client(&fleet), client(&fleet));
    let guard = first.try_lock("a", 60 * SECOND).unwrap();
    let monitor = fleet[0].monitor();
    let sets = || -> Vec<String> {
        monitor.lines().into_iter().filter(|line| line.contains("\"SET\"")).collect()
    };
    for _ in 0..3 {
        assert!(second.lock("a", LockOptions::new(SECOND).wait(millis(100))).is_err());
    }
    eventually(SOON, "each request makes an attempt", || sets().len() >= 3);
    guard.check().expect("it was held all the time");
    drop(guard);
    let sets = sets();
    let mut tokens: Vec<&str> = sets.iter().filter_map(|l| l.split('"').nth(5)).collect();
    let attempts = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), attempts, "a token was used twice: {sets:?}");
}

#[test]
fn keys_of_any_bytes_are_sent_exactly() {
    let (fleet, client) = fleet_and_client(3);
    let keys: [&[u8]; 6] =
        [b"", b"\0", b"a\r\nb", b"*3\r\n$3\r\nSET\r\n", b"\xff\xfe{}", "clé 🔒".as_bytes()];
    for key in keys {
        let guard = client.try_lock(key, TTL).unwrap();
        eventually(SOON, "it is there", || fleet.keys_everywhere().len() == 3);
        assert!(fleet.keys_everywhere().iter().all(|(_, held)| held == key), "{key:?}");
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        fleet.wait_empty();
    }
}

#[test]
fn extending_prolongs_and_never_shortens() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock("a", TTL).unwrap();
    let before = guard.deadline().unwrap();
    guard.extend(3 * TTL).unwrap();
    let after = guard.deadline().unwrap();
    assert!(after.saturating_since(before) > TTL);
    guard.extend(millis(100)).unwrap();
    assert!(guard.deadline().unwrap() == after, "an extend shortened the lock");
    for node in fleet.iter() {
        eventually(SOON, "it is prolonged there", || node.pttl("a") > 15_000);
    }
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
}

#[test]
fn extend_of_an_absent_key_returns_lost_and_creates_no_key() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock("a", TTL).unwrap();
    eventually(SOON, "all have it", || fleet.values("a").len() == 3);
    for node in [&fleet[0], &fleet[1]] {
        node.command(&["DEL", "a"]);
    }
    let error = guard.extend(TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(guard.check().is_err() && guard.remaining().is_zero());
    client.drive(millis(20)).unwrap();
    fleet.wait_empty();
}

#[test]
fn an_extend_is_asked_again_while_too_few_answer_and_ends_at_the_deadline() {
    let fleet = Fleet::start(3);
    // The node timeout is shorter than the ttl, so that the client asks for the extends again.
    let client = ready::client(config(&fleet).node_timeout(millis(250)));
    // `lock` waits and tries again, because a node that the machine stalls misses so short a
    // timeout.
    let mut guard = client.lock("a", 4 * SECOND).unwrap();
    let deadline = guard.deadline().unwrap();
    fleet.on([0, 1], Node::stop);
    let error = guard.extend(TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(redlatch::clock::now() >= deadline, "it gave up before the deadline");
    fleet.on([0, 1], Node::cont);
    client.wait_ready(3);
    fleet.wait_empty();

    let mut guard = client.lock("a", TTL).unwrap();
    fleet.on([0, 1], Node::stop);
    let (ports, pids) = ([fleet[0].port(), fleet[1].port()], [fleet[0].pid(), fleet[1].pid()]);
    let helper = std::thread::spawn(move || {
        std::thread::sleep(millis(800));
        for pid in pids {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        }
        ports.len()
    });
    guard.extend(3 * TTL).expect("they answer again before the deadline");
    assert_eq!(helper.join().unwrap(), 2);
    assert!(guard.remaining() > TTL);
}
