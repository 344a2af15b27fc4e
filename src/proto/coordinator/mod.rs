//! The core's contract: what comes in by `handle_*`, what goes out by `poll_*`, what callers ask,
//! and what can be looked at. It never looks at a clock or a socket.
//!
//! It owns three machines: the waits, and the locks, which own the cluster. It decides nothing. It
//! hands what comes in to the machine that it is for, and what the locks report to the waits.
//!
//! The hazard is order. The driver reads what the sockets hold before it lets a timeout be believed
//! ([`handle_timeout`](Coordinator::handle_timeout)), and takes the time anew after the reads and
//! before a lock is handed out ([`poll_completion`](Coordinator::poll_completion)). And what the
//! locks report is given to the waits before the caller gets its answer.

mod requests;

use std::time::Duration;

use super::cluster::Heard;
use super::error::{ConfigError, Error, NodeError};
use super::link::Kind;
use super::lock::Lock;
use super::locks::Locks;
use super::node::{NodeId, NodeSet};
use super::ops::{Completion, Op};
use super::settings::{Credentials, Settings};
use super::standing::NodeState;
use super::stats::Stats;
use super::time::Instant;
use super::waits::Waits;

pub use super::cluster::{Action, NodeEvent};

/// How many kept locks are extended in one turn, so that a turn stays short. The others follow in
/// the next turn, which is due at once.
const EXTENDS_A_TURN: usize = 256;

/// The core: locks over N nodes, without a socket and without a clock.
#[derive(Debug)]
pub struct Coordinator {
    locks: Locks,
    waits: Waits,
}

impl Coordinator {
    /// A coordinator of these nodes. `seed` is secret: tokens are drawn from it.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(settings: Settings, seed: [u8; 32], now: Instant) -> Result<Self, ConfigError> {
        settings.validate()?;
        Ok(Coordinator { locks: Locks::new(settings, seed, now), waits: Waits::default() })
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        self.locks.cluster().settings()
    }

    /// Who we are to the node from its next connection on.
    pub fn set_credentials(&mut self, node: NodeId, credentials: Credentials) {
        self.locks.cluster_mut().set_credentials(node, credentials);
    }

    /// What has to be done with the sockets.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.locks.cluster_mut().poll_action()
    }

    /// Whether [`poll_action`](Coordinator::poll_action) has something.
    pub fn has_actions(&self) -> bool {
        self.locks.cluster().has_actions()
    }

    /// What is to be written to a node. Empty while it is not connected.
    pub fn output(&self, node: NodeId) -> &[u8] {
        self.locks.cluster().output(node)
    }

    /// The connection that was asked for is being opened only now: its time counts from here.
    pub fn handle_connecting(&mut self, node: NodeId, now: Instant) {
        self.locks.cluster_mut().handle_connecting(node, now);
    }

    /// The connection that was asked for is open.
    pub fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.locks.cluster_mut().handle_connected(node, now);
    }

    /// Takes note that the first `count` bytes of the output were written.
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.locks.cluster_mut().handle_sent(node, count, now);
    }

    /// The connection is gone, or could not be opened; `words` are the system's.
    pub fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.locks.handle_disconnected(node, words, now);
        self.act_on_waits(now);
    }

    /// Takes what was read from a node.
    pub fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        let (mut input, mut flushed) = (bytes, false);
        while let Some(heard) = self.locks.cluster_mut().hear(node, &mut input, now) {
            self.locks.act_on_changes(now);
            match heard {
                Heard::Answer(ask, answer) => {
                    // A caller waits for nobody who answers after the majority.
                    if ask.kind == Kind::Acquire && self.locks.is_deciding(ask.record) {
                        self.waits.note_round_trip(now.saturating_since(ask.asked_at));
                    }
                    self.locks.answered(node, ask, answer, now);
                }
                Heard::Written(key) => self.locks.was_written(node, key, now),
                // Of several flushes in what was read, the locks are walked over once.
                Heard::Flushed => flushed = true,
                Heard::Changes => {}
            }
            self.act_on_waits(now);
        }
        if flushed {
            self.locks.was_flushed(node, now);
        }
        self.locks.heard_of(node, now);
        self.act_on_waits(now);
    }

    /// The earliest moment at which [`handle_timeout`](Coordinator::handle_timeout) has something
    /// to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.locks.next_timeout()
    }

    /// Does what is due, or much of it: then more is due at once. Call it only when everything the
    /// sockets hold was read: an answer that lies there is no silence.
    ///
    /// Losses come before renewals: of a late turn, all that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.locks.do_next_due(now) {
            self.act_on_waits(now);
        }
        for _ in 0..EXTENDS_A_TURN {
            if !self.locks.prolong_next(now) {
                return;
            }
            self.act_on_waits(now);
        }
    }

    /// The next request that came to its end. A lock is handed out only before its deadline:
    /// `now` is read last of all.
    pub fn poll_completion(&mut self, now: Instant) -> Option<Completion> {
        loop {
            let op = self.locks.pop_ended()?;
            if let Some(completion) = self.fetch(op, now) {
                return Some(completion);
            }
        }
    }

    /// The next request that came to its end, and its data, without the end itself: for those who
    /// are woken first and [`fetch`](Coordinator::fetch) it later. Each end is told once, here or
    /// by [`poll_completion`](Coordinator::poll_completion).
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        self.locks.poll_ended()
    }

    /// What a request came to. `None` where it goes on: also one whose end was told goes on where
    /// its lock is over by now, and the wait is not. `now` is read last of all.
    pub fn fetch(&mut self, op: Op, now: Instant) -> Option<Completion> {
        let result = self.locks.fetch(op, now);
        self.act_on_waits(now);
        result
    }

    /// By which error a request came to its end, before that is fetched.
    pub fn error(&self, op: Op) -> Option<&Error> {
        self.locks.error(op)
    }

    /// Whether [`poll_completion`](Coordinator::poll_completion) may have something.
    pub fn has_completions(&self) -> bool {
        self.locks.has_completions()
    }

    /// The next thing that happened to a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.locks.cluster_mut().poll_node_event()
    }

    /// Whether all that is open are waiters that do not want to be told of anything for a while:
    /// then answers that are still on their way need wake nobody.
    pub fn is_deaf(&self) -> bool {
        self.locks.only_quiet_waiters()
    }

    /// Whether the first handshakes are not over: an acquire that is asked now is held, for the
    /// connect timeout at most.
    pub fn is_starting(&self) -> bool {
        self.locks.is_starting()
    }

    /// The nodes that may be asked, in quarantine or not.
    pub fn ready(&self) -> NodeSet {
        let usable = |&node: &NodeId| self.standing(node).is_usable();
        self.locks.cluster().all_nodes().iter().filter(usable).collect()
    }

    /// The nodes whose connection was lost a moment ago, and which are connected to again without
    /// a pause.
    pub fn coming_back(&self) -> NodeSet {
        let coming_back = |&node: &NodeId| self.locks.cluster().is_coming_back(node);
        self.locks.cluster().all_nodes().iter().filter(coming_back).collect()
    }

    /// Why a node could not be asked last.
    pub fn trouble(&self, node: NodeId) -> NodeError {
        self.locks.cluster().trouble(node)
    }

    /// What a node is to us at the moment.
    pub fn standing(&self, node: NodeId) -> NodeState {
        self.locks.cluster().standing(node)
    }

    /// How often in a row a node could not be made ready.
    pub fn failures(&self, node: NodeId) -> u32 {
        self.locks.cluster().failures(node)
    }

    /// How many questions to a node are unanswered.
    pub fn unanswered(&self, node: NodeId) -> usize {
        self.locks.cluster().unanswered(node)
    }

    /// What was counted so far.
    pub fn stats(&self) -> &Stats {
        self.locks.cluster().stats()
    }

    /// How many records are open: locks asked for, held, or not yet given back everywhere.
    pub fn open_records(&self) -> usize {
        self.locks.open_records()
    }

    /// Whether a request is under way or waits to be handed out: that of a kept lock is, while the
    /// lock is.
    pub fn is_open(&self, op: Op) -> bool {
        self.locks.is_open(op)
    }

    /// How many requests are under way or wait to be handed out.
    pub fn open_ops(&self) -> usize {
        self.locks.open_ops()
    }

    /// How many locks are kept.
    pub fn kept_locks(&self) -> usize {
        self.locks.kept_locks()
    }

    /// How many timers are set, of whatever kind.
    pub fn open_timers(&self) -> usize {
        self.locks.open_timers()
    }

    /// How many releases wait to be paid to a node.
    pub fn pending_releases(&self, node: NodeId) -> usize {
        self.locks.pending_releases(node)
    }

    /// How many pending releases were given up because their node was away, or refused them, for
    /// too long.
    pub fn pending_releases_dropped(&self) -> u64 {
        self.stats().nodes.iter().map(|node| node.pending_releases_dropped).sum()
    }

    /// When the lock ends; `None` once it is over.
    pub fn deadline(&self, lock: &Lock) -> Option<Instant> {
        self.locks.deadline(lock)
    }

    /// How long the lock may still be believed in; zero once it is over.
    pub fn remaining(&self, lock: &Lock, now: Instant) -> Duration {
        self.locks.remaining(lock, now)
    }

    /// The nodes that are known to hold the key for this lock, and whose grant counts: a majority
    /// once it is handed out, and more of them as their answers come. A node that was asked to
    /// prolong it is left out until it has answered.
    pub fn holders(&self, lock: &Lock) -> NodeSet {
        self.locks.holders(lock)
    }

    /// Gives the waits what the locks report, and what comes of that.
    fn act_on_waits(&mut self, now: Instant) {
        // This is on the path of every answer, and a lock that nobody waits for reports nothing.
        while self.locks.has_waits() {
            if let Some(event) = self.locks.poll_wait() {
                self.waits.handle(event, &mut self.locks, now);
            }
        }
    }
}
