//! The end of a client: every request is cancelled. `close` releases the locks that were not handed
//! out, and `release_all` releases every lock. A copy of the client in a forked process releases
//! nothing, because the locks are the parent's.

use crate::proto::error::{ClosedReason, Error, LostReason};
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::{Question, encode, encode_all};
use crate::proto::locks::flushes::Flushes;
use crate::proto::locks::record::records::{Phase, Records};
use crate::proto::locks::release::queue::PendingReleases;
use crate::proto::locks::renew::renewals::Renewals;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::task::tasks::Tasks;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::timers::Timers;
use crate::proto::wire::ask::{Encoding, Kind, Names};
use crate::proto::wire::command::Form;

impl Locks {
    /// Ends the client: cancels every request, releases each lock that was won and not handed out,
    /// and writes the pending releases.
    pub fn close(&mut self, now: Instant) {
        let attended = self.cluster.set_unattended();
        let mut released = self.records.ids();
        released.retain(|&id| attended && self.records.get(id).phase == Phase::Ending);
        let unanswered = |id: RecordId| (id, self.records.get(id).pending.releasing());
        let released: Vec<_> = released.into_iter().map(unanswered).collect();
        self.cancel_queued(now);
        // Releases that were never sent are written first, because the repeated ones may fill the
        // outboxes.
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for id in self.records.ids() {
            if !self.records.is_open(id) {
                continue;
            }
            self.renewals.end(self.records.get_mut(id), &mut self.timers);
            self.updates.withdraw(id, &mut self.records);
            if self.records.get(id).waits_for_its_deadline() {
                self.end_as(id, Form::Source, None, now);
            }
        }
        for node in self.cluster.all_nodes().iter() {
            self.send_last_releases(node, now);
        }
        for (id, nodes) in released {
            self.release_by_source(id, nodes, now);
        }
        for id in self.records.ids() {
            self.release_without_the_line(id, now);
        }
    }

    /// Cancels every request and releases every lock, handed out or not. The records that are open
    /// afterwards (`open_records`) have pending releases, which the driver sends as usual.
    pub fn release_all(&mut self, now: Instant) {
        self.cancel_queued(now);
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for id in self.records.ids() {
            // Ending an earlier record of this list may have closed this one.
            if !self.records.is_open(id) {
                continue;
            }
            let record = self.records.get(id);
            if record.phase == Phase::Held || record.waits_for_its_deadline() {
                self.end_extend(id, LostReason::Over, now);
                self.end_as(id, Form::Source, None, now);
            }
        }
    }

    /// Cancels the requests that wait in queues.
    fn cancel_queued(&mut self, now: Instant) {
        let waits = |stage: &Stage| matches!(stage, Stage::Queued { .. } | Stage::Gathering { .. });
        for op in self.ops.all() {
            if self.ops.stage_mut(op).is_some_and(|stage| waits(stage)) {
                self.cancel(op, now);
            }
        }
    }

    /// Sends a connected node its pending releases, because no later turn will do so. The client
    /// waits neither for the end of a pause, nor for an answer of a silent node, nor for room in
    /// its outbox: there is at most one release for each record.
    fn send_last_releases(&mut self, node: NodeId, now: Instant) {
        while self.cluster.takes_releases(node, true) {
            let Some(id) = self.pending_releases[node.index()].pop() else { return };
            if !self.records.is_open(id) {
                continue;
            }
            let record = self.records.get(id);
            let pending = &record.pending;
            let is_due = pending.is_release_pending(node) && !pending.has_lapsed(node, now);
            if record.phase == Phase::Ending && is_due && !pending.releasing().contains(node) {
                let form = self.native_release(node, id).map_or(Form::Source, Form::Native);
                self.ask_to_release(node.into(), id, form, now);
            }
        }
    }

    /// Repeats the releases that these nodes have not answered, by the source of the script. A node
    /// may have forgotten the script: then a release by its SHA1 fails, and the client is not there
    /// any more to repeat it.
    fn release_by_source(&mut self, id: RecordId, nodes: NodeSet, now: Instant) {
        if !self.records.is_open(id) {
            return;
        }
        for node in nodes.iter() {
            let names = Question::of(Kind::Release).names(self.records.get(id), node.into());
            let sent = Encoding { form: Some(Form::Source), names };
            self.encode(node.into(), id, Kind::Release, sent, now);
            if names == Names::KeyAndLine {
                self.cluster.say_last_word(node, now, &self.command);
            } else {
                self.cluster.repeat_release(node, names.is_all_keys(), now, &self.command);
            }
        }
    }

    /// Sends a plain release after each unanswered release that hands the key over. If the user may
    /// not use the line on a node, the first one fails there, and the client does not read that
    /// answer any more.
    fn release_without_the_line(&mut self, id: RecordId, now: Instant) {
        if !self.records.is_open(id) {
            return;
        }
        let record = self.records.get(id);
        if !record.hands_over() || record.phase != Phase::Ending {
            return;
        }
        for node in record.pending.releasing().minus(record.plain()).iter() {
            self.command.clear();
            let what = (Kind::Release, Form::Source);
            if record.set().is_some() {
                encode_all(&mut self.command, &self.key_prefix, record, what, false, now);
            } else {
                let key = self.key_prefix.put_before(&record.key);
                encode(&mut self.command, key, record, what, now);
            }
            self.cluster.say_last_word(node, now, &self.command);
        }
    }

    /// Called in a forked process: forgets all records, connections and pending releases, because
    /// they are the parent's, and ends every request with an error.
    pub fn abandon_after_fork(&mut self) {
        self.forked = true;
        self.cluster.stats_mut().held = 0;
        self.records = Records::new(self.cluster.settings().limits.records);
        self.tasks = Tasks::default();
        self.renewals = Renewals::new(&self.cluster);
        self.verdicts.clear();
        self.waits.clear();
        self.updates.clear();
        self.timers = Timers::new();
        self.cluster.abandon_after_fork();
        self.starting = false;
        let nodes = self.cluster.all_nodes();
        self.pending_releases = nodes.iter().map(PendingReleases::of).collect();
        self.flushes.fill_with(Flushes::default);
        for op in self.ops.all() {
            self.ops.move_to(op, Stage::Over(Err(Error::Closed(ClosedReason::Forked))));
        }
    }
}
