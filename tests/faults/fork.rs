//! A process that forks: whatever the child does with its copy of a client, the parent's lock and
//! connections stay as they were.
//!
//! The hazard is fork() among the threads of a test harness. So each test starts this test binary
//! once more, for that test alone and without other threads, and that process forks.
#![expect(unsafe_code, reason = "fork() is tried in a real child")]

use super::*;
use crate::support::{Monitor, Way, again};
use redlatch::{Candidate, ClosedReason, Completion, Error, LockOptions, Outcome, ReleaseOutcome};

/// Forks. Returns true in the child, which has to end with [`end_of_child`]; returns false in the
/// parent once the child has succeeded.
#[track_caller]
fn is_the_child() -> bool {
    // SAFETY: this process runs one test and has no other thread that could hold a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return true;
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waitpid waits for the child that was just made, and writes one number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
    false
}

fn end_of_child() -> ! {
    // SAFETY: _exit ends the child at once; only the parent reports the result of the test.
    unsafe { libc::_exit(0) }
}

/// The ids that the servers give the connected clients.
fn connections(fleet: &Fleet) -> Vec<Vec<String>> {
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    fleet.iter().map(|node| node.client_list().iter().map(id).collect()).collect()
}

#[test]
fn a_child_can_do_nothing_with_its_copy_of_a_client() {
    if let Some(urls) = again::nodes() {
        return the_client_forks(&urls);
    }
    let fleet = Fleet::start(3);
    let monitors: Vec<Monitor> = fleet.iter().map(Node::monitor).collect();
    let before = connections(&fleet);
    let test = "a_child_can_do_nothing_with_its_copy_of_a_client";
    again::run(module_path!(), test, &fleet.urls());
    for monitor in &monitors {
        let lines = monitor.lines();
        assert!(!lines.iter().any(|line| line.contains("of the child")), "{lines:?}");
    }
    fleet.wait_empty();
    eventually(SOON, "its connections are closed", || connections(&fleet) == before);
}

fn the_client_forks(urls: &[String]) {
    let client = client(config(urls));
    let mut guard = client.try_lock("a", TTL).unwrap();
    let other = client.try_lock("b", TTL).unwrap();
    if is_the_child() {
        let refused = client.try_lock("of the child", TTL).unwrap_err();
        let forked = Error::Closed(ClosedReason::Forked);
        assert_eq!(refused, forked);
        assert_eq!(client.lock("of the child", TTL).unwrap_err(), forked);
        assert_eq!(client.inspect("of the child").unwrap_err(), forked);
        let me = Candidate::named("of the child");
        assert_eq!(client.campaign("of the child", me, TTL).unwrap_err(), forked);
        assert_eq!(client.observe("of the child").unwrap_err(), forked);
        assert_eq!(client.leader("of the child").unwrap_err(), forked);
        assert_eq!(guard.check().unwrap_err(), forked, "the lock is the parent's");
        assert_eq!(guard.extend(TTL).unwrap_err(), forked);
        assert_eq!(client.drive(millis(50)).unwrap_err().to_string(), forked.to_string());
        assert_eq!(other.release().unwrap_err(), forked);
        drop(guard);
        drop(client);
        end_of_child();
    }
    check_unchanged(&client, &mut guard);
    if is_the_child() {
        // The child only reads its copy of the guard.
        assert_eq!((guard.remaining(), guard.deadline()), (Duration::ZERO, None));
        end_of_child();
    }
    if is_the_child() {
        let refused = guard.auto_extend(TTL * 10).expect_err("the lock is the parent's to keep");
        assert_eq!(refused, Error::Closed(ClosedReason::Forked));
        end_of_child();
    }
    check_unchanged(&client, &mut guard);
    if is_the_child() {
        // The child drops everything without a call before it.
        drop(other);
        drop(guard);
        drop(client);
        end_of_child();
    }
    check_unchanged(&client, &mut guard);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(other.release().unwrap(), ReleaseOutcome::Released);
}

fn check_unchanged(client: &Client, guard: &mut redlatch::Guard<'_>) {
    guard.check().unwrap();
    assert_eq!(client.nodes(), [NodeState::Ready; 3]);
    guard.extend(TTL).unwrap();
    for _ in 0..20 {
        let another = client.try_lock("c", TTL).unwrap();
        assert_eq!(another.release().unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(client.nodes(), [NodeState::Ready; 3]);
}

#[test]
fn a_child_takes_no_answer_from_its_parents_connections() {
    if let Some(urls) = again::nodes() {
        return the_engine_forks(&urls);
    }
    let nodes = Proxied::start(3);
    // The answers to the SETs arrive long after the fork.
    let test = "a_child_takes_no_answer_from_its_parents_connections";
    nodes.proxies.iter().for_each(|proxy| proxy.delay(Way::ToClient, millis(300)));
    again::run(module_path!(), test, &nodes.urls());
    assert!(nodes.proxies.iter().all(|proxy| proxy.accepted() == 1), "a connection was replaced");
    eventually(SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

/// An engine on a poller of its own, which forks while it waits for the answers.
fn the_engine_forks(urls: &[String]) {
    let mut embedded = Loop::new(config(urls));
    embedded.turn_until("the nodes are ready", |engine| engine.coordinator().ready().len() == 3);
    embedded.engine.acquire("a", LockOptions::once(TTL), 7).unwrap();
    embedded.engine.prepare();
    if is_the_child() {
        // The child drives its engine until the answers have arrived, and sends nothing to the
        // nodes before it ends.
        let start = Instant::now();
        while start.elapsed() < millis(600) {
            embedded.turn();
            while let Some(Completion { data, result, .. }) = embedded.engine.poll_completion() {
                assert!(result.is_err(), "{data}: the child has the parent's lock: {result:?}");
            }
        }
        drop(embedded);
        end_of_child();
    }
    let start = Instant::now();
    let is_granted = |engine: &mut Engine| engine.coordinator().has_completions();
    embedded.turn_until("the lock is granted, and not handed out", is_granted);
    if is_the_child() {
        // The child begins a turn before it asks for completions.
        embedded.engine.prepare();
        let ended = embedded.engine.poll_completion().map(|done| done.result);
        assert!(!matches!(ended, Some(Ok(_))), "the child has the parent's lock: {ended:?}");
        end_of_child();
    }
    let mut completion = None;
    embedded.turn_until("the parent has its answer", |engine| {
        completion = engine.poll_completion();
        completion.is_some()
    });
    let Some(Completion { data: 7, result: Ok(Outcome::Acquired(lock)), .. }) = completion else {
        panic!("{completion:?}")
    };
    println!("the parent has its lock {:?} after the child's end", start.elapsed());
    assert_eq!(embedded.engine.coordinator().ready().len(), 3);
    embedded.engine.release(lock, 8);
    embedded.turn_until("and its release", |engine| engine.poll_completion().is_some());
}
