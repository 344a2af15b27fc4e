//! The end of a client: everything is taken back and released, once and for all; and the copy of a
//! client in a forked process, which has nothing to release.

use super::*;

impl Coordinator {
    /// The end: takes back every request, and releases what was won and not handed out. What is
    /// in the outboxes behind it needs no answer.
    pub fn close(&mut self, now: Instant) {
        let attended = std::mem::replace(&mut self.settings.attended, false);
        let mut released = self.records.numbers();
        released.retain(|&number| attended && self.records.get(number).phase == Phase::Ending);
        self.send_queues_away(now);
        // What was never said comes first: the repeats may take what room there is.
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for number in released {
            self.release_by_source(number, now);
        }
    }

    /// Takes back every request and gives back every lock, handed out or not: what is open behind
    /// it are debts ([`open_records`](Coordinator::open_records)), to be paid as any others.
    pub fn let_all_go(&mut self, now: Instant) {
        self.send_queues_away(now);
        for op in self.ops.all() {
            self.cancel(op, now);
        }
        for number in self.records.numbers() {
            // What was ended before may have closed it.
            if self.records.contains(number) && self.records.get(number).phase == Phase::Held {
                self.end_extend(number, Loss::Over, now);
                self.end_as(number, Form::Source, now);
            }
        }
    }

    /// Says the unanswered releases of a record once more by their source: nobody will repeat one
    /// that went by a SHA1 which the node forgot.
    fn release_by_source(&mut self, number: u32, now: Instant) {
        if self.records.contains(number) {
            let record = self.records.get(number);
            for node in record.releasing.iter() {
                let it = &mut self.nodes[node.index()];
                if it.vetted.native.is_none() {
                    it.link.ask(Ask::new(0, 0, Kind::LastWord, now), |out| {
                        command::release(out, Form::Source, &record.key, &record.token);
                    });
                }
            }
        }
    }

    /// This is the copy of a forked process: its records, connections and debts are the parent's.
    /// Every request ends as [`ConfigError::Nodes`], now and from now on, and nothing is written.
    pub fn disown(&mut self, now: Instant) {
        self.records = Records::new(self.settings.limits.records);
        self.keeper.clear();
        self.queues.clear();
        (self.timers, self.prolongs) = (Timers::new(), Timers::new());
        self.actions.clear();
        self.starting = false;
        self.nodes.iter_mut().for_each(|node| *node = Node::of_another_process());
        for op in self.ops.all() {
            let error = ConfigError::Nodes(self.report_standings(now));
            self.ops.move_to(op, Stage::Over(Err(error.into())));
        }
    }
}
