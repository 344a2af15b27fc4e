//! The tool's loop: an engine on a poller. Other modules register their event sources (signals, a
//! child, a timer) on the same poller. A verb turns the loop until it has its result.
//!
//! The hazard is a first attempt before the nodes are connected, because each of them would count
//! as failed. So a verb first calls [`EventLoop::gather`], which waits for the nodes for a bounded
//! time.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mio::{Events, Poll, Registry, Token};
use redlatch::{
    Config, ConfigError, Engine, Error, NodeError, NodeEvent, NodeId, NodeSet, NodeState, Op,
    Outcome, clock, clock::Instant, majority,
};

use crate::suspend::Timer;

/// The first poller token of the engine. Lower tokens are for other event sources.
pub const FIRST_NODE: usize = 1 << 16;

const EVENTS: usize = 64;

/// How long a verb with [`Patience::Prompt`] waits for the other nodes after a quorum is ready: as
/// long as the quorum took, within these bounds. Healthy nodes are about equally fast.
const LEAST_GRACE: Duration = Duration::from_millis(1);
const MOST_GRACE: Duration = Duration::from_millis(50);

/// How long a verb waits for the nodes beyond a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// About as long as the quorum took: for a verb that needs only a quorum. A node that connects
    /// later gets the key with the first renewal.
    Prompt,
    /// A node timeout: for a verb that has to reach every node that it can.
    Thorough,
}

/// The result of a name lookup.
type Found = (NodeId, io::Result<Vec<SocketAddr>>);

/// An engine on a poller.
pub struct EventLoop {
    pub engine: Engine,
    poll: Poll,
    events: Events,
    /// The other event sources that had an event in the last turn.
    others: Vec<Token>,
    /// The events of nodes that [`EventLoop::take_events`] has not returned yet.
    node_events: Vec<NodeEvent>,
    names: (Sender<Found>, Receiver<Found>),
    /// Wakes the poller on time even if the machine was suspended during the sleep.
    timer: Option<Timer>,
}

impl EventLoop {
    /// Opens the loop; nothing is connected yet.
    pub fn new(config: Config) -> Result<EventLoop, Error> {
        let poll = Poll::new().map_err(|error| poller_failed(&error))?;
        let engine = Engine::new(config, poll.registry(), Token(FIRST_NODE))?;
        let events = Events::with_capacity(EVENTS);
        let (others, node_events, names) = (Vec::new(), Vec::new(), channel());
        Ok(EventLoop { engine, poll, events, others, node_events, names, timer: None })
    }

    /// Lets the time during which the machine is suspended count in every sleep from now on: for a
    /// verb that runs a command. Does nothing if the system has no timer for that.
    pub fn count_suspend(&mut self) {
        self.timer = Timer::new(self.poll.registry()).ok();
    }

    /// The registry for other event sources, which use tokens below `FIRST_NODE`.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Makes one turn, which sleeps until `until` at most. Returns the other event sources that had
    /// an event.
    pub fn turn(&mut self, until: Option<Instant>) -> Result<&[Token], Error> {
        self.others.clear();
        while let Ok((node, found)) = self.names.1.try_recv() {
            // If the name was not found, the list is empty, and the engine asks for another lookup
            // after the next failures.
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
        self.take_node_events();
        Ok(&self.others)
    }

    /// Turns until this request ends, and returns its result: for verbs that wait for nothing else.
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

    /// The events of the nodes since the last call.
    pub fn take_events(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.node_events)
    }

    /// Turns until every node is connected or has failed once, or until a quorum is ready and the
    /// other nodes have had the time of `patience`, but for the connect timeout at most. Ends early
    /// and returns `false` if `stop` returns `true` for the events of other sources.
    pub fn gather(
        &mut self,
        patience: Patience,
        mut stop: impl FnMut(&[Token]) -> bool,
    ) -> Result<bool, Error> {
        let settings = self.engine.coordinator().settings();
        let (nodes, node_timeout) = (settings.nodes.len(), settings.node_timeout);
        let start = clock::now();
        let end = start.saturating_add(settings.connect_timeout);
        let mut quorum_since = None;
        loop {
            let (now, core) = (clock::now(), self.engine.coordinator());
            let mut until = end;
            if core.ready().len() > nodes / 2 {
                let since: Instant = *quorum_since.get_or_insert(now);
                let grace = match patience {
                    Patience::Prompt => {
                        since.saturating_since(start).clamp(LEAST_GRACE, MOST_GRACE)
                    }
                    Patience::Thorough => node_timeout,
                };
                until = since.saturating_add(grace).min(end);
            }
            if core.reconnecting().is_empty() || now >= until {
                self.refuse_one_server_twice()?;
                return Ok(true);
            }
            if stop(self.turn(Some(until))?) {
                return Ok(false);
            }
        }
    }

    /// Turns until every node that was asked has answered and no release is pending, but for
    /// `limit` at most. So a node that can be reached gets its releases before the tool ends. Does
    /// not wait for a node that was never asked, because it was not ready.
    pub fn settle(&mut self, limit: Duration) -> Result<(), Error> {
        self.settle_until(clock::now().saturating_add(limit), |_| true)
    }

    /// Turns until `done` returns `true` and no node is unsettled, but until `end` at most.
    pub fn settle_until(
        &mut self,
        end: Instant,
        mut done: impl FnMut(&mut Engine) -> bool,
    ) -> Result<(), Error> {
        // The loop turns at least once: the last requests may not be written yet.
        self.engine.flush();
        while !(done(&mut self.engine) && self.unsettled().next().is_none()) && clock::now() < end {
            self.turn(Some(end))?;
        }
        Ok(())
    }

    /// Whether any node that was asked still has to answer something.
    pub fn awaits_answers(&self) -> bool {
        self.nodes().any(|node| self.has_to_answer(node))
    }

    /// The nodes that still have to answer something, or have not got a pending release. A key of
    /// this client may stay on them for its ttl.
    pub fn unsettled(&self) -> impl Iterator<Item = NodeId> + '_ {
        let pending = |node| self.engine.coordinator().pending_releases(node) > 0;
        self.nodes().filter(move |&node| self.has_to_answer(node) || pending(node))
    }

    /// Whether a node still has to answer something. The questions of a handshake do not count,
    /// because no lock depends on them.
    fn has_to_answer(&self, node: NodeId) -> bool {
        let core = self.engine.coordinator();
        let asked = core.node_state(node) != NodeState::Handshake;
        asked && core.unanswered(node) > 0
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.engine.coordinator().settings().nodes.len()).map(NodeId::new)
    }

    /// Fetches the events of nodes from the engine. Looks up each stale name on a thread of its
    /// own, because a name server may be slow.
    fn take_node_events(&mut self) {
        while let Some(event) = self.engine.poll_node_event() {
            let NodeEvent::AddressStale { node } = event else {
                self.node_events.push(event);
                continue;
            };
            let Some(lookup) = self.engine.lookup(node) else { continue };
            let found = self.names.0.clone();
            let look_up = move || {
                // If the loop has ended, no receiver is left.
                let _ = found.send((node, lookup.run()));
            };
            // If no thread can be started, the name is looked up after a later failure.
            let _ = std::thread::Builder::new().name("name".into()).spawn(look_up);
        }
    }

    /// For a request that failed on `nodes`: returns an error if so many of them failed for a
    /// lasting reason that the others are no quorum. That error says more than "no quorum".
    pub fn refuse_lasting_trouble(&self, nodes: NodeSet) -> Result<(), Error> {
        let core = self.engine.coordinator();
        let lasting = nodes.iter().filter(|&node| core.last_error(node).is_permanent()).count();
        let all = core.settings().nodes.len();
        if lasting > all - majority(all) {
            let report = core.report_node_states(clock::now());
            return Err(Error::Config(ConfigError::Nodes(report)));
        }
        Ok(())
    }

    fn refuse_one_server_twice(&self) -> Result<(), Error> {
        let core = self.engine.coordinator();
        if self.nodes().any(|node| core.last_error(node) == NodeError::SameServer) {
            let report = core.report_node_states(clock::now());
            return Err(Error::Config(ConfigError::Nodes(report)));
        }
        Ok(())
    }
}

fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("poller: {error}").into();
    Error::Config(ConfigError::System { problem })
}
