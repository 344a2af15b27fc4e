//! Futures and guards that are dropped at any point: the client cancels their requests and keeps
//! nothing of them.
//!
//! `REDLATCH_TEST_DROPS=10000` says how many futures each executor drops.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use super::*;
use executor::{Boxed, Task, run_all};
use redlatch::{Error, LockOptions, SharedGuard};

/// How many futures are in flight at once.
const AT_ONCE: usize = 48;

/// Few keys, so that many futures wait for a key.
const SHARED_KEYS: u32 = 6;

fn number_of_futures() -> u32 {
    number("REDLATCH_TEST_DROPS").unwrap_or(3000)
}

/// How many futures were dropped at each point.
#[derive(Debug, Default)]
struct Tally {
    unpolled: AtomicU32,
    after_a_poll: AtomicU32,
    after_a_wake_up: AtomicU32,
    came_to_an_end: AtomicU32,
}

impl Tally {
    fn dropped(&self) -> u32 {
        let drops = [&self.unpolled, &self.after_a_poll, &self.after_a_wake_up];
        drops.iter().map(|it| it.load(Ordering::Relaxed)).sum()
    }
}

/// Drops the inner future after this many polls: at once, or at the next wake-up instead of a poll.
struct Cut {
    inner: Option<Boxed>,
    polls: u32,
    at_once: bool,
    polled: bool,
    tally: Arc<Tally>,
}

impl Cut {
    fn at_random(inner: Boxed, dice: &mut Dice, tally: &Arc<Tally>) -> Cut {
        let (polls, at_once) = (dice.roll(8), dice.roll(2) == 0);
        Cut { inner: Some(inner), polls, at_once, polled: false, tally: Arc::clone(tally) }
    }

    fn count(count: &AtomicU32) -> Poll<()> {
        count.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(())
    }
}

impl Future for Cut {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.polls == 0 {
            this.inner = None;
            let (polled, tally) = (this.polled, &this.tally);
            return Cut::count(if polled { &tally.after_a_wake_up } else { &tally.unpolled });
        }
        this.polls -= 1;
        this.polled = true;
        let inner = this.inner.as_mut().expect("it is polled to its end");
        if inner.as_mut().poll(context).is_ready() {
            this.inner = None;
            return Cut::count(&this.tally.came_to_an_end);
        }
        if this.polls == 0 && this.at_once {
            this.inner = None;
            return Cut::count(&this.tally.after_a_poll);
        }
        Poll::Pending
    }
}

/// A point at which a future may be dropped although it does not wait.
async fn pause() {
    let mut polled = false;
    poll_fn(|context| {
        if polled {
            return Poll::Ready(());
        }
        polled = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// One random action of a user of the client.
fn random_action(client: &SharedClient, number: u32, mut dice: Dice) -> Boxed {
    let client = client.clone();
    Box::pin(async move {
        let shared = dice.roll(3) > 0;
        let key = match shared {
            true => format!("shared:{}", dice.roll(SHARED_KEYS)),
            false => format!("own:{number}"),
        };
        let mut options = LockOptions::new(TTL).wait(600 * SECOND);
        if dice.roll(3) == 0 {
            options = options.auto_extend(600 * SECOND);
        }
        let got = match dice.roll(8) {
            0 => client.try_lock(&key, TTL).await,
            _ => client.lock(&key, options).await,
        };
        match got {
            Ok(guard) => random_action_with_lock(&client, guard, &key, &mut dice).await,
            Err(Error::Contended(_)) => {}
            Err(other) => panic!("{other}"),
        }
    })
}

/// One random action of a user that has a lock.
async fn random_action_with_lock(
    client: &SharedClient,
    mut guard: SharedGuard,
    key: &str,
    dice: &mut Dice,
) {
    match dice.roll(9) {
        0 => {}
        1 => pause().await,
        2 => guard.extend(2 * TTL).await.expect("it is held"),
        3 => drop(guard.release().await.expect("it is given back")),
        4 => {
            guard.auto_extend(600 * SECOND).expect("it is held");
            let mut lost = guard.lost();
            poll_fn(|context| {
                assert!(Pin::new(&mut lost).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            pause().await;
        }
        5 => {
            let token = guard.token();
            client.extend_token(key, token, 2 * TTL).await.expect("it is held");
            drop(guard.release());
        }
        6 => {
            client.inspect(key).await.expect("it is looked at");
        }
        7 => {
            // The guard gives up the lock before the release by token begins. In between the lock
            // has no owner.
            let token = guard.token();
            let under_way = guard.release();
            drop(under_way);
            client.release_token(key, token).await.expect("a quorum answers");
        }
        _ => {
            drop(guard.extend(2 * TTL));
            guard.extend(2 * TTL).await.expect("it is held");
            guard.release().await.expect("it is given back");
        }
    }
}

/// This many futures, each of which is dropped at some point unless it ends before.
fn run_dropped_futures(
    client: &SharedClient,
    tally: &Arc<Tally>,
) -> impl Iterator<Item = Boxed> + Send + use<> {
    let (client, tally) = (client.clone(), Arc::clone(tally));
    let mut dice = Dice::of_this_run();
    let mut number = 0;
    let wanted = number_of_futures();
    std::iter::from_fn(move || {
        number += 1;
        let cut = Cut::at_random(random_action(&client, number, dice.others()), &mut dice, &tally);
        (tally.dropped() < wanted).then(|| Box::pin(cut) as Boxed)
    })
}

/// Checks that the client and the nodes keep nothing of the dropped futures.
fn check_what_is_left(fleet: &Fleet, client: &SharedClient, before: Gauges, tally: &Tally) {
    println!("{tally:?}");
    fleet.wait_empty();
    nothing_is_open(client, before);
    let wanted = number_of_futures();
    assert!(tally.dropped() >= wanted, "{tally:?}");
    for count in [&tally.unpolled, &tally.after_a_poll, &tally.after_a_wake_up] {
        assert!(count.load(Ordering::Relaxed) > wanted / 30, "{tally:?}");
    }
}

#[test]
fn futures_are_dropped_anywhere_by_hand() {
    let (fleet, client) = fleet_and_client(3);
    let (before, tally) = (client.gauges(), Arc::default());
    run_all(run_dropped_futures(&client, &tally), AT_ONCE);
    check_what_is_left(&fleet, &client, before, &tally);
}

#[cfg(feature = "tokio")]
fn dropped_on(runtime: &tokio::runtime::Runtime) {
    let fleet = Fleet::start(3);
    let connect = SharedClient::connect_tokio(config(&fleet));
    let client = runtime.block_on(connect).expect("a good configuration");
    let tally = Arc::default();
    let before = runtime.block_on(async {
        while client.nodes().iter().any(|&it| it != NodeState::Ready) {
            tokio::time::sleep(millis(1)).await;
        }
        let before = client.gauges();
        let cuts = Arc::new(std::sync::Mutex::new(run_dropped_futures(&client, &tally)));
        let worker = |_| {
            let cuts = Arc::clone(&cuts);
            tokio::spawn(async move {
                let mut dice = Dice::new(7);
                loop {
                    let Some(cut) = cuts.lock().unwrap().next() else { return };
                    // A second task drops some of the futures, at any point.
                    let task = tokio::spawn(cut);
                    if dice.roll(4) == 0 {
                        for _ in 0..dice.roll(20) {
                            tokio::task::yield_now().await;
                        }
                        task.abort();
                    }
                    if let Err(error) = task.await {
                        assert!(error.is_cancelled(), "{error}");
                    }
                }
            })
        };
        let workers: Vec<_> = (0..AT_ONCE).map(worker).collect();
        for worker in workers {
            worker.await.expect("it does not panic");
        }
        // The tasks have ended. The driver goes on until every record is closed.
        let start = Instant::now();
        while client.gauges().records > 0 && start.elapsed() < 10 * SECOND {
            tokio::time::sleep(millis(1)).await;
        }
        before
    });
    runtime.block_on(async {
        let done = tokio::task::spawn_blocking(move || {
            check_what_is_left(&fleet, &client, before, &tally);
        });
        done.await.expect("nothing is left");
    });
}

#[cfg(feature = "tokio")]
#[test]
fn futures_are_dropped_anywhere_on_a_current_thread_runtime() {
    dropped_on(&tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
}

#[cfg(feature = "tokio")]
#[test]
fn futures_are_dropped_anywhere_on_a_runtime_of_several_threads() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    dropped_on(&builder.worker_threads(4).enable_all().build().unwrap());
}

/// A future that was woken because its lock is granted, and was not polled yet.
fn granted(client: &SharedClient, options: LockOptions) -> Task<impl Future + Unpin + use<>> {
    let task = Task::pending(client.lock("a", options));
    eventually(10 * SECOND, "it is granted", || task.is_woken());
    task
}

#[test]
fn a_grant_that_no_caller_took_is_released() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    for options in [LockOptions::new(TTL), LockOptions::new(TTL).auto_extend(10 * TTL)] {
        let task = granted(&client, options);
        assert_eq!(fleet.values("a").len(), 3, "all of them granted it");
        drop(task);
        fleet.wait_empty();
        nothing_is_open(&client, before);
    }
    // A caller that waits for the lock gets it.
    let task = granted(&client, LockOptions::new(TTL));
    let mut next = Task::pending(client.lock("a", TTL));
    drop(task);
    eventually(10 * SECOND, "it is granted", || next.is_woken());
    let Poll::Ready(Ok(guard)) = next.poll() else { panic!("it is not granted") };
    guard.check().unwrap();
    drop(guard);
    nothing_is_open(&client, before);
}

#[test]
fn a_waiter_that_goes_leaves_its_place_to_the_next() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    let guard = client.lock("a", TTL).wait().unwrap();
    let mut waiters: Vec<_> = (0..10).map(|_| Task::new(client.lock("a", TTL))).collect();
    waiters.iter_mut().for_each(|waiter| assert!(waiter.poll().is_pending()));
    assert_eq!(client.gauges().calls, 10);
    let mut last = waiters.pop().unwrap();
    drop(waiters);
    assert_eq!(client.gauges().calls, 1);
    drop(guard);
    eventually(10 * SECOND, "it is its turn", || last.is_woken() && last.poll().is_ready());
    fleet.wait_empty();
    nothing_is_open(&client, before);
}
