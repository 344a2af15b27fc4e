//! Acts on the changes of nodes that the cluster reports, in their order.
//!
//! The hazard is a change that no code acts on: the next answer would be judged by an old state of
//! its node. So every method that lets the cluster act calls
//! [`act_on_changes`](Locks::act_on_changes) before it returns, or takes the changes out one by
//! one.

use rand::RngExt;

use crate::proto::cluster::Change;
use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::locks::Locks;
use crate::proto::locks::record::records::Phase;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, Kind, LockAsk};

impl Locks {
    /// Acts on all changes of the nodes.
    #[inline]
    pub fn act_on_changes(&mut self, now: Instant) {
        // Inlined, because it runs for every answer, and usually there is no change.
        while self.cluster.has_changes() {
            // The change must not alter a verdict that was reached before it.
            self.act_on_verdicts(now);
            if let Some((node, change)) = self.cluster.poll_change() {
                self.on_change(node, change, now);
            }
        }
    }

    fn on_change(&mut self, node: NodeId, change: Change, now: Instant) {
        match change {
            Change::Distrusted(why) => self.doubt_votes(node, why, now),
            Change::NothingComesLate => self.take_unproven(node, |record| {
                let expires_at = record.gone_if_executed(now);
                record.pending.on_proof(node, expires_at);
            }),
            Change::OtherProcess => self.on_other_process(node, now),
            Change::NoProof => {
                self.take_unproven(node, |record| record.pending.on_no_proof(node));
            }
            Change::Vetted => {
                self.pending_releases[node.index()].on_admitted(&mut self.timers);
                self.cluster.admit(node, now);
                self.renewals.set_spare_nodes(self.cluster.spare_nodes());
                self.send_pending_releases(node, now);
                self.on_first_handshake_end(now);
                self.cluster.start_probing(node, now);
            }
            Change::Listens => self.join_at(node, now),
            Change::CaughtUp => {
                self.on_first_handshake_end(now);
                self.send_pending_releases(node, now);
                // Subscribes at the node if the client began to listen while the node was silent.
                self.cluster.begin_to_listen(node, now);
                self.join_at(node, now);
            }
            Change::Lost { cause, asks, provable } => {
                let random = self.random.rng().random();
                self.cluster.plan_reconnect(node, random, now);
                let away = self.longest_absence();
                let pending = &mut self.pending_releases[node.index()];
                pending.on_disconnected(away, &mut self.timers, now);
                self.forget_hand_overs(node);
                for ask in asks {
                    self.on_ask_lost(node, ask, cause, provable, now);
                    // Acts on verdicts after each question, so that attempts that end write their
                    // releases in the order of their requests.
                    self.act_on_verdicts(now);
                }
                self.on_first_handshake_end(now);
            }
        }
    }

    /// The connection with this unanswered question was lost.
    fn on_ask_lost(
        &mut self,
        node: NodeId,
        ask: Ask,
        cause: NodeError,
        provable: bool,
        now: Instant,
    ) {
        match ask {
            Ask::Lock(ask) => {
                self.cluster.stats_mut().failed(node, cause);
                self.on_lock_ask_lost(node, ask, cause, provable, now);
            }
            Ask::Task(task, _) => {
                self.cluster.stats_mut().failed(node, cause);
                self.on_task_ask_lost(node, task, cause, now);
            }
            Ask::Register(..) | Ask::Node(_) => {}
        }
    }

    fn on_lock_ask_lost(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        cause: NodeError,
        provable: bool,
        now: Instant,
    ) {
        if ask.kind == Kind::Exists {
            self.on_answer(node, ask, NodeReply::Failed(cause), now);
            return;
        }
        let reconnecting = self.cluster.is_reconnecting(node);
        let late = self.awaits_late_vote(ask);
        let record = self.records.get_mut(ask.record);
        // A join is no vote in a round.
        let in_line = ask.kind == Kind::Join;
        let mut vote = (record.round.number == ask.round || late) && !in_line;
        if ask.kind.may_create() {
            record.end_heal(node);
            record.on_ask_lost(node, provable, now);
            if provable {
                self.pending_releases[node.index()].expect_proof(ask.record);
            }
        } else {
            record.pending.on_release_over(node);
            if record.pending.is_release_pending(node) {
                self.pending_releases[node.index()].push(ask.record, now);
                // The release is sent again on the next connection. If that one is being opened
                // already, the node may still answer in time: so it does not vote yet.
                vote &= !reconnecting;
            }
        }
        if vote {
            self.cast(ask.record, node, NodeReply::Failed(cause));
        }
        self.finish(ask.record);
    }

    /// The node may have forgotten keys just now. A key of ours there may have been written after
    /// the node forgot the key of another client: so its vote is withdrawn from a round that is not
    /// decided yet. Exception: a held lock keeps the vote of a node where its key is proven
    /// (`Record::is_proven`), because no other client can have had the key there.
    ///
    /// If the client noticed only later that the node forgot keys, our key may have been written
    /// there after that. So the proof ends, too.
    fn doubt_votes(&mut self, node: NodeId, why: QuarantineReason, now: Instant) {
        self.doubt_tasks(node, now);
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            if why.is_noticed_late() {
                record.proof.end(node.into());
            }
            if let (Phase::Asking, Some(line)) = (record.phase, record.line_mut()) {
                line.forget(node);
            }
            let withdrawn = match record.phase {
                Phase::Asking => true,
                Phase::Held => !record.is_proven(node, now),
                Phase::Ending | Phase::Given => false,
            };
            if !withdrawn {
                continue;
            }
            record.uncounted.insert(node);
            self.withdraw_vote(id, node);
        }
    }
}
