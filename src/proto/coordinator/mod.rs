//! The core's interface: events come in by `handle_*`, results go out by `poll_*`, callers make
//! requests, and the state can be looked at. The core never looks at a clock or a socket.
//!
//! The coordinator owns the waits and the locks; the locks own the cluster. The coordinator
//! contains no logic of its own: it passes each event to the layer that handles it, and what the
//! locks report to the waits.
//!
//! The hazard is order. The driver has to read what the sockets hold before it handles a timeout
//! ([`handle_timeout`](Coordinator::handle_timeout)), and to read the clock again after the reads
//! and before a lock is handed out ([`poll_completion`](Coordinator::poll_completion)). The
//! coordinator passes what the locks report to the waits before the caller gets its answer.

mod campaigns;
#[cfg(feature = "testing")]
mod fingerprint;
mod requests;

use std::time::Duration;

use crate::proto::cluster::Received;
use crate::proto::cluster::state::NodeState;
use crate::proto::election::elections::Elections;
use crate::proto::error::{ConfigError, Error, NodeError, NodeReply};
use crate::proto::ids::Op;
use crate::proto::lock::Lock;
use crate::proto::locks::Locks;
use crate::proto::locks::completions::Completion;
use crate::proto::locks::held::updates::{LockUpdate, LockUpdateKind};
use crate::proto::locks::writes::Writer;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::settings::{Credentials, Settings};
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use crate::proto::waits::Waits;
use crate::proto::wire::answers::TaskAnswer;
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::connection::PlainAnswers;

pub use crate::proto::cluster::{Action, NodeEvent};

/// How many locks are extended automatically in one turn, so that a turn stays short. The others
/// follow in the next turn, which is due immediately.
const EXTENDS_A_TURN: usize = 256;

/// The core: locks over N nodes, without a socket and without a clock.
///
/// With the feature `testing` it is `Clone`, for tests that go on from one state in several ways.
/// Of two copies only one may be driven against real nodes: see [`reseed`](Coordinator::reseed).
#[derive(Debug)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Coordinator {
    locks: Locks,
    waits: Waits,
    elections: Elections,
}

impl Coordinator {
    /// A coordinator of these nodes. `seed` is secret: tokens are drawn from it.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(settings: Settings, seed: [u8; 32], now: Instant) -> Result<Self, ConfigError> {
        settings.validate()?;
        let locks = Locks::new(settings, seed, now);
        Ok(Coordinator { locks, waits: Waits::default(), elections: Elections::default() })
    }

    /// Sets the running numbers as they are after 2^32 - `left` records, requests and tasks, for
    /// tests of what happens when these numbers begin again. Called before the first request.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.locks.start_before_wrap(left);
    }

    /// The settings that the coordinator was made with.
    pub fn settings(&self) -> &Settings {
        self.locks.cluster().settings()
    }

    /// Sets the credentials for the node, used from its next connection on.
    pub fn set_credentials(&mut self, node: NodeId, credentials: Credentials) {
        self.locks.cluster_mut().set_credentials(node, credentials);
    }

    /// The next thing that the driver has to do with a socket.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.locks.cluster_mut().poll_action()
    }

    /// Whether [`poll_action`](Coordinator::poll_action) has something.
    pub fn has_actions(&self) -> bool {
        self.locks.cluster().has_actions()
    }

    /// What is to be written to a node. Empty while the node is not connected.
    pub fn output(&self, node: NodeId) -> &[u8] {
        self.locks.cluster().output(node)
    }

    /// The driver begins only now to open the connection: the connect timeout counts from here.
    pub fn handle_connecting(&mut self, node: NodeId, now: Instant) {
        self.locks.cluster_mut().handle_connecting(node, now);
    }

    /// Takes note of where the driver found the server of a node whose URL does not say it: the
    /// reports of later failures begin with `place`.
    pub fn handle_found(&mut self, node: NodeId, place: &str) {
        self.locks.cluster_mut().handle_found(node, place);
    }

    /// Takes note that the TCP connection is open, and that TLS is spoken on it. Only the texts of
    /// reports depend on this call.
    pub fn handle_encrypting(&mut self, node: NodeId) {
        self.locks.cluster_mut().handle_encrypting(node);
    }

    /// Takes note that the connection that was asked for is open.
    pub fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.locks.cluster_mut().handle_connected(node, now);
    }

    /// Takes note that the first `count` bytes of the output were written.
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.locks.handle_sent(node, count, now);
    }

    /// Takes note that the connection is gone, or could not be opened; `words` is the text of the
    /// system's error.
    pub fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.locks.cluster_mut().handle_disconnected(node, words, now);
        self.locks.act_on_changes(now);
        self.act(now);
    }

    /// Takes what was read from a node.
    pub fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        let (mut input, mut flushed) = (bytes, false);
        loop {
            self.take_plain_answers(node, &mut input, now);
            let received = self.locks.cluster_mut().receive(node, &mut input, now);
            let Some(received) = received else { break };
            self.locks.act_on_changes(now);
            match received {
                Received::Lock(ask, reply) => {
                    self.locks.on_answer(node, ask, reply, now);
                    // Acts on the verdict that this answer brings before the node's state may
                    // change.
                    self.act(now);
                    self.check_for_replica(node, reply, now);
                }
                Received::Registered(record, left) => {
                    self.locks.on_registered(node, record, left, now);
                }
                Received::Task(task, answer) => {
                    self.locks.on_task_answer(node, task, answer, now);
                    if let TaskAnswer::Extended(_, reply) | TaskAnswer::ExtendedAll(_, reply, _) =
                        answer
                    {
                        self.check_for_replica(node, reply, now);
                    }
                }
                Received::Written(key) => self.locks.on_write(node, key, Writer::Other, now),
                Received::HandedOver => self.locks.on_hand_over(node, now),
                // Several flushes in one read cause one walk over the locks.
                Received::Flushed => flushed = true,
                Received::Changes => {}
            }
            self.act(now);
        }
        if flushed {
            self.locks.on_flush(node, now);
        }
        self.locks.cluster_mut().on_all_received(node, now);
        self.locks.act_on_changes(now);
        self.act(now);
    }

    /// Takes the answers that the input begins with, as long as they are plain ones: nearly
    /// everything that nodes send is.
    #[inline]
    fn take_plain_answers(&mut self, node: NodeId, input: &mut &[u8], now: Instant) {
        while let Some(PlainAnswers { kind, reply, count }) =
            self.locks.cluster_mut().receive_plain(node, input, now)
        {
            // Nearly every answer is one of the first two here.
            match (kind, reply) {
                (Kind::Acquire, NodeReply::Granted) => {
                    self.take_answered(node, count, now, Locks::on_acquire_granted);
                }
                (Kind::Release, NodeReply::Granted) => {
                    self.take_answered(node, count, now, Locks::on_release_granted);
                }
                _ => self.take_answered(node, count, now, |locks, node, ask, now| {
                    locks.on_answer(node, ask, reply, now);
                }),
            }
        }
    }

    /// Takes the oldest `count` questions to the node, each of which got an answer, and passes them
    /// on to `on_answer`.
    #[inline(always)]
    fn take_answered(
        &mut self,
        node: NodeId,
        count: usize,
        now: Instant,
        on_answer: impl Fn(&mut Locks, NodeId, LockAsk, Instant),
    ) {
        for _ in 0..count {
            let Some(ask) = self.locks.cluster_mut().take_answered(node) else { break };
            on_answer(&mut self.locks, node, ask, now);
            self.act(now);
        }
    }

    /// Stops using the node if it refused a write as a replica.
    fn check_for_replica(&mut self, node: NodeId, reply: NodeReply, now: Instant) {
        if reply == NodeReply::Failed(NodeError::Replica) {
            self.locks.cluster_mut().on_replica(node, now);
            self.locks.act_on_changes(now);
        }
    }

    /// The earliest moment at which [`handle_timeout`](Coordinator::handle_timeout) has something
    /// to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        let of_locks = self.locks.next_timeout();
        match self.elections.next_timeout() {
            None => of_locks,
            of_elections => of_locks.into_iter().chain(of_elections).min(),
        }
    }

    /// Whether what is due at `next`, the next timeout, may be done a millisecond late.
    pub fn may_be_late(&self, next: Instant) -> bool {
        self.locks.next_is_a_poll_in_line(next)
    }

    /// Handles what is due. If that is much, it leaves a part, which is due again immediately. Call
    /// this only after everything that the sockets hold was read, because a node is not silent
    /// while its answer is unread.
    ///
    /// Handles all losses that are due, and then renewals, of which it may leave some for the next
    /// turn.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.locks.do_next_due(now) {
            self.act(now);
        }
        self.go_on_with_campaigns(now);
        for _ in 0..EXTENDS_A_TURN {
            if !self.locks.prolong_next(now) {
                return;
            }
            self.act(now);
        }
    }

    /// The next request that has ended. A lock is handed out only before its deadline, so the
    /// caller reads the clock immediately before this call.
    pub fn poll_completion(&mut self, now: Instant) -> Option<Completion> {
        loop {
            let op = self.locks.ops_mut().pop_ready()?;
            if self.elections.take_ended(op) {
                continue;
            }
            if let Some(completion) = self.fetch(op, now) {
                return Some(completion);
            }
        }
    }

    /// The next request that has ended, if it is a release: its outcome depends on no moment. Any
    /// other end is for [`poll_completion`](Coordinator::poll_completion).
    pub(crate) fn poll_released(&mut self) -> Option<Completion> {
        self.locks.poll_released()
    }

    /// The next request that has ended, and its data, without the outcome. This is for drivers that
    /// wake a caller first and [`fetch`](Coordinator::fetch) the outcome later. Each end is
    /// reported once, here or by [`poll_completion`](Coordinator::poll_completion).
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        loop {
            let ended = self.locks.ops_mut().poll_ended()?;
            if !self.elections.take_ended(ended.0) {
                return Some(ended);
            }
        }
    }

    /// The outcome of a request; `None` if the request has not ended. A request whose end was
    /// reported goes on if its lock has expired since then and its wait has not. The caller reads
    /// the clock immediately before this call.
    pub fn fetch(&mut self, op: Op, now: Instant) -> Option<Completion> {
        let result = self.locks.fetch(op, now);
        self.act(now);
        result
    }

    /// The error that a request ended with, before the outcome is fetched.
    pub fn error(&self, op: Op) -> Option<&Error> {
        self.locks.ops().error(op)
    }

    /// Whether [`poll_completion`](Coordinator::poll_completion) may have something.
    pub fn has_completions(&self) -> bool {
        self.locks.ops().has_ready()
    }

    /// From now on, reports all updates of every lock that is handed out: also later deadlines, and
    /// also those of locks that are neither auto-extended nor watched. The loss of such a lock is
    /// reported at its deadline, or when an extend finds it.
    pub fn report_lock_updates(&mut self) {
        self.locks.report_lock_updates();
    }

    /// The next update of a lock that was handed out: a later deadline, a warning, and at last its
    /// loss, once. A lock that the caller released or gave away, or that ended with its client, is
    /// not reported lost. The driver takes all updates in each of its turns.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        let update = self.locks.poll_lock_update()?;
        if let LockUpdateKind::Lost(_) = update.kind {
            self.elections.note_loss(&update.token);
        }
        Some(update)
    }

    /// Whether [`poll_lock_update`](Coordinator::poll_lock_update) may have something.
    pub fn has_lock_updates(&self) -> bool {
        !self.locks.updates().is_empty()
    }

    /// How many updates are queued, also of locks that are over.
    #[cfg(feature = "testing")]
    pub fn queued_updates(&self) -> usize {
        self.locks.updates().queue_len()
    }

    /// The key of a lock, until no release of it is pending any more.
    pub fn key(&self, lock: &Lock) -> Option<&[u8]> {
        self.locks.key_of(lock)
    }

    /// The next thing that happened to a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.locks.cluster_mut().poll_node_event()
    }

    /// Whether the first handshakes are still in progress. An acquire that is requested now is
    /// held, for the connect timeout at most.
    pub fn is_starting(&self) -> bool {
        self.locks.is_starting()
    }

    /// The nodes that may be asked, in quarantine or not.
    pub fn ready(&self) -> NodeSet {
        let usable = |&node: &NodeId| self.node_state(node).is_usable();
        self.locks.cluster().all_nodes().iter().filter(usable).collect()
    }

    /// The nodes whose connection was lost a moment ago, and is being opened again without a pause.
    pub fn reconnecting(&self) -> NodeSet {
        let reconnecting = |&node: &NodeId| self.locks.cluster().is_reconnecting(node);
        self.locks.cluster().all_nodes().iter().filter(reconnecting).collect()
    }

    /// Why a node could not be asked last.
    pub fn last_error(&self, node: NodeId) -> NodeError {
        self.locks.cluster().last_error(node)
    }

    /// The state of a node.
    pub fn node_state(&self, node: NodeId) -> NodeState {
        self.locks.cluster().node_state(node)
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

    /// How many records are open: locks that are asked for, held, or not yet released on every
    /// node.
    pub fn open_records(&self) -> usize {
        self.locks.open_records()
    }

    /// Whether a request is in flight, or its outcome waits to be fetched.
    pub fn is_open(&self, op: Op) -> bool {
        self.locks.ops().get(op).is_some()
    }

    /// How many requests are in flight, or wait for their outcome to be fetched.
    pub fn open_ops(&self) -> usize {
        self.locks.ops().len()
    }

    /// How many locks are extended automatically, or watched.
    pub fn auto_extended_locks(&self) -> usize {
        self.locks.auto_extended_locks()
    }

    /// How many timers are set, of every kind.
    pub fn open_timers(&self) -> usize {
        self.locks.open_timers()
    }

    /// How many releases are pending for a node.
    pub fn pending_releases(&self, node: NodeId) -> usize {
        self.locks.pending_releases(node)
    }

    /// How many pending releases were dropped because their node was not connected, or refused
    /// them, for too long.
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

    /// Whether this client holds `key` and may renew that lock beyond `moment`: then only its
    /// holder can end it before.
    pub fn auto_extends_beyond(&self, key: &[u8], moment: Instant) -> bool {
        self.locks.auto_extends_beyond(key, moment)
    }

    /// The nodes that are known to hold the key for this lock, and whose grant counts: a majority
    /// when the lock is handed out, and more as their answers come. A node that was asked to extend
    /// the key is left out until it has answered.
    pub fn holders(&self, lock: &Lock) -> NodeSet {
        self.locks.holders(lock)
    }

    /// Acts on the verdicts that were reached, and passes what the locks report to the waits, until
    /// nothing is left. Every method that may change something ends with this call.
    #[inline]
    fn act(&mut self, now: Instant) {
        self.locks.act_on_verdicts(now);
        // This runs for every answer. Without waiters there is nothing to pass on.
        if self.locks.has_waits() {
            self.pass_waits_on(now);
        }
    }

    #[cold]
    fn pass_waits_on(&mut self, now: Instant) {
        while let Some(event) = self.locks.poll_wait(now) {
            self.waits.handle(event, &mut self.locks, now);
        }
    }
}
