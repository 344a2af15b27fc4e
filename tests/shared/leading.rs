//! Which thread drives the client: a thread that waits for its call and drives the client meanwhile
//! is the leader. Each test is one way in which one thread hands the poller to another.
//!
//! Nothing else wakes the client here: no probe and no timeout for an hour. So a wake-up that is
//! lost ends a test by its watchdog.

use std::sync::Barrier;

use super::*;
use crate::support::PlainTimer;
use executor::Task;
use redlatch::{ClosedReason, Error, LockOptions};

const HOUR: Duration = Duration::from_secs(3600);

fn client_without_timers(fleet: &Fleet) -> SharedClient {
    let config = config(fleet).node_timeout(HOUR).probe_interval(HOUR).reset_after(HOUR);
    ready::shared(config)
}

fn lock_and_release(client: &SharedClient, key: &str) {
    let guard = client.lock(key, 60 * SECOND).wait().expect("a free key");
    guard.release().wait().expect("it is held");
}

/// Makes the thread that calls this the leader with its next request.
fn lead_next(client: &SharedClient) {
    (0..3).for_each(|_| lock_and_release(client, "first"));
}

fn options_that_wait(duration: Duration) -> LockOptions {
    LockOptions::new(60 * SECOND).wait(duration)
}

/// Waits until this many calls wait for their results.
fn calls(client: &SharedClient, count: usize) {
    eventually(10 * SECOND, "the calls wait", || client.gauges().calls == count);
}

#[test]
fn calls_go_on_after_the_call_of_the_leader_ended_or_timed_out() {
    let fleet = Fleet::start(3);
    let (holder, client) = (client(&fleet), client_without_timers(&fleet));
    in_time("a leader ends before the others", move || {
        for number in 0..20 {
            let held = holder.lock("held", 60 * SECOND).wait().unwrap();
            std::thread::scope(|scope| {
                lead_next(&client);
                let leader = scope.spawn(|| {
                    if number % 2 == 0 {
                        client
                            .lock("held", options_that_wait(millis(30)))
                            .wait()
                            .expect_err("it is held");
                    } else {
                        (0..30).for_each(|_| lock_and_release(&client, "free"));
                    }
                });
                let follows = scope.spawn(|| client.lock("held", options_that_wait(HOUR)).wait());
                leader.join().unwrap();
                drop(held);
                follows.join().unwrap().expect("it is free").release().wait().unwrap();
            });
        }
    });
}

#[test]
fn futures_are_served_while_the_poller_is_free_and_while_a_thread_leads() {
    let fleet = Fleet::start(3);
    let (holder, client) = (client(&fleet), client_without_timers(&fleet));
    in_time("a future beside a leader", move || {
        for number in 0..50 {
            lead_next(&client);
            let call = Task::pending(client.lock("future", 60 * SECOND));
            eventually(10 * SECOND, "the driver serves it", || call.is_woken());
            drop(call);
            // This thread is the leader for longer than the driver sleeps at a time.
            let held = holder.lock("held", 60 * SECOND).wait().unwrap();
            std::thread::scope(|scope| {
                lead_next(&client);
                let leader = scope.spawn(|| client.lock("held", options_that_wait(HOUR)).wait());
                calls(&client, 1);
                std::thread::sleep(millis(number % 8));
                let call = Task::pending(client.lock("future", 60 * SECOND));
                eventually(10 * SECOND, "the leader serves it", || call.is_woken());
                let last = Task::pending(client.lock("held", options_that_wait(HOUR)));
                drop(held);
                leader.join().unwrap().expect("it is free").release().wait().unwrap();
                eventually(10 * SECOND, "the driver goes on", || last.is_woken());
            });
        }
    });
}

#[test]
fn threads_that_compete_to_drive_the_client_all_end() {
    let fleet = Fleet::start(3);
    let client = client_without_timers(&fleet);
    in_time("two threads at once", move || {
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            for name in ["a", "b"] {
                let (client, begin) = (&client, &begin);
                scope.spawn(move || {
                    for number in 0..300_u64 {
                        begin.wait();
                        // Some rounds begin while the driver sleeps, others while it polls.
                        std::thread::sleep(Duration::from_micros(number % 30 * 100));
                        lock_and_release(client, name);
                    }
                });
            }
        });
    });
}

#[test]
fn thread_that_drives_the_client_ends_with_it() {
    let fleet = Fleet::start(3);
    let holder = client(&fleet);
    for by_close in [true, false] {
        let client = client_without_timers(&fleet);
        let held = holder.lock("held", 60 * SECOND).wait().unwrap();
        in_time("a close while a thread leads", move || {
            std::thread::scope(|scope| {
                lead_next(&client);
                let leader = scope.spawn(|| client.lock("held", options_that_wait(HOUR)).wait());
                calls(&client, 1);
                if by_close {
                    std::thread::sleep(millis(5));
                }
                assert_eq!(client.close(10 * SECOND).wait(), 0);
                let error = leader.join().unwrap().expect_err("it is held");
                assert_eq!(error, Error::Closed(ClosedReason::Asked));
            });
        });
        drop(held);
        fleet.wait_empty();
    }
}

/// A lock reaches its deadline while no thread polls, or while one thread is the leader for long.
#[test]
fn a_loss_is_reported_before_the_deadline_whichever_thread_drives() {
    despite_stalls(millis(100), |times| loss_is_reported_in_time(times * millis(300)));
}

fn loss_is_reported_in_time(ttl: Duration) {
    let fleet = Fleet::start(3);
    let (holder, client) = (client(&fleet), client_without_timers(&fleet));
    let held = holder.lock("held", 60 * SECOND).wait().unwrap();
    in_time("a loss", move || {
        for leads in [false, true] {
            let guard = client.lock("lost", ttl).wait().unwrap();
            let deadline = guard.deadline().expect("it is held");
            let lost = Task::pending(guard.lost());
            let (timer, mut plain) = (PlainTimer::start(), Duration::ZERO);
            std::thread::scope(|scope| {
                if leads {
                    scope.spawn(|| {
                        client.lock("held", options_that_wait(SECOND + ttl)).wait().unwrap_err()
                    });
                }
                while !lost.is_woken() {
                    if !leads {
                        lock_and_release(&client, "free");
                    }
                    let late = redlatch::clock::now().saturating_since(deadline);
                    plain = plain.max(timer.latest());
                    assert!(
                        late < PlainTimer::limit_of(millis(50), plain),
                        "it is not reported {late:?} after the deadline; a plain timer: {plain:?}"
                    );
                }
            });
        }
        drop(held);
    });
}
