//! A poller of our own and the events that it reported. The driver waits without the engine, and
//! hands the events to the engine afterwards.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use mio::{Events, Poll, Registry, Token};

use super::engine::Engine;
#[cfg(feature = "io-uring")]
use super::engine::RingUse;
use crate::config::Config;
use crate::proto::error::ConfigError;

/// One event for each node, the timer and the waker: all that are ready are taken at once.
const EVENTS: usize = 64;

/// The token of the waker, far from those of the engine.
pub(crate) const WAKER: Token = Token(usize::MAX);

/// The token of a ring whose eventfd is in the poller.
#[cfg(feature = "io-uring")]
const RING: Token = Token(usize::MAX - 1);

/// How often a turn of such a driver looks at the poller.
#[cfg(feature = "io-uring")]
const TAKES: usize = 4;

/// The poller that the sockets of an engine are registered with. With the feature `io-uring` and a
/// configuration that asks for it, a ring receives instead, once the driver has called one of the
/// `use_ring` methods.
#[derive(Debug)]
pub(crate) struct Reactor {
    poll: Poll,
    events: Events,
    #[cfg(feature = "io-uring")]
    io_uring: bool,
    /// Waits for the ring of an engine that is protected by a lock.
    #[cfg(feature = "io-uring")]
    waiter: Option<redlatch_uring::Waiter>,
}

impl Reactor {
    /// A poller, and the engine on it. The driver sleeps without timeouts if there is an alarm.
    /// Names are looked up here, which may block.
    pub(crate) fn of(config: Config) -> Result<(Reactor, Engine), ConfigError> {
        let (reactor, mut engine) = Reactor::with_timeouts(config)?;
        engine.needs_no_timeout();
        Ok((reactor, engine))
    }

    /// The loop and the engine of a driver that sleeps with timeouts.
    pub(crate) fn with_timeouts(config: Config) -> Result<(Reactor, Engine), ConfigError> {
        let poll = Poll::new().map_err(|error| system("poller: cannot create one", &error))?;
        #[cfg(feature = "io-uring")]
        let io_uring = config.io_uring;
        let engine = Engine::new(config, poll.registry(), Token(0))?;
        let reactor = Reactor {
            poll,
            events: Events::with_capacity(EVENTS),
            #[cfg(feature = "io-uring")]
            io_uring,
            #[cfg(feature = "io-uring")]
            waiter: None,
        };
        Ok((reactor, engine))
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Waits for an event. A signal ends the wait, without events. With a zero timeout the poll is
    /// repeated after a signal, because the caller looks only once for each readiness.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        loop {
            match self.poll.poll(&mut self.events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.events.clear();
                    if timeout != Some(Duration::ZERO) {
                        return Ok(());
                    }
                }
                polled => return polled,
            }
        }
    }

    /// Passes the events of the last wait to the engine.
    pub(crate) fn hand_over(&self, engine: &mut Engine) {
        for event in &self.events {
            engine.handle_event(event);
        }
    }
}

/// Drivers that call no ring: what they do is what the poller does.
#[cfg(not(feature = "io-uring"))]
impl Reactor {
    pub(crate) fn use_ring_in_loop(&self, _: &mut Engine) {}

    pub(crate) fn use_ring_under_lock(&self, _: &mut Engine) {}

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn use_ring_in_poller(&self, _: &mut Engine) {}

    pub(crate) fn turn(
        &mut self,
        engine: &mut Engine,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.wait(timeout)?;
        self.hand_over(engine);
        Ok(())
    }

    pub(crate) fn wait_outside(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait(timeout)
    }

    pub(crate) fn is_bound_to_its_thread(&self) -> bool {
        false
    }

    pub(crate) fn hand_over_all(&mut self, engine: &mut Engine) -> io::Result<()> {
        self.hand_over(engine);
        Ok(())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn take_all(&mut self, engine: &mut Engine) -> io::Result<()> {
        self.turn(engine, Some(Duration::ZERO))
    }
}

#[cfg(feature = "io-uring")]
impl Reactor {
    /// For a driver that is alone with its engine and waits in [`turn`](Reactor::turn). To be
    /// called before every turn: the driver may have changed its thread.
    pub(crate) fn use_ring_in_loop(&self, engine: &mut Engine) {
        if self.io_uring {
            engine.use_ring_here(RingUse::Loop);
        }
    }

    /// For a driver that waits in [`wait_outside`](Reactor::wait_outside) while other threads use
    /// the engine. To be called once, on the driver's thread.
    pub(crate) fn use_ring_under_lock(&mut self, engine: &mut Engine) {
        if self.io_uring {
            engine.use_ring_here(RingUse::Shared);
            self.waiter = engine.ring_waiter();
        }
    }

    /// For a driver whose caller waits for the poller as one descriptor. To be called before every
    /// turn.
    pub(crate) fn use_ring_in_poller(&self, engine: &mut Engine) {
        if self.io_uring {
            engine.use_ring_here(RingUse::Nested(RING));
        }
    }

    /// Waits, and passes what there is to the engine.
    pub(crate) fn turn(
        &mut self,
        engine: &mut Engine,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        if engine.sleeps_in_ring() {
            engine.sleep_in_ring(timeout)?;
            engine.take_from_ring();
            if !engine.poller_was_reported() {
                return Ok(());
            }
            self.wait(Some(Duration::ZERO))?;
        } else {
            self.wait(timeout)?;
        }
        self.hand_over(engine);
        Ok(())
    }

    /// Takes what there is without waiting, for a driver whose caller waits for the poller.
    pub(crate) fn take_all(&mut self, engine: &mut Engine) -> io::Result<()> {
        // What the ring completes here, it signals in the poller once more. That signal is taken,
        // too, or the caller would be woken for nothing.
        for _ in 0..TAKES {
            self.wait(Some(Duration::ZERO))?;
            self.hand_over(engine);
            let signaled = self.events.iter().any(|event| event.token() == RING);
            if !signaled || !engine.read_ring() {
                break;
            }
        }
        Ok(())
    }

    /// Whether only one thread may call [`wait_outside`](Reactor::wait_outside): the kernel lets
    /// no other thread wait for a ring.
    pub(crate) fn is_bound_to_its_thread(&self) -> bool {
        self.waiter.is_some()
    }

    /// Waits without the engine, which other threads may use meanwhile.
    pub(crate) fn wait_outside(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.waiter {
            Some(waiter) => waiter.wait(timeout),
            None => self.wait(timeout),
        }
    }

    /// Passes what there is after [`wait_outside`](Reactor::wait_outside) to the engine.
    pub(crate) fn hand_over_all(&mut self, engine: &mut Engine) -> io::Result<()> {
        if self.waiter.is_some() {
            engine.take_from_ring();
            let failed = engine.ring_waiter().is_none();
            if failed {
                self.waiter = None;
            }
            if !engine.poller_was_reported() && !failed {
                return Ok(());
            }
            self.wait(Some(Duration::ZERO))?;
        }
        self.hand_over(engine);
        Ok(())
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.registry().as_fd()
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

/// The error that the system refuses a resource.
pub(crate) fn system(what: &str, error: &io::Error) -> ConfigError {
    ConfigError::System { problem: format!("{what}: {error}").into() }
}
