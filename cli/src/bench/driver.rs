//! Drives the bench's clients on one poller: engines, the signals that end it early, a timer.
//!
//! The driver knows neither pairs nor figures. The hazard is its own slowness, because the time
//! that it needs is measured as if the nodes needed it. So a turn writes, sleeps and reads, and
//! does nothing else.

use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};
use redlatch::{Completion, Config, ConfigError, Engine, NodeId, clock, clock::Instant};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_mio::v1_0::Signals;

use super::pacer::Pacer;

const SIGNALS: Token = Token(0);
const PACER: Token = Token(1);
const FIRST_ENGINE: usize = 2;

/// How many events one turn takes from the poller.
const EVENTS: usize = 1024;

/// Only shorter sleeps use the pacer. For longer ones the poller's timeout is exact enough: it is
/// late by up to a millisecond.
const SHORT: Duration = Duration::from_millis(20);

/// Several clients, driven together.
pub struct Driver {
    poll: Poll,
    events: Events,
    pacer: Pacer,
    /// The moment for which the pacer was last set; it may have passed.
    paced_to: Instant,
    signals: Signals,
    /// Signals that were caught, but not returned to the caller yet.
    caught: Vec<i32>,
    engines: Vec<Engine>,
    /// How many tokens of the poller each engine has.
    tokens: usize,
    /// The engine whose completions are fetched next. The engines take turns, so that none is
    /// always served first.
    turn_of: usize,
}

impl Driver {
    /// Connects this many clients to the same nodes.
    ///
    /// # Errors
    /// The configuration cannot work, or the system refuses a resource.
    pub fn new(config: &Config, clients: usize) -> Result<Driver, ConfigError> {
        let system = |error: io::Error| ConfigError::System {
            problem: format!("poller of the bench: {error}").into(),
        };
        let poll = Poll::new().map_err(system)?;
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(system)?;
        let interest = mio::Interest::READABLE;
        poll.registry().register(&mut signals, SIGNALS, interest).map_err(system)?;
        let pacer = Pacer::new(poll.registry(), PACER).map_err(system)?;
        // Each engine has a token for every node, and one for its timer.
        let tokens = config.get_settings().nodes.len() + 1;
        let engines = (0..clients).map(|client| {
            Engine::new(config.clone(), poll.registry(), Token(FIRST_ENGINE + client * tokens))
        });
        let engines = engines.collect::<Result<_, _>>()?;
        let events = Events::with_capacity(EVENTS);
        Ok(Driver {
            poll,
            events,
            pacer,
            paced_to: Instant::default(),
            signals,
            caught: Vec::new(),
            engines,
            tokens,
            turn_of: 0,
        })
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.engines.len()
    }

    pub fn client(&mut self, client: usize) -> &mut Engine {
        &mut self.engines[client]
    }

    /// Writes the requests, sleeps until something happens or `until` has come, and reads.
    ///
    /// # Errors
    /// The system's poller fails.
    pub fn turn(&mut self, until: Instant) -> io::Result<()> {
        let soonest = self.engines.iter_mut().filter_map(Engine::prepare).min();
        let left = until.saturating_since(clock::now());
        let sleep = soonest.map_or(left, |soonest| soonest.min(left));
        // The engines have timers of their own; the pacer is set only if `until` comes first and
        // soon.
        let ours = sleep == left && !left.is_zero() && left < SHORT;
        if ours && self.paced_to != until {
            self.pacer.wake_in(left)?;
            self.paced_to = until;
        }
        match self.poll.poll(&mut self.events, Some(sleep)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &self.events {
            if event.token() == SIGNALS {
                self.caught.extend(self.signals.pending());
            } else if let Some(token) = event.token().0.checked_sub(FIRST_ENGINE) {
                self.engines[token / self.tokens].handle_event(event);
            }
        }
        Ok(())
    }

    /// The next request that ended, of any client.
    pub fn completion(&mut self) -> Option<Completion> {
        for _ in 0..self.engines.len() {
            let client = self.turn_of;
            if let Some(done) = self.engines[client].poll_completion() {
                return Some(done);
            }
            self.turn_of = (client + 1) % self.engines.len();
        }
        None
    }

    /// The next signal that asked the bench to end.
    pub fn signal(&mut self) -> Option<i32> {
        (!self.caught.is_empty()).then(|| self.caught.remove(0))
    }

    /// Whether every client can ask a quorum.
    pub fn has_quorums(&self) -> bool {
        self.engines.iter().all(|engine| {
            let core = engine.coordinator();
            core.ready().len() > core.settings().nodes.len() / 2
        })
    }

    /// Whether every client has connected to each node, or failed to, at least once.
    pub fn knows_the_nodes(&self) -> bool {
        self.engines.iter().all(|engine| {
            let core = engine.coordinator();
            let nodes = core.settings().nodes.len();
            let known = |node| core.node_state(node).is_usable() || core.failures(node) > 0;
            (0..nodes).map(NodeId::new).all(known)
        })
    }

    /// The nodes that the first client cannot use now, and why.
    pub fn unusable_nodes(&self) -> Vec<String> {
        let core = self.engines[0].coordinator();
        let report = core.report_node_states(clock::now());
        let nodes = report.nodes.iter().enumerate();
        let unusable_nodes =
            nodes.filter(|(index, _)| !core.node_state(NodeId::new(*index)).is_usable());
        let words = unusable_nodes.map(|(_, node)| match &node.detail {
            Some(detail) => format!("{} {} ({detail})", node.label, node.reply),
            None => format!("{} {}", node.label, node.reply),
        });
        words.collect()
    }

    /// How many locks are open on any client: requested, held, or not released on every node.
    pub fn open(&self) -> usize {
        self.engines.iter().map(|engine| engine.coordinator().open_records()).sum()
    }
}
