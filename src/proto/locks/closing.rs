//! The end of a client: every request is cancelled. `close` releases the locks that were not handed
//! out, and `release_all` releases every lock. Also the copy of a client in a forked process, which
//! has nothing to release.

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
    /// Ends the client: cancels every request, and releases each lock that was won and not handed
    /// out.
    pub fn close(&mut self, now: Instant) {
        let attended = self.cluster.set_unattended();
        let mut released = self.records.ids();
        released.retain(|&id| attended && self.records.get(id).phase == Phase::Ending);
        let unanswered = |id: RecordId| (id, self.records.get(id).pending.releasing());
        let released: Vec<_> = released.into_iter().map(unanswered).collect();
        self.cancel_queued(now);
        // Releases that were never sent come first: the repeats may fill the outboxes.
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

    /// Cancels every request and releases every lock, handed out or not. What is open afterwards
    /// (`open_records`) are pending releases, which are sent like any others.
    pub fn release_all(&mut self, now: Instant) {
        self.cancel_queued(now);
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for id in self.records.ids() {
            // The end of an earlier record may have closed this record.
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

    /// Cancels the requests that wait for their turn.
    fn cancel_queued(&mut self, now: Instant) {
        let waits = |stage: &Stage| matches!(stage, Stage::Queued { .. } | Stage::Gathering { .. });
        for op in self.ops.all() {
            if self.ops.stage_mut(op).is_some_and(|stage| waits(stage)) {
                self.cancel(op, now);
            }
        }
    }

    /// Sends a connected node the releases that wait for it: no later turn will. Neither a pause
    /// nor the silence of the node puts them off any more, nor its full outbox: there is one
    /// release for each record at most.
    fn send_last_releases(&mut self, node: NodeId, now: Instant) {
        while self.cluster.hears_releases(node, true) {
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

    /// Repeats by their source the releases of a record that these nodes did not answer. A release
    /// by a SHA1 that the node forgot would fail, and the client will not be there to repeat it.
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

    /// Follows each release in line that is in flight by a plain one. The client reads no answer
    /// any more, so it does not learn where its user may not use the line.
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

    /// Called in a forked process: the records, connections and pending releases are the parent's.
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
