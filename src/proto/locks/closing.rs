//! The end of a client: every request is cancelled, and every lock released. Also the copy of a
//! client in a forked process, which has nothing to release.

use crate::proto::error::{ClosedReason, Error, LostReason};
use crate::proto::ids::RecordId;
use crate::proto::locks::pending_releases::PendingReleases;
use crate::proto::locks::records::{Phase, Records};
use crate::proto::locks::requests::Stage;
use crate::proto::locks::tasks::Tasks;
use crate::proto::locks::{Flushes, Locks};
use crate::proto::time::Instant;
use crate::proto::timers::Timers;
use crate::proto::wire::command;
use crate::proto::wire::command::Form;

impl Locks {
    /// Ends the client: cancels every request, and releases each lock that was won and not handed
    /// out.
    pub fn close(&mut self, now: Instant) {
        let attended = self.cluster.set_unattended();
        let mut released = self.records.ids();
        released.retain(|&id| attended && self.records.get(id).phase == Phase::Ending);
        self.cancel_queued(now);
        // Releases that were never sent come first: the repeats may fill the outboxes.
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for id in released {
            self.release_by_source(id, now);
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
            // The end of an earlier record may have closed this one.
            if self.records.is_open(id) && self.records.get(id).phase == Phase::Held {
                self.end_extend(id, LostReason::Over, now);
                self.end_as(id, Form::Source, now);
            }
        }
    }

    /// Cancels the requests that wait for their turn.
    fn cancel_queued(&mut self, now: Instant) {
        for op in self.ops.all() {
            if matches!(self.ops.get_mut(op).map(|r| &r.stage), Some(Stage::Queued { .. })) {
                self.cancel(op, now);
            }
        }
    }

    /// Repeats the unanswered releases of a record by their source. A release by a SHA1 that the
    /// node forgot would fail, and the client will not be there to repeat it.
    fn release_by_source(&mut self, id: RecordId, now: Instant) {
        if self.records.is_open(id) {
            let record = self.records.get(id);
            for node in record.releasing.iter() {
                let key = self.key_prefix.put_before(&record.key);
                self.cluster.repeat_release(node, now, |out| {
                    command::release(out, Form::Source, key, &record.token);
                });
            }
        }
    }

    /// Called in a forked process: the records, connections and pending releases are the parent's.
    pub fn abandon_after_fork(&mut self) {
        self.abandoned = true;
        self.cluster.stats_mut().held = 0;
        self.records = Records::new(self.cluster.settings().limits.records);
        self.tasks = Tasks::default();
        self.auto_extended.clear();
        self.waits.clear();
        self.updates.clear();
        (self.timers, self.prolongs) = (Timers::new(), Timers::new());
        self.cluster.abandon_after_fork();
        self.starting = false;
        self.pending_releases.fill_with(PendingReleases::default);
        self.flushes.fill_with(Flushes::default);
        for op in self.ops.all() {
            self.ops.move_to(op, Stage::Over(Err(Error::Closed(ClosedReason::Forked))));
        }
    }
}
