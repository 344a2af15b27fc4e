//! The driver of a shared client as a thread of its own.

use std::sync::Arc;
use std::task::Poll;

use mio::Waker;

use super::driving::{Driving, Role};
use super::inner::{Inner, PATIENCE, Turned};
use super::open::Open;
use crate::config::Config;
use crate::net::clock;
use crate::net::connecting::{Connecting, refuse_one_server_twice};
use crate::net::reactor::{Reactor, WAKER, system};
use crate::proto::error::{ClosedReason, Error};

const NAME: &str = "redlatch";

/// Makes an engine, waits for its nodes, and gives it to a thread that drives it.
pub(super) fn connect(config: Config) -> Result<Arc<Inner>, Error> {
    let (mut reactor, mut engine) = Reactor::of(config)?;
    let mut connecting = Connecting::new(engine.coordinator(), clock::now());
    while let Some(until) = connecting.wait_until(engine.coordinator(), clock::now()) {
        let left = until.saturating_since(clock::now());
        let timeout = engine.prepare().map_or(left, |timeout| timeout.min(left));
        reactor.wait(Some(timeout)).map_err(|error| system("the poller failed", &error))?;
        reactor.hand_over(&mut engine);
    }
    refuse_one_server_twice(engine.coordinator(), clock::now())?;
    let waker = Waker::new(reactor.registry(), WAKER).map_err(|e| system("no waker", &e))?;
    let inner = Arc::new(Inner::new(engine, waker, Driving::by_thread(), None));
    let driver = Driver { inner: Arc::clone(&inner), poller: Some(reactor) };
    let thread = std::thread::Builder::new().name(NAME.into());
    thread.spawn(move || driver.run()).map_err(|error| system("no thread", &error))?;
    Ok(inner)
}

/// Owned by the thread: its drop, also after a panic, ends every waiting call.
struct Driver {
    inner: Arc<Inner>,
    /// `None` while it naps.
    poller: Option<Reactor>,
}

impl Driver {
    fn run(mut self) {
        let poller = self.poller.as_mut().expect("it begins with it");
        let Ok(()) = self.inner.with(|open| poller.use_ring_under_lock(open.engine)) else {
            return;
        };
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
                    if poller.wait_outside(timeout).is_err() {
                        return;
                    }
                    self.inner.set_awake();
                    let mut never = |_: &mut Open<'_>| Poll::<()>::Pending;
                    let led = self.inner.lead(Role::Driver, &mut self.poller, &mut never);
                    turned = led.unwrap_or(Turned::Over);
                    patience = PATIENCE;
                }
                Turned::Awake => {
                    // The woken calls run first: their requests are written together.
                    std::thread::yield_now();
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
