//! A poller of our own and the events that it reported. The driver waits without the engine, and
//! hands the events to the engine afterwards.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

pub(crate) use mio::Waker;
use mio::{Events, Poll, Registry, Token};

use super::engine::Engine;
use crate::config::Config;
use crate::proto::error::ConfigError;

/// One event for each node, the timer and the waker: all that are ready are taken at once.
const EVENTS: usize = 64;

/// The token of the waker, far from those of the engine.
const WAKER: Token = Token(usize::MAX);

/// The poller that the sockets of an engine are registered with.
#[derive(Debug)]
pub(crate) struct Reactor {
    poll: Poll,
    events: Events,
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
        let engine = Engine::new(config, poll.registry(), Token(0))?;
        Ok((Reactor { poll, events: Events::with_capacity(EVENTS) }, engine))
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Wakes the thread that waits here. A poller has at most one.
    pub(crate) fn waker(&self) -> Result<Waker, ConfigError> {
        Waker::new(self.registry(), WAKER).map_err(|error| system("no waker", &error))
    }

    /// Waits for an event. A signal ends the wait, without events. With a zero timeout the poll is
    /// repeated after a signal, because the caller polls only once each time that the descriptor
    /// becomes readable.
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

    /// Waits, and passes the events to the engine.
    pub(crate) fn turn(
        &mut self,
        engine: &mut Engine,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.wait(timeout)?;
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
