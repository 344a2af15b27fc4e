//! The hand-overs of the poller, one by one. Some tests make the naps of the driver endless: then
//! only the wake-up that such a test is about can help.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Waker};

use super::super::SharedClient;
use super::super::inner::BUSY;
use super::*;
use crate::config::Config;
use crate::net::clock;
use crate::proto::lock_options::LockOptions;
use crate::proto::settings::RestartGuard;
use crate::testing::tcp::{LocalMaster, Masters};

const TTL: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const TEN_SECONDS: Duration = Duration::from_secs(10);

fn client(masters: &Masters) -> SharedClient {
    let config = Config::new(masters.urls()).unwrap().restart_guard(RestartGuard::Off);
    let config = config.node_timeout(HOUR).probe_interval(HOUR).reset_after(HOUR);
    SharedClient::connect_blocking(config).unwrap()
}

fn pairs(client: &SharedClient, count: usize) {
    for _ in 0..count {
        client.lock("alone", TTL).wait().unwrap().release().wait().unwrap();
    }
}

fn driving<T>(client: &SharedClient, act: impl FnOnce(&mut Driving) -> T) -> T {
    client.owner.inner.with(|open| act(open.driving)).unwrap()
}

fn leads(client: &SharedClient) -> u64 {
    driving(client, |driving| driving.leads)
}

/// From its next nap on, the driver takes the poller only if it is roused.
fn never_awake_by_itself(client: &SharedClient) {
    driving(client, |driving| driving.nap = HOUR);
}

/// Makes the poller free.
fn free_the_poller(client: &SharedClient) {
    while !driving(client, |driving| driving.is_free()) {
        pairs(client, 2);
    }
}

/// Waits until `holds` returns true, for up to ten seconds.
#[track_caller]
fn comes_true(what: &str, holds: impl Fn() -> bool) {
    let start = clock::now();
    while !holds() {
        assert!(clock::now().saturating_since(start) < TEN_SECONDS, "not in time: {what}");
        std::thread::yield_now();
    }
}

fn takes_over(client: &SharedClient) {
    comes_true("the driver takes the poller", || !driving(client, |driving| driving.is_free()));
}

/// A leader that has made no turn yet.
fn begin(client: &SharedClient) -> Lead<'_> {
    loop {
        pairs(client, 2);
        let inner = &*client.owner.inner;
        if let Some(lead) = inner.with(|open| Lead::begin(inner, open)).unwrap() {
            return lead;
        }
    }
}

/// A call of another thread, which waits.
fn follower(client: &SharedClient) -> mpsc::Receiver<Result<(), Error>> {
    let before = driving(client, |driving| driving.waiting);
    let (sender, receiver) = mpsc::channel();
    let other = client.clone();
    let options = LockOptions::new(TTL);
    std::thread::spawn(move || {
        sender.send(other.lock(before.to_string(), options).wait().map(drop))
    });
    comes_true("the call waits", || driving(client, |driving| driving.waiting) > before);
    receiver
}

fn comes(receiver: &mpsc::Receiver<Result<(), Error>>) -> Result<(), Error> {
    receiver.recv_timeout(TEN_SECONDS).expect("the call ends")
}

#[test]
fn thread_that_waits_alone_drives_the_client() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    pairs(&client, 10);
    let before = leads(&client);
    pairs(&client, 100);
    // On a busy machine the driver may take over now and then.
    let leads = leads(&client) - before;
    assert!(leads > 100, "{leads} of 200 requests were led");
}

#[test]
fn a_leader_that_ends_without_a_turn_hands_over() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    for panics in [false, true] {
        for _ in 0..20 {
            let lead = begin(&client);
            let waits = follower(&client);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _lead = lead;
                assert!(!panics, "outside of the lock");
            }));
            assert_eq!(comes(&waits), Ok(()));
        }
    }
}

#[test]
fn leader_that_panics_with_the_mutex_locked_closes_the_client() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let lead = begin(&client);
    let waits = follower(&client);
    let led = catch_unwind(AssertUnwindSafe(|| lead.drive::<()>(|_| panic!("under the lock"))));
    assert!(led.is_err());
    // The call of the follower may have ended in the turn that panicked; its result is not fetched.
    assert_eq!(comes(&waits), Err(Error::Closed(ClosedReason::DriverGone)));
}

/// The call of another thread ends in a turn of the leader, whose own call does not.
#[test]
fn leader_goes_on_after_the_call_of_another_thread() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let lead = begin(&client);
    let waits = follower(&client);
    let over = AtomicBool::new(false);
    let finish = |_: &mut Open<'_>| match over.load(Ordering::Relaxed) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    };
    let led = std::thread::scope(|scope| {
        let leader = scope.spawn(|| lead.drive(finish));
        pairs(&client, 20);
        over.store(true, Ordering::Relaxed);
        pairs(&client, 1);
        leader.join().unwrap()
    });
    assert_eq!((led, comes(&waits)), (Ok(()), Ok(())));
}

#[test]
fn a_leader_that_ends_rouses_the_driver_if_a_call_waits() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    never_awake_by_itself(&client);
    for _ in 0..20 {
        let lead = begin(&client);
        let waits = follower(&client);
        assert_eq!(lead.drive(|_| Poll::Ready(())), Ok(()));
        assert_eq!(comes(&waits), Ok(()));
    }
}

#[test]
fn a_future_rouses_the_driver_from_its_nap() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    never_awake_by_itself(&client);
    for _ in 0..20 {
        free_the_poller(&client);
        let mut call = client.lock("future", TTL);
        let polled = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        takes_over(&client);
    }
}

#[test]
fn timer_that_is_due_soon_rouses_the_driver() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    never_awake_by_itself(&client);
    let guard = client.lock("due", Duration::from_secs(30)).wait().unwrap();
    let mut lost = guard.watcher().lost();
    free_the_poller(&client);
    // The end of a lock is due for a caller that waits for it.
    assert!(Pin::new(&mut lost).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(driving(&client, |driving| driving.is_free()), "it is not due soon");
    driving(&client, |driving| driving.soon = HOUR);
    takes_over(&client);
    for _ in 0..20 {
        driving(&client, |driving| driving.soon = SOON);
        let lead = begin(&client);
        driving(&client, |driving| driving.soon = HOUR);
        assert_eq!(lead.drive(|_| Poll::Ready(())), Ok(()));
        takes_over(&client);
    }
}

#[test]
fn the_driver_takes_over_from_a_thread_that_has_led_for_long() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let lead = begin(&client);
    comes_true("the driver naps without an end", || driving(&client, |driving| driving.naps_on));
    assert_eq!(lead.drive(|_| Poll::Ready(())), Ok(()));
    takes_over(&client);
}

/// The request ends where it is made: nothing arrives that would wake the leader.
#[test]
fn a_leader_fetches_a_result_that_is_there_before_it_sleeps() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let inner = &*client.owner.inner;
    let Lead { poller, .. } = &mut begin(&client);
    masters.iter().for_each(LocalMaster::kill);
    let lost = |open: &mut Open<'_>| open.engine.coordinator().ready().is_empty();
    while !inner.with(lost).unwrap() {
        poller.as_mut().unwrap().wait(None).unwrap();
        inner.set_awake();
        assert!(inner.lead::<()>(Role::Leader, poller, &mut |_| Poll::Pending).is_ok());
    }
    inner.set_awake();
    let place = inner.with(|open| {
        let options = LockOptions::once(TTL);
        open.ask(|open, data| open.engine.acquire(b"refused", options, data)).unwrap()
    });
    let place = place.unwrap();
    let rested = inner.rest(false, poller, &mut |open| open.fetch(place));
    assert!(rested.is_err(), "it is about to sleep");
}

/// Two calls end in one turn: the thread of the first must not lead again before the driver has
/// written what the others request.
#[test]
fn a_leader_passes_the_poller_to_the_driver_if_its_turn_ends_other_calls() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    never_awake_by_itself(&client);
    for _ in 0..20 {
        let lead = begin(&client);
        let inner = &*client.owner.inner;
        let waits = [follower(&client), follower(&client)];
        let mut finish = |open: &mut Open<'_>| match open.after_unlock.to_wake() == 0 {
            true => Poll::Pending,
            false => Poll::Ready(()),
        };
        let Lead { poller, .. } = &mut { lead };
        let mut turned = inner.rest(false, poller, &mut finish);
        while let Ok(Turned::Asleep(timeout)) = turned {
            poller.as_mut().unwrap().wait(timeout).unwrap();
            inner.set_awake();
            turned = inner.lead(Role::Leader, poller, &mut finish);
        }
        assert!(turned.is_err(), "it is done");
        // This thread or the driver does it, whichever comes first.
        assert!(inner.with(|open| Lead::begin(inner, open)).unwrap().is_none());
        waits.iter().for_each(|waits| assert_eq!(comes(waits), Ok(())));
    }
}

/// The thread that leads sleeps in the poller, and the driver naps without an end.
#[test]
fn the_driver_ends_if_another_thread_ends_the_client() {
    let masters = Masters::start(3).unwrap();
    for panics in [false, true] {
        let client = client(&masters);
        let lead = begin(&client);
        // On a busy machine the driver may have the poller before that thread.
        comes_true("the driver naps, or it drives", || {
            driving(&client, |driving| driving.naps_on || driving.waiting > 0)
        });
        if panics {
            let inner = &client.owner.inner;
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let _state = inner.lock();
                panic!("under the lock");
            }));
            assert!(panic.is_err());
            assert!(inner.lock().is_over());
        } else {
            // The thread that leads does not drive, so the close takes all of its time.
            client.close(Duration::from_millis(50)).wait();
        }
        assert!(lead.drive::<()>(|_| Poll::Pending).is_err());
        // The driver's share of the client is gone.
        comes_true("the driver ends", || Arc::strong_count(&client.owner.inner) == 1);
    }
}

/// On the thread of a caller it makes another call and waits for it. Where the driver's own thread
/// runs it, it must not: nothing would drive that call.
struct WaitsForACall(SharedClient, mpsc::Sender<bool>);

impl std::task::Wake for WaitsForACall {
    fn wake(self: Arc<Self>) {
        let is_the_drivers = std::thread::current().name() == Some(super::super::thread::NAME);
        if !is_the_drivers {
            self.0.lock("inner", TTL).wait().unwrap().release().wait().unwrap();
        }
        let _ = self.1.send(!is_the_drivers);
    }
}

/// The driver naps without an end while a thread leads for long. The turn that ends the call of
/// that thread also ends a future, whose waker waits for another call: so the driver has to be
/// woken before the waker runs.
#[test]
fn a_waker_on_the_leaders_thread_may_wait_for_another_call() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let mut by_a_leader = 0;
    for _ in 0..20 {
        free_the_poller(&client);
        masters.iter().for_each(LocalMaster::freeze);
        let (led, sender) = (client.clone(), mpsc::channel());
        let leader = std::thread::spawn(move || drop(led.lock("led", TTL).wait().unwrap()));
        // On a busy machine the driver may have the poller before that thread.
        comes_true("the driver naps, or it drives", || {
            driving(&client, |driving| driving.naps_on || driving.waiting > 0)
        });
        let mut future = Box::pin(client.lock("future", TTL));
        let waker = Waker::from(Arc::new(WaitsForACall(client.clone(), sender.0)));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        masters.iter().for_each(LocalMaster::thaw);
        let on_the_leaders = sender.1.recv_timeout(TEN_SECONDS).expect("the other call ends");
        by_a_leader += u32::from(on_the_leaders);
        leader.join().unwrap();
    }
    assert!(by_a_leader > 0, "no leader ran the waker");
}

/// What the client has to write, and did not.
fn unwritten(client: &SharedClient) -> bool {
    client.owner.inner.with(|open| open.engine.has_something_to_write()).unwrap()
}

/// No answer comes, and nothing is due: only a call can wake the driver.
#[test]
fn a_request_beside_many_waiting_calls_wakes_the_driver_which_writes_it() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let held = client.lock("held", TTL).wait().unwrap();
    masters.iter().for_each(LocalMaster::freeze);
    takes_over(&client);
    let waiting: Vec<_> = (0..BUSY).map(|_| follower(&client)).collect();
    let asked_by = |count: usize| {
        comes_true("all is written", || !unwritten(&client));
        let before = driving(&client, |driving| driving.wake_ups);
        let calls: Vec<_> = (0..count).map(|_| follower(&client)).collect();
        comes_true("the requests are written", || !unwritten(&client));
        (calls, driving(&client, |driving| driving.wake_ups) - before)
    };
    let mut calls = Vec::new();
    for _ in 0..20 {
        let (call, woken) = asked_by(1);
        assert!(woken > 0, "the call wrote its request itself");
        calls.extend(call);
    }
    // No call waits for the release of a dropped guard: it is written at once.
    comes_true("the driver sleeps", || !client.owner.inner.is_awake());
    drop(held);
    assert!(!unwritten(&client), "the release is left to the driver");
    masters.iter().for_each(LocalMaster::thaw);
    waiting.iter().chain(&calls).for_each(|call| assert_eq!(comes(call), Ok(())));
}

/// The driver sleeps in the poller, and nothing wakes it.
#[test]
#[allow(clippy::disallowed_methods, reason = "it looks at a real driver for a while")]
fn idle_client_wakes_no_thread() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let _held = client.lock("held", TTL).wait().unwrap();
    free_the_poller(&client);
    takes_over(&client);
    let before = driving(&client, |driving| driving.wake_ups);
    std::thread::sleep(Duration::from_millis(500));
    let woken = driving(&client, |driving| driving.wake_ups) - before;
    // The answer to the last pair's release may still come.
    assert!(woken <= 3, "{woken} times in half a second");
}
