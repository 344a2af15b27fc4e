//! The tool's one loop: an engine on a poller. Other parts have their sources on the poller as well
//! (signals, a child, a timer). A verb turns the loop until it has its result.
//!
//! The hazard is a first attempt before the nodes are connected: they would all count as refusing.
//! So a verb gathers them first, in a bounded time.

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

/// The nodes' tokens begin here; those below are for other sources.
pub const FIRST_NODE: usize = 1 << 16;

const EVENTS: usize = 64;

/// How long a prompt verb gives the other nodes once a quorum is ready: as long as the quorum took,
/// within these bounds. Healthy nodes are about equally fast.
const LEAST_GRACE: Duration = Duration::from_millis(1);
const MOST_GRACE: Duration = Duration::from_millis(50);

/// How long a verb waits for the nodes beyond a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// About as long as the quorum took: for a verb that needs a quorum and no more. A node that
    /// comes later gets the key with the first renewal.
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
    /// Tokens of the sources that are not the engine's and had an event in the last turn.
    others: Vec<Token>,
    /// The events of nodes that no caller has taken yet.
    node_events: Vec<NodeEvent>,
    names: (Sender<Found>, Receiver<Found>),
    /// Ends a sleep during which the machine was suspended.
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

    /// From now on suspend counts in every sleep: for a verb that runs a command. If the system has
    /// no timer for that, it does not.
    pub fn count_suspend(&mut self) {
        self.timer = Timer::new(self.poll.registry()).ok();
    }

    /// The registry for sources of other kinds, under tokens below `FIRST_NODE`.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// One turn, which sleeps until `until` at most. Returns the other sources that had an event.
    pub fn turn(&mut self, until: Option<Instant>) -> Result<&[Token], Error> {
        self.others.clear();
        while let Ok((node, found)) = self.names.1.try_recv() {
            // For a name that was not found the list is empty: it is looked up again after the next
            // failures.
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

    /// Turns until a request ends: for verbs that wait for nothing else.
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

    /// Turns until a quorum is ready and the others have had their time, or until every node has
    /// failed once, and for the connect timeout at most. Ends early with `false` if `stop` returns
    /// `true` for the events of other sources.
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
    /// `limit` at most. So no release that a node could still get is left unsent at the end. A node
    /// that was never asked, because it was not ready, is not waited for.
    pub fn settle(&mut self, limit: Duration) -> Result<(), Error> {
        self.settle_until(clock::now().saturating_add(limit), |_| true)
    }

    /// Turns until `done` and nothing is unsettled any more, but until `end` at most.
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

    /// Whether a node that was asked has not answered everything.
    pub fn awaits_answers(&self) -> bool {
        self.nodes().any(|node| self.owes_an_answer(node))
    }

    /// The nodes that were asked and have not answered everything, or have not got a release that
    /// is pending: a key of ours may stay there for its ttl.
    pub fn unsettled(&self) -> impl Iterator<Item = NodeId> + '_ {
        let pending = |node| self.engine.coordinator().pending_releases(node) > 0;
        self.nodes().filter(move |&node| self.owes_an_answer(node) || pending(node))
    }

    /// Whether a node that was ready has not answered everything. In a handshake nothing was asked
    /// that a lock depends on.
    fn owes_an_answer(&self, node: NodeId) -> bool {
        let core = self.engine.coordinator();
        let asked = core.node_state(node) != NodeState::Handshake;
        asked && core.unanswered(node) > 0
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.engine.coordinator().settings().nodes.len()).map(NodeId::new)
    }

    /// Takes the events of nodes. Names are looked up on threads of their own: a name server may be
    /// slow.
    fn take_news(&mut self) {
        while let Some(event) = self.engine.poll_node_event() {
            let NodeEvent::AddressStale { node } = event else {
                self.node_events.push(event);
                continue;
            };
            let Some(lookup) = self.engine.lookup(node) else { continue };
            let found = self.names.0.clone();
            let look_up = move || {
                // After the end no loop receives the result.
                let _ = found.send((node, lookup.run()));
            };
            // If no thread can be started, the next failure tries again.
            let _ = std::thread::Builder::new().name("name".into()).spawn(look_up);
        }
    }

    /// For a request that failed on `nodes`: returns an error if so many of them have a lasting
    /// trouble that the others are no quorum. That error says more than "no quorum".
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
