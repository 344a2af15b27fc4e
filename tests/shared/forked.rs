//! A process that forks while its threads use a client: in the child every call ends at once,
//! whichever mutex a thread of the parent held, and the parent goes on undisturbed.
//!
//! The hazard is fork() among the threads of a test harness: so the test forks in a process of its
//! own.
#![expect(unsafe_code, reason = "fork() is tried in a real child")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;

use super::*;
use crate::support::again;
use executor::Task;
use redlatch::{ClosedReason, Error, LockOptions};

/// How often the process forks, each time while its other threads are at another point.
const FORKS: u32 = 60;

#[test]
fn child_of_a_fork_waits_for_no_mutex_of_its_parent() {
    if let Some(urls) = again::nodes() {
        return fork_many_times(&urls);
    }
    let fleet = Fleet::start(3);
    let test = "child_of_a_fork_waits_for_no_mutex_of_its_parent";
    again::run(module_path!(), test, &fleet.urls());
    fleet.wait_empty();
}

fn fork_many_times(urls: &[String]) {
    let config = Config::new(urls).expect("good addresses");
    let config = config.restart_guard(RestartGuard::Off).node_timeout(10 * SECOND);
    let client = ready::shared(config);
    let kept = LockOptions::new(TTL).auto_extend(600 * SECOND);
    let guard = client.lock("kept", kept).wait().expect("it is free");
    let (stop, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (client, lease) = (client.clone(), guard.watcher());
            let (stop, pairs) = (Arc::clone(&stop), Arc::clone(&pairs));
            std::thread::spawn(move || {
                let mut lost = Task::new(lease.lost());
                while !stop.load(Ordering::Relaxed) {
                    if number == 0 {
                        drop(client.lock("a", TTL).wait().expect("it is free"));
                        pairs.fetch_add(1, Ordering::Relaxed);
                    } else if number == 1 {
                        (0..100).for_each(|_| assert!(client.gauges().records > 0));
                    } else {
                        (0..100).for_each(|_| assert!(lost.poll().is_pending()));
                    }
                }
            })
        })
        .collect();
    let (mut parts, before) = ((client, Some(guard)), pairs.load(Ordering::Relaxed));
    for _ in 0..FORKS {
        fork_once(&mut parts);
    }
    let (client, guard) = parts;
    let seen = pairs.load(Ordering::Relaxed);
    eventually(10 * SECOND, "the parent goes on", || pairs.load(Ordering::Relaxed) > seen + 10);
    assert!(seen >= before);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("it is well"));
    guard.as_ref().expect("it is the parent's").check().expect("it is held");
    assert_eq!(client.stats().nodes.iter().map(|node| node.connections).sum::<u64>(), 3);
    drop(guard);
    assert_eq!(client.close(10 * SECOND).wait(), 0);
}

/// Forks, and waits for the child. If the child hangs, a signal ends it.
fn fork_once((client, guard): &mut (SharedClient, Option<redlatch::SharedGuard>)) {
    let mut asked = Task::pending(client.lock("of a future", TTL));
    // SAFETY: the child makes only the calls that are tested here, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm sets a timer of this process alone.
        unsafe { libc::alarm(20) };
        // The parent made this request, so the parent has to get its result.
        let refused = match asked.poll() {
            Poll::Ready(result) => result.map(drop) == Err(Error::Closed(ClosedReason::Forked)),
            Poll::Pending => false,
        };
        let waiting = client.lock("of the child", TTL);
        let well = check_in_the_child(client, guard.take().expect("it has a copy"), waiting);
        // SAFETY: _exit ends the child at once.
        unsafe { libc::_exit(i32::from(!(well && refused))) };
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waitpid waits for the child that was just made, and writes one number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed, or 14: it hung");
}

fn check_in_the_child(
    client: &mut SharedClient,
    mut guard: redlatch::SharedGuard,
    waiting: redlatch::shared::Call<redlatch::shared::Acquire<&str>>,
) -> bool {
    let forked = Error::Closed(ClosedReason::Forked);
    let lease = guard.watcher();
    let ends = [
        guard.check() == Err(forked.clone()),
        lease.remaining().is_zero(),
        guard.auto_extend(TTL) == Err(forked.clone()),
        guard.extend(TTL).wait() == Err(forked.clone()),
        lease.lost().wait() == forked,
        lease.expiring().wait() == Err(forked.clone()),
        waiting.wait().map(|_| ()) == Err(forked.clone()),
        client.close(TTL).wait() == 0,
        client.nodes().is_empty(),
        guard.release().wait() == Err(forked),
    ];
    // All handles of this thread are dropped. Handles of other threads have no owner in the child.
    drop(lease);
    ends.iter().all(|&it| it)
}
