//! The end of a client: everything is taken back and released, once and for all; and the copy of a
//! client in a forked process, which has nothing to release.

use super::*;

impl Locks {
    /// The end: takes back every request, and releases what was won and not handed out.
    pub fn close(&mut self, now: Instant) {
        let attended = self.cluster.set_unattended();
        let mut released = self.records.numbers();
        released.retain(|&number| attended && self.records.get(number).phase == Phase::Ending);
        self.cancel_queued(now);
        // What was never said comes first: the repeats may take what room there is.
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for number in released {
            self.release_by_source(number, now);
        }
    }

    /// Takes back every request and gives back every lock, handed out or not: what is open behind
    /// it are pending releases (`open_records`), to be paid as any others.
    pub fn release_all(&mut self, now: Instant) {
        self.cancel_queued(now);
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for number in self.records.numbers() {
            // What was ended before may have closed it.
            if self.records.contains(number) && self.records.get(number).phase == Phase::Held {
                self.end_extend(number, LostReason::Over, now);
                self.end_as(number, Form::Source, now);
            }
        }
    }

    /// Those that are lined up are taken back: it is the end.
    fn cancel_queued(&mut self, now: Instant) {
        for op in self.ops.all() {
            if matches!(self.ops.get_mut(op).map(|r| &r.stage), Some(Stage::Queued { .. })) {
                self.cancel(op, now);
            }
        }
    }

    /// Says the unanswered releases of a record once more by their source: nobody will repeat one
    /// that went by a SHA1 which the node forgot.
    fn release_by_source(&mut self, number: u32, now: Instant) {
        if self.records.contains(number) {
            let record = self.records.get(number);
            for node in record.releasing.iter() {
                self.cluster.repeat_release(node, now, |out| {
                    command::release(out, Form::Source, &record.key, &record.token);
                });
            }
        }
    }

    /// This is the copy of a forked process: its records, connections and pending releases are the
    /// parent's.
    pub fn disown(&mut self, now: Instant) {
        self.records = Records::new(self.cluster.settings().limits.records);
        self.keeper.clear();
        self.waits.clear();
        (self.timers, self.prolongs) = (Timers::new(), Timers::new());
        self.cluster.disown();
        self.starting = false;
        self.pending_releases.fill_with(PendingReleases::default);
        self.flushes.fill_with(Flushes::default);
        for op in self.ops.all() {
            let error = ConfigError::Nodes(self.cluster.report_standings(now));
            self.ops.move_to(op, Stage::Over(Err(error.into())));
        }
    }
}
