//! The observer with the feature `tracing`: makes a span for each request, with an event at its
//! end, and events of locks and nodes.
//!
//! Without a subscriber each method only reads the most verbose level that any subscriber wants. It
//! reads the clock and copies keys only if there is a subscriber.

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

/// How many reported events of nodes are kept until the caller polls them.
const KEPT: usize = 256;

/// Whether a subscriber may want warnings. If none does, none wants any report.
#[inline]
fn is_on() -> bool {
    LevelFilter::current() >= LevelFilter::WARN
}

/// The span of a request, from its beginning to its end. If this value is dropped before the end,
/// the request counts as cancelled.
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

    /// Reports that the request has ended.
    #[inline]
    pub fn end<T: Ended>(mut self, result: &Result<T, Error>) {
        if let Some(began) = self.0.take() {
            began.end(result.as_ref().map(Ended::word));
        }
    }

    /// Reports that a release was sent, for whose answer nothing waits.
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

/// Opens the span of a request. A use of `debug_span!` has one fixed name, so each verb needs its
/// own use.
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

/// Reports what an engine does.
#[derive(Debug)]
pub struct Observer {
    interface: Interface,
    /// The spans of the requests in flight, if the program calls the engine itself.
    watches: HashMap<Op, Watch>,
    /// Events of nodes that were reported, but that the caller has not polled yet.
    nodes: VecDeque<NodeEvent>,
    /// The reports of a shared client, which are made after it has unlocked its mutex.
    heard: Vec<Report>,
}

impl Observer {
    /// The observer of an engine that belongs to this interface.
    pub fn new(interface: Interface) -> Observer {
        let (watches, nodes, heard) = (HashMap::new(), VecDeque::new(), Vec::new());
        Observer { interface, watches, nodes, heard }
    }

    /// Sets the interface to which the engine belongs.
    pub fn belongs_to(&mut self, interface: Interface) {
        self.interface = interface;
    }

    /// The key of a lock; `None` if no span needs it.
    #[inline]
    pub fn key_of(&self, core: &Coordinator, lock: &Lock) -> Option<Vec<u8>> {
        let wanted = self.interface == Interface::Engine && is_on();
        if wanted { core.key(lock).map(<[u8]>::to_vec) } else { None }
    }

    /// Opens the span of a request. Ends the span with the error if the request was refused.
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

    /// Reports a release that was sent, and for whose answer nothing waits.
    #[inline]
    pub fn sent(&self, key: impl Key) {
        if self.interface == Interface::Engine && is_on() {
            Watch::begin(Verb::Release, key.bytes()).ends_as_sent();
        }
    }

    /// Ends the span of a request, when the caller of an engine fetches its completion.
    #[inline]
    pub fn completed(&mut self, done: &Completion) {
        if self.interface != Interface::Engine || self.watches.is_empty() {
            return;
        }
        if let Some(watch) = self.watches.remove(&done.op) {
            watch.end(&done.result);
        }
    }

    /// Ends the span of a request that the caller cancelled.
    #[inline]
    pub fn forget(&mut self, op: Op) {
        if !self.watches.is_empty() {
            self.watches.remove(&op);
        }
    }

    /// Reports an update of a lock, when the caller fetches it.
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

    /// Reports the events of the nodes since the last call, and keeps them for the caller.
    #[inline]
    pub fn report_node_events(&mut self, core: &mut Coordinator) {
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

    /// Returns the next event of a node to the caller.
    pub fn next_node_event(&mut self, core: &mut Coordinator) -> Option<NodeEvent> {
        self.report_node_events(core);
        self.nodes.pop_front().or_else(|| core.poll_node_event())
    }

    /// Returns the collected reports. The shared client makes them after it has unlocked its mutex.
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

/// A key for a span, which may be unknown.
pub trait Key {
    /// The bytes of the key; empty if it is not known.
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

/// Reports that were collected while a shared client held its mutex, to be made afterwards.
#[derive(Debug)]
pub struct Heard(Vec<Report>);

impl Heard {
    /// Makes the reports. A panic of the subscriber does not harm the client.
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
        // The event `Quarantined` reports the cause.
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
