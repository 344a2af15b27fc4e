//! With the feature `tracing`: a span for each request, an event at its end, and events of locks
//! and nodes.
//!
//! Without a subscriber each method costs one read of the most verbose level that any subscriber
//! wants. The clock is read, and keys are copied, only if there is one.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Span, field::Empty};

use super::{Ended, Interface, Verb};
use crate::net::clock;
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::{Coordinator, NodeEvent};
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::lock::Lock;
use crate::proto::locks::completions::Completion;
use crate::proto::locks::held::updates::{LockUpdate, LockUpdateKind};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// How many events of nodes are kept for the caller after they were reported.
const KEPT: usize = 256;

/// Whether a subscriber may want warnings, which are the least that is reported.
#[inline]
fn is_on() -> bool {
    LevelFilter::current() >= LevelFilter::WARN
}

/// A request, from its beginning to its end. If it is dropped before, it was cancelled.
#[derive(Debug)]
pub struct Watch(Option<Began>);

#[derive(Debug)]
struct Began {
    span: Span,
    at: Instant,
}

impl Watch {
    /// Opens the span, as a child of the caller's.
    #[inline]
    pub fn begin(verb: Verb, key: &[u8]) -> Watch {
        Watch(is_on().then(|| Began { span: span(verb, key), at: clock::now() }))
    }

    /// The request has ended.
    #[inline]
    pub fn end<T: Ended>(mut self, result: &Result<T, Error>) {
        if let Some(began) = self.0.take() {
            began.end(result.as_ref().map(Ended::word));
        }
    }

    /// A release was sent, and its answer is not waited for.
    pub fn ends_as_sent(mut self) {
        if let Some(began) = self.0.take() {
            began.end(Ok("sent"));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(began) = self.0.take() {
            began.end(Ok("cancelled"));
        }
    }
}

impl Began {
    #[cold]
    fn end(self, result: Result<&'static str, &Error>) {
        let took = micros(clock::now().saturating_since(self.at));
        let outcome = result.unwrap_or_else(word);
        self.span.record("outcome", outcome);
        self.span.record("took_us", took);
        let span = &self.span;
        match result {
            Err(error) if !matches!(error, Error::Contended(_) | Error::Busy(_)) => {
                tracing::warn!(target: "redlatch", parent: span, outcome, took_us = took, %error);
            }
            Err(error) => {
                tracing::debug!(target: "redlatch", parent: span, outcome, took_us = took, %error);
            }
            Ok(_) => tracing::debug!(target: "redlatch", parent: span, outcome, took_us = took),
        }
    }
}

/// A macro has one name for all its spans, so each verb has its own.
#[cold]
fn span(verb: Verb, key: &[u8]) -> Span {
    macro_rules! named {
        ($name:literal) => {
            tracing::debug_span!(
                target: "redlatch",
                $name,
                key = %key.escape_ascii(),
                outcome = Empty,
                took_us = Empty
            )
        };
    }
    match verb {
        Verb::Acquire => named!("acquire"),
        Verb::Adopt => named!("adopt"),
        Verb::Extend => named!("extend"),
        Verb::Release => named!("release"),
    }
}

fn word(error: &Error) -> &'static str {
    match error {
        Error::Contended(_) => "contended",
        Error::NoQuorum(_) => "no_quorum",
        Error::Expired(_) => "expired",
        Error::Lost { .. } => "lost",
        Error::Busy(_) => "busy",
        Error::Config(_) => "misconfigured",
        Error::Closed(_) => "closed",
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// What an engine observes.
#[derive(Debug)]
pub struct Observer {
    interface: Interface,
    /// The requests in flight of an engine that the program calls itself.
    watches: HashMap<Op, Watch>,
    /// Events of nodes that were reported, and that the caller did not poll yet.
    nodes: VecDeque<NodeEvent>,
    /// What is reported after the lock of a shared client is released.
    heard: Vec<Report>,
}

impl Observer {
    /// The observer of an engine that belongs to this interface.
    pub fn new(interface: Interface) -> Observer {
        let (watches, nodes, heard) = (HashMap::new(), VecDeque::new(), Vec::new());
        Observer { interface, watches, nodes, heard }
    }

    /// The engine belongs to this interface.
    pub fn belongs_to(&mut self, interface: Interface) {
        self.interface = interface;
    }

    /// The key of a lock, if it is needed for a span.
    #[inline]
    pub fn key_of(&self, core: &Coordinator, lock: &Lock) -> Option<Vec<u8>> {
        let wanted = self.interface == Interface::Engine && is_on();
        if wanted { core.key(lock).map(<[u8]>::to_vec) } else { None }
    }

    /// A request was made, or refused.
    #[inline]
    pub fn asked(&mut self, asked: &Result<Op, Error>, verb: Verb, key: impl Key) {
        if self.interface == Interface::Engine && is_on() {
            let watch = Watch::begin(verb, key.bytes());
            match asked {
                Ok(op) => drop(self.watches.insert(*op, watch)),
                Err(error) => watch.end::<()>(&Err(error.clone())),
            }
        }
    }

    /// A release was sent without waiting for its answer.
    #[inline]
    pub fn sent(&self, key: impl Key) {
        if self.interface == Interface::Engine && is_on() {
            Watch::begin(Verb::Release, key.bytes()).ends_as_sent();
        }
    }

    /// The caller of an engine takes a completion.
    #[inline]
    pub fn completed(&mut self, done: &Completion) {
        if self.interface != Interface::Engine || self.watches.is_empty() {
            return;
        }
        if let Some(watch) = self.watches.remove(&done.op) {
            watch.end(&done.result);
        }
    }

    /// The caller cancelled a request.
    #[inline]
    pub fn forget(&mut self, op: Op) {
        if !self.watches.is_empty() {
            self.watches.remove(&op);
        }
    }

    /// The caller takes an update of a lock.
    #[inline]
    pub fn updated(&mut self, update: &LockUpdate) {
        if is_on() {
            self.report(match &update.kind {
                LockUpdateKind::Lost(error) => Report::Lost(error.clone()),
                LockUpdateKind::Expiring { deadline, key } => {
                    let left = deadline.saturating_since(clock::now());
                    Report::Expiring { key: key.clone(), left }
                }
                LockUpdateKind::Extended { .. } => return,
            });
        }
    }

    /// Reports what happened to the nodes since the last call.
    #[inline]
    pub fn look_at_nodes(&mut self, core: &mut Coordinator) {
        if is_on() {
            while let Some(event) = core.poll_node_event() {
                self.report(Report::of_node(event, core));
                if self.nodes.len() == KEPT {
                    self.nodes.pop_front();
                }
                self.nodes.push_back(event);
            }
        }
    }

    /// The next event of a node, for the caller.
    pub fn next_node_event(&mut self, core: &mut Coordinator) -> Option<NodeEvent> {
        self.look_at_nodes(core);
        self.nodes.pop_front().or_else(|| core.poll_node_event())
    }

    /// What was heard since the last call, to be reported by the caller.
    #[inline]
    pub fn take(&mut self) -> Heard {
        Heard(std::mem::take(&mut self.heard))
    }

    fn report(&mut self, report: Report) {
        if self.interface == Interface::Shared {
            self.heard.push(report);
        } else {
            report.emit();
        }
    }
}

/// A key that is known, or perhaps not.
pub trait Key {
    /// Its bytes; none if it is not known.
    fn bytes(&self) -> &[u8];
}

impl Key for &[u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Key for Option<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self.as_deref().unwrap_or_default()
    }
}

/// What was heard under a lock, to be reported after it.
#[derive(Debug)]
pub struct Heard(Vec<Report>);

impl Heard {
    /// Reports it. A panic of the subscriber does not end the client.
    #[inline]
    pub fn report(self) {
        for report in self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| report.emit()));
        }
    }
}

/// An event of a lock or a node.
#[derive(Debug)]
enum Report {
    Lost(Error),
    Expiring {
        key: Box<[u8]>,
        left: Duration,
    },
    /// An event of a node, and the label of the node.
    Node(NodeEvent, Box<str>),
}

impl Report {
    fn of_node(event: NodeEvent, core: &Coordinator) -> Report {
        let label = |node: NodeId| core.settings().nodes[node.index()].label.clone();
        let label = match event {
            NodeEvent::State { node, .. }
            | NodeEvent::Quarantined { node, .. }
            | NodeEvent::ClockJumped { node, .. }
            | NodeEvent::AddressStale { node }
            | NodeEvent::PendingReleasesSent { node, .. }
            | NodeEvent::PendingReleasesDropped { node, .. } => label(node),
            NodeEvent::QuorumReady | NodeEvent::QuorumGone => Box::default(),
        };
        Report::Node(event, label)
    }

    fn emit(self) {
        match self {
            Report::Lost(error) => {
                let key = error.report().map(|report| report.key.clone()).unwrap_or_default();
                tracing::warn!(target: "redlatch", key = %key.escape_ascii(), %error, "lock lost");
            }
            Report::Expiring { key, left } => {
                let (key, left_ms) = (key.escape_ascii(), millis(left));
                tracing::warn!(target: "redlatch", %key, left_ms, "lock not renewed yet");
            }
            Report::Node(event, node) => emit_node(event, &node),
        }
    }
}

fn emit_node(event: NodeEvent, node: &str) {
    match event {
        NodeEvent::State { state, .. } => emit_state(state, node),
        NodeEvent::Quarantined { why, until, .. } => {
            let left_ms = millis(until.saturating_since(clock::now()));
            tracing::warn!(target: "redlatch", node, %why, left_ms, "node in quarantine");
        }
        NodeEvent::ClockJumped { nanos, .. } => {
            tracing::warn!(target: "redlatch", node, jumped_ns = nanos, "clock of node jumped");
        }
        NodeEvent::PendingReleasesSent { count, .. } => {
            tracing::info!(target: "redlatch", node, count, "pending releases sent");
        }
        NodeEvent::PendingReleasesDropped { count, .. } => {
            tracing::warn!(target: "redlatch", node, count, "pending releases dropped");
        }
        NodeEvent::AddressStale { .. } => {
            tracing::info!(target: "redlatch", node, "address of node is stale");
        }
        NodeEvent::QuorumReady => tracing::info!(target: "redlatch", "quorum is ready"),
        NodeEvent::QuorumGone => tracing::warn!(target: "redlatch", "quorum is gone"),
    }
}

fn emit_state(state: NodeState, node: &str) {
    match state {
        NodeState::Ready => {
            tracing::info!(target: "redlatch", node, state = "ready", "node state");
        }
        NodeState::Connecting => {
            tracing::debug!(target: "redlatch", node, state = "connecting", "node state");
        }
        NodeState::Handshake => {
            tracing::debug!(target: "redlatch", node, state = "handshake", "node state");
        }
        // The cause of the quarantine is an event of its own.
        NodeState::Quarantined(_) => {
            tracing::info!(target: "redlatch", node, state = "quarantined", "node state");
        }
        NodeState::Suspect => {
            tracing::warn!(target: "redlatch", node, state = "suspect", "node state");
        }
        NodeState::Down(why) => {
            tracing::warn!(target: "redlatch", node, state = "down", %why, "node state");
        }
        NodeState::Rejected(why) => {
            tracing::warn!(target: "redlatch", node, state = "rejected", %why, "node state");
        }
    }
}

fn millis(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}
