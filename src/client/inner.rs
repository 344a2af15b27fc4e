//! The loop that the blocking client turns inside its calls.

use std::io;
use std::time::Duration;

use super::notices::Notices;
use crate::config::Config;
use crate::net::clock;
use crate::net::connecting::{Connecting, refuse_one_server_twice};
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::net::observe::Interface;
use crate::net::reactor::Reactor;
use crate::proto::error::{ConfigError, Error};
use crate::proto::ids::Op;
use crate::proto::locks::completions::Outcome;
use crate::proto::time::Instant;

/// How many key buffers of dropped guards are kept, so that later guards need not allocate.
pub(super) const SPARE_KEYS: usize = 512;

/// If the client has not read its sockets for longer than this, its connections may have been
/// closed meanwhile, so the next call replaces closed ones first.
const PAUSE_OF_CALLER: Duration = Duration::from_millis(50);

/// The least time between two reads of the sockets by [`Guard::check`](super::Guard::check) of an
/// auto-extended lock.
const READ_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) engine: Engine,
    reactor: Reactor,
    /// When the client last read its sockets.
    read_at: Instant,
    pub(super) names: Names,
    pub(super) notices: Notices,
    /// Key buffers of guards that were dropped.
    pub(super) spare_keys: Vec<Vec<u8>>,
}

impl Inner {
    /// Connects to the nodes, and waits for them: see [`Client::connect`](super::Client::connect).
    pub(super) fn connect(mut config: Config) -> Result<Inner, Error> {
        // Tells the core that nothing drives this client between its calls.
        config.settings.attended = false;
        let (reactor, mut engine) = Reactor::with_timeouts(config)?;
        engine.report_lock_updates();
        engine.observer().belongs_to(Interface::Client);
        let (read_at, spare_keys) = (clock::now(), Vec::new());
        let (names, notices) = (Names::new(), Notices::default());
        let mut inner = Inner { engine, reactor, read_at, names, notices, spare_keys };
        inner.wait_for_nodes()?;
        Ok(inner)
    }

    /// Makes one turn of the loop, which sleeps no longer than until `end`.
    pub(super) fn turn(&mut self, end: Instant) -> io::Result<()> {
        let left = end.saturating_since(clock::now());
        if !self.engine.check_fork() {
            return Ok(());
        }
        while let Some((node, addresses)) = self.names.found() {
            self.engine.set_address(node, addresses);
        }
        self.engine.go_on();
        let timeout = self.engine.plan_sleep().map_or(left, |timeout| timeout.min(left));
        self.reactor.turn(&mut self.engine, Some(timeout))?;
        self.read_at = clock::now();
        self.look_up_names();
        Ok(())
    }

    /// Records the updates of the locks, and returns whether there was one to report. Drops
    /// completions, because no call waits for them.
    pub(super) fn take_completions(&mut self) -> bool {
        while self.engine.poll_completion().is_some() {}
        self.take_lock_updates()
    }

    /// Records the updates of the locks, lets the campaigns go on, and returns whether there is
    /// something to report.
    fn take_lock_updates(&mut self) -> bool {
        let mut any = false;
        while let Some(update) = self.engine.poll_lock_update() {
            any |= self.notices.take(update);
        }
        // The standings themselves stay in the core until the caller polls them.
        while self.engine.poll_news().is_some() {
            any = true;
        }
        any
    }

    /// As [`turn`](Inner::turn), for a call that returns an error of this library.
    pub(super) fn turn_until(&mut self, end: Instant) -> Result<(), Error> {
        self.turn(end).map_err(|error| poller_failed(&error))
    }

    /// Sends renewals that are due and reads the answers that have arrived, without waiting.
    pub(super) fn turn_for_auto_extend(&mut self) -> Result<(), Error> {
        let now = clock::now();
        let due = self.engine.coordinator().next_timeout().is_some_and(|due| due <= now);
        if due || now.saturating_since(self.read_at) >= READ_INTERVAL {
            self.turn_until(now)?;
        }
        // Also without a turn: an earlier call that waited for something else may have found
        // updates.
        self.take_completions();
        // Writes the requests that follow from the answers now, and not with the next call.
        self.engine.flush();
        Ok(())
    }

    pub(super) fn look_up_names(&mut self) {
        while let Some(node) = self.engine.take_stale() {
            if let Some(lookup) = self.engine.lookup(node) {
                self.names.begin(node, lookup);
            }
        }
    }

    /// Replaces connections that were closed since the client last read its sockets. If the others
    /// are no quorum, waits for the new ones for at most a node timeout, so that the next attempt
    /// does not fail because of them.
    pub(super) fn reconnect_after_pause(&mut self) -> Result<(), Error> {
        if !self.engine.check_fork() {
            // In a forked child a poll would take events that the parent needs.
            return Ok(());
        }
        let now = clock::now();
        let node_timeout = self.engine.coordinator().settings().node_timeout;
        if now.saturating_since(self.read_at) < node_timeout.min(PAUSE_OF_CALLER) {
            return Ok(());
        }
        self.turn_until(now)?;
        let core = self.engine.coordinator();
        self.wait_while(Connecting::again(core, node_timeout, now))
    }

    fn wait_while(&mut self, mut connecting: Connecting) -> Result<(), Error> {
        while let Some(until) = connecting.wait_until(self.engine.coordinator(), clock::now()) {
            self.turn_until(until)?;
        }
        Ok(())
    }

    pub(super) fn wait_for(&mut self, op: Op) -> Result<Outcome, Error> {
        const FOREVER: Instant = Instant::from_nanos(u64::MAX);
        loop {
            while let Some(done) = self.engine.poll_completion() {
                if done.op == op {
                    // Writes the releases of a lost attempt now, and not with the next call.
                    self.engine.flush();
                    return done.result;
                }
            }
            self.take_lock_updates();
            if let Err(error) = self.turn_until(FOREVER) {
                self.engine.cancel(op);
                self.engine.flush();
                return Err(error);
            }
        }
    }

    pub(super) fn wait_for_nodes(&mut self) -> Result<(), Error> {
        self.wait_while(Connecting::new(self.engine.coordinator(), clock::now()))?;
        refuse_one_server_twice(self.engine.coordinator(), clock::now())
    }
}

fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("poller: {error}").into();
    Error::Config(ConfigError::System { problem })
}
