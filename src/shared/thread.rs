//! The driver of a shared client as a thread of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::SharedClient;
use super::driving::{Driving, Role};
use super::inner::{self, Inner, PATIENCE, Turned};
use super::open::Open;
use crate::config::Config;
use crate::net::clock;
use crate::net::connecting::{Connecting, refuse_one_server_twice};
use crate::net::reactor::{Reactor, system};
use crate::net::sync::{Mutex, PoisonError, thread};
use crate::proto::error::{ClosedReason, Error};

pub(super) const NAME: &str = "redlatch";

/// Connects on this thread, and starts the thread that drives the client.
pub(super) fn connect(config: Config) -> Result<Arc<Inner>, Error> {
    let (inner, driver) = make(config)?;
    spawn(move || driver.run())?;
    Ok(inner)
}

/// Starts the thread that drives the client. It connects first.
pub(super) fn connect_there(config: Config) -> Result<Arriving, Error> {
    let arrival = Arc::new(Mutex::new(Arrival::default()));
    let delivery = Delivery(Arc::clone(&arrival));
    spawn(move || match make(config) {
        Ok((inner, driver)) => {
            delivery.end(Ok(SharedClient::of(inner)));
            driver.run();
        }
        Err(error) => delivery.end(Err(error)),
    })?;
    Ok(Arriving(arrival))
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(NAME.into());
    thread.spawn(run).map_err(|error| system("no thread", &error))?;
    Ok(())
}

/// Makes an engine, waits for its nodes, and gives it to a driver.
fn make(config: Config) -> Result<(Arc<Inner>, Driver), Error> {
    let (mut reactor, mut engine) = Reactor::of(config)?;
    let mut connecting = Connecting::new(engine.coordinator(), clock::now());
    while let Some(until) = connecting.wait_until(engine.coordinator(), clock::now()) {
        let left = until.saturating_since(clock::now());
        let timeout = engine.prepare().map_or(left, |timeout| timeout.min(left));
        reactor.wait(Some(timeout)).map_err(|error| system("the poller failed", &error))?;
        reactor.hand_over(&mut engine);
    }
    refuse_one_server_twice(engine.coordinator(), clock::now())?;
    let waker = reactor.waker()?;
    let inner = Arc::new(Inner::new(engine, waker, Driving::by_thread(), None));
    let driver = Driver { inner: Arc::clone(&inner), poller: Some(reactor) };
    Ok((inner, driver))
}

/// What the thread that connects leaves for the future that waits for it.
#[derive(Debug, Default)]
struct Arrival {
    result: Option<Result<SharedClient, Error>>,
    /// There is a result, or was.
    ended: bool,
    waker: Option<Waker>,
}

/// Waits for a client that connects on its thread. If this is dropped, so is the client.
#[derive(Debug)]
pub(super) struct Arriving(Arc<Mutex<Arrival>>);

impl Future for Arriving {
    type Output = Result<SharedClient, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Wakers are the user's: they are neither made nor dropped while the mutex is locked.
        let waker = context.waker().clone();
        let mut arrival = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = arrival.result.take() {
            drop(arrival);
            return Poll::Ready(result);
        }
        let former = arrival.waker.replace(waker);
        drop(arrival);
        drop(former);
        Poll::Pending
    }
}

/// Owned by the thread that connects: its drop, also after a panic, ends the future that waits.
struct Delivery(Arc<Mutex<Arrival>>);

impl Delivery {
    /// If the future is gone, the result is dropped with this.
    fn end(self, result: Result<SharedClient, Error>) {
        self.put(result);
    }

    fn put(&self, result: Result<SharedClient, Error>) {
        let mut arrival = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !arrival.ended {
            (arrival.ended, arrival.result) = (true, Some(result));
        }
        let waker = arrival.waker.take();
        drop(arrival);
        waker.into_iter().for_each(inner::wake);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.put(Err(Error::Closed(ClosedReason::DriverGone)));
    }
}

/// Owned by the thread: its drop, also after a panic, ends every waiting call.
struct Driver {
    inner: Arc<Inner>,
    /// `None` while it naps.
    poller: Option<Reactor>,
}

impl Driver {
    fn run(mut self) {
        let mut turned = self.inner.sleeps(false);
        let mut patience = PATIENCE;
        loop {
            match turned {
                Turned::Asleep(timeout) => {
                    let Some(poller) = &mut self.poller else {
                        self.poller = self.inner.nap.sleep(&self.inner);
                        patience = PATIENCE;
                        turned = self.inner.sleeps(true);
                        continue;
                    };
                    if poller.wait(timeout).is_err() {
                        return;
                    }
                    self.inner.set_awake();
                    let mut never = |_: &mut Open<'_>| Poll::<()>::Pending;
                    let led = self.inner.lead(Role::Driver, &mut self.poller, &mut never);
                    turned = led.unwrap_or(Turned::Over);
                    patience = PATIENCE;
                }
                Turned::Awake => {
                    // Lets the woken calls run first, so that their requests are written together.
                    thread::yield_now();
                    patience -= 1;
                    turned = self.inner.sleeps(patience > 0);
                }
                Turned::Over => return,
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inner.end(ClosedReason::DriverGone);
    }
}
