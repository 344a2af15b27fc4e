//! The tool's one loop: an engine on a poller that others have their sources on as well (signals, a
//! child, a timer). A verb turns it until it knows what it wants to know.
//!
//! The hazard is a first attempt before the nodes are connected: they would all vote against it.
//! So a verb gathers them first, in a bounded time.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mio::{Events, Poll, Registry, Token};
use redlatch::{
    Config, ConfigError, Engine, Error, NodeError, NodeEvent, NodeId, NodeSet, Op, Outcome, clock,
    clock::Instant,
};

use crate::suspend::Timer;

/// The nodes have the tokens from here on; those below are for other sources.
pub const FIRST_NODE: usize = 1 << 16;

const EVENTS: usize = 64;

/// A name that was looked up.
type Found = (NodeId, io::Result<Vec<SocketAddr>>);

/// An engine on a poller.
pub struct EventLoop {
    pub engine: Engine,
    poll: Poll,
    events: Events,
    /// What happened to sources that are not the engine's, in the last turn.
    others: Vec<Token>,
    /// What happened to nodes, until somebody asks.
    node_events: Vec<NodeEvent>,
    names: (Sender<Found>, Receiver<Found>),
    /// Ends a sleep that the machine was suspended in.
    timer: Option<Timer>,
}

impl EventLoop {
    /// Opens it; nothing is connected yet.
    pub fn new(config: Config) -> Result<EventLoop, Error> {
        let poll = Poll::new().map_err(|error| poller_failed(&error))?;
        let engine = Engine::new(config, poll.registry(), Token(FIRST_NODE))?;
        let events = Events::with_capacity(EVENTS);
        let (others, node_events, names) = (Vec::new(), Vec::new(), channel());
        Ok(EventLoop { engine, poll, events, others, node_events, names, timer: None })
    }

    /// From now on suspend counts in every sleep: for a verb that something runs beside. Where
    /// there is no timer for that, it does not.
    pub fn count_suspend(&mut self) {
        self.timer = Timer::new(self.poll.registry()).ok();
    }

    /// Where sources of other kinds are registered, under tokens below `FIRST_NODE`.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// One turn, which sleeps until `until` at most: what happened meanwhile to other sources.
    pub fn turn(&mut self, until: Option<Instant>) -> Result<&[Token], Error> {
        self.others.clear();
        while let Ok((node, found)) = self.names.1.try_recv() {
            // A name that was not found is looked up again after the next failures.
            self.engine.set_address(node, found.unwrap_or_default());
        }
        let timeout = self.engine.prepare();
        let left = until.map(|until| until.saturating_since(clock::now()));
        let timeout = match (timeout, left) {
            (Some(timeout), Some(left)) => Some(timeout.min(left)),
            (timeout, left) => timeout.or(left),
        };
        if let (Some(timer), Some(sleep)) = (&self.timer, timeout) {
            timer.wake_after(sleep);
        }
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(&self.others),
            polled => polled.map_err(|error| poller_failed(&error))?,
        }
        for event in &self.events {
            if !self.engine.handle_event(event) {
                self.others.push(event.token());
            }
        }
        self.take_news();
        Ok(&self.others)
    }

    /// Turns until a request comes to its end: for verbs that wait for nothing else.
    pub fn end_of(&mut self, op: Op) -> Result<Outcome, Error> {
        loop {
            while let Some(done) = self.engine.poll_completion() {
                if done.op == op {
                    return done.result;
                }
            }
            self.turn(None)?;
        }
    }

    /// What happened to the nodes since this was asked last.
    pub fn take_events(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.node_events)
    }

    /// Turns until a quorum is ready and the others have had a node timeout, or until every node
    /// has failed once, and for the connect timeout at most. It ends early, with `false`, where
    /// `stop` says so of what happened to other sources.
    pub fn gather(&mut self, mut stop: impl FnMut(&[Token]) -> bool) -> Result<bool, Error> {
        let settings = self.engine.coordinator().settings();
        let (nodes, node_timeout) = (settings.nodes.len(), settings.node_timeout);
        let end = clock::now().saturating_add(settings.connect_timeout);
        let mut quorum_since = None;
        loop {
            let (now, core) = (clock::now(), self.engine.coordinator());
            let tried = |&node: &NodeId| core.standing(node).is_usable() || core.failures(node) > 0;
            let all_tried = (0..nodes).map(NodeId::new).filter(tried).count() == nodes;
            let mut until = end;
            if core.ready().len() > nodes / 2 {
                until = quorum_since.get_or_insert(now).saturating_add(node_timeout).min(end);
            }
            if all_tried || now >= until {
                self.refuse_one_server_twice()?;
                return Ok(true);
            }
            if stop(self.turn(Some(until))?) {
                return Ok(false);
            }
        }
    }

    /// Turns until the nodes have answered everything that they were asked, and are owed nothing,
    /// and for `limit` at most: so that nothing which can be told a node is left untold at the end.
    pub fn settle(&mut self, limit: Duration) -> Result<(), Error> {
        let end = clock::now().saturating_add(limit);
        // Once in any case: what was asked last may not be written yet.
        self.engine.flush();
        while clock::now() < end && self.is_something_open() {
            self.turn(Some(end))?;
        }
        Ok(())
    }

    /// Whether a node has not answered all that it was asked.
    pub fn awaits_answers(&self) -> bool {
        let core = self.engine.coordinator();
        self.nodes().any(|node| core.unanswered(node) > 0)
    }

    fn is_something_open(&self) -> bool {
        let core = self.engine.coordinator();
        self.awaits_answers() || self.nodes().any(|node| core.pending_releases(node) > 0)
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.engine.coordinator().settings().nodes.len()).map(NodeId::new)
    }

    /// Names are looked up on threads of their own: a name server may take its time.
    fn take_news(&mut self) {
        while let Some(event) = self.engine.poll_node_event() {
            let NodeEvent::AddressStale { node } = event else {
                self.node_events.push(event);
                continue;
            };
            let Some(lookup) = self.engine.lookup(node) else { continue };
            let found = self.names.0.clone();
            let look_up = move || {
                // Nobody takes it at the end.
                let _ = found.send((node, lookup.run()));
            };
            // No thread to be had: the next failure tries again.
            let _ = std::thread::Builder::new().name("name".into()).spawn(look_up);
        }
    }

    /// Where a request failed on `nodes`, and on so many of them for a reason that does not pass
    /// that the others are no quorum: says so, instead of "no quorum".
    pub fn refuse_lasting_trouble(&self, nodes: NodeSet) -> Result<(), Error> {
        let core = self.engine.coordinator();
        let lasting = nodes.iter().filter(|&node| core.trouble(node).is_permanent()).count();
        let all = core.settings().nodes.len();
        if lasting > all - (all / 2 + 1) {
            let report = core.report_standings(clock::now());
            return Err(Error::Config(ConfigError::Nodes(report)));
        }
        Ok(())
    }

    fn refuse_one_server_twice(&self) -> Result<(), Error> {
        let core = self.engine.coordinator();
        if self.nodes().any(|node| core.trouble(node) == NodeError::SameServer) {
            let report = core.report_standings(clock::now());
            return Err(Error::Config(ConfigError::Nodes(report)));
        }
        Ok(())
    }
}

fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("the system's poller: {error}").into();
    Error::Config(ConfigError::System { problem })
}
