//! The waiters of one key inside this client: served in order, and only the first asks the nodes.
//!
//! The hazard is a client that never lets go: a key that is handed over inside it is never free
//! for others. So the number of times in a row is bounded, and then others really get a turn.

use std::time::Duration;

use super::super::key::KeyHash;
use super::super::round::Round;
use super::super::waiters::{self, Mode, Queue, Waiting};
use super::*;

impl Coordinator {
    /// Lines a request up behind `occupant`, which has the key or asks for it.
    pub(super) fn queue_up(
        &mut self,
        occupant: u32,
        ttl: Ttl,
        give_up_at: Instant,
        keep: Option<Keep>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let op = self.ops.open(data, give_up_at, occupant);
        if now >= give_up_at {
            let error = self.no_turn(occupant, now);
            self.stats.attempt_is_lost(&error);
            self.ops.move_to(op, Stage::Over(Err(error)));
            return Ok(op);
        }
        if !self.records.reserve() {
            self.ops.close(op);
            return Err(busy(Busy::Records));
        }
        let queue = match self.records.get(occupant).queue {
            Some(queue) => queue,
            None => self.open_queue(occupant, now),
        };
        self.queues[queue as usize].waiting.push_back(op);
        let for_ever = give_up_at == Instant::from_nanos(u64::MAX);
        let timer = (!for_ever).then(|| self.timers.set_at(give_up_at, Due::GiveUp { op }));
        self.ops.move_to(op, Stage::Queued { queue, ttl, timer });
        if let Some(request) = self.ops.get_mut(op) {
            request.keep = keep;
        }
        Ok(op)
    }

    /// A request that is lined up was taken back.
    pub(super) fn leave_queue(&mut self, op: Op, queue: u32, timer: Option<Timer>) {
        let mut timer = timer;
        self.timers.clear_in(&mut timer);
        self.records.give_up_reserved();
        self.queues[queue as usize].leave(op);
    }

    /// Its wait is over before its turn came.
    pub(super) fn turn_never_came(&mut self, op: Op, now: Instant) {
        let Some(Stage::Queued { queue, .. }) = self.ops.get_mut(op).map(|r| &r.stage) else {
            return;
        };
        let queue = *queue as usize;
        self.records.give_up_reserved();
        self.queues[queue].leave(op);
        let key = &self.queues[queue].key;
        let error = match &self.queues[queue].no_quorum {
            Some(error) => error.clone(),
            None if self.starting => self.not_connected(key, now),
            None => Error::Contended(self.report_unasked(key, now)),
        };
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// Why a request that does not wait gets no turn: `occupant` holds the key or asks for it.
    fn no_turn(&self, occupant: u32, now: Instant) -> Error {
        let key = &self.records.get(occupant).key;
        match self.no_quorum_of(occupant) {
            Some(error) => error.clone(),
            None if self.starting => self.not_connected(key, now),
            None => Error::Contended(self.report_unasked(key, now)),
        }
    }

    /// Why the last attempt of the request that asks for this record failed, if too few nodes gave
    /// a vote that counts.
    fn no_quorum_of(&self, occupant: u32) -> Option<&Error> {
        let request = self.ops.get(self.records.get(occupant).op?)?;
        match &request.stage {
            Stage::Pausing { last, .. } => Some(last).filter(|it| matches!(it, Error::NoQuorum(_))),
            _ => None,
        }
    }

    fn open_queue(&mut self, occupant: u32, now: Instant) -> u32 {
        let no_quorum = self.no_quorum_of(occupant).cloned();
        let record = self.records.get_mut(occupant);
        let mut queue = Queue::new(&record.key, now);
        queue.no_quorum = no_quorum;
        let queue = self.queues.insert(queue) as u32;
        record.queue = Some(queue);
        queue
    }

    /// The attempt of a request failed: those that are lined up behind it learn why.
    pub(super) fn note_failed_attempt(&mut self, number: u32, error: Option<&Error>) {
        if let Some(queue) = self.records.get(number).queue {
            let no_quorum = error.filter(|error| matches!(error, Error::NoQuorum(_)));
            self.queues[queue as usize].no_quorum = no_quorum.cloned();
        }
    }

    fn not_connected(&self, key: &[u8], now: Instant) -> Error {
        let mut report = self.report_standings(now);
        report.key = key.into();
        Error::NoQuorum(report)
    }

    /// Those that are lined up are taken back: it is the end.
    pub(super) fn send_queues_away(&mut self, now: Instant) {
        for op in self.ops.all() {
            if matches!(self.ops.get_mut(op).map(|r| &r.stage), Some(Stage::Queued { .. })) {
                self.cancel(op, now);
            }
        }
    }

    /// The record has its key no more: the next one has its turn. `given_back`: by its holder.
    pub(super) fn vacate(&mut self, number: u32, given_back: bool, now: Instant) {
        if !self.records.unindex(number) {
            return;
        }
        let Some(queue) = self.records.get_mut(number).queue.take() else { return };
        self.handing_over.push((queue, given_back));
        if self.handing_over.len() > 1 {
            // It is being done further up: one whose attempt ends at once hands over in turn, and
            // must not do so from within.
            return;
        }
        while let Some(&(queue, given_back)) = self.handing_over.last() {
            self.hand_over(queue, given_back, now);
            // What was handed over from within stands behind it.
            let done = self.handing_over.iter().position(|&(other, _)| other == queue);
            done.map(|index| self.handing_over.remove(index));
        }
    }

    fn hand_over(&mut self, queue: u32, given_back: bool, now: Instant) {
        // One whose wait is over, and whose timer was not looked at yet, has no turn any more.
        while let Some(&op) = self.queues[queue as usize].waiting.front() {
            let Some(request) = self.ops.get_mut(op).filter(|it| it.give_up_at <= now) else {
                break;
            };
            if let Stage::Queued { timer, .. } = &mut request.stage {
                self.timers.clear_in(timer);
            }
            self.turn_never_came(op, now);
        }
        let Some(op) = self.queues[queue as usize].waiting.pop_front() else {
            self.queues.remove(queue as usize);
            return;
        };
        let (ttl, timer) = match self.ops.get_mut(op).map(|request| &request.stage) {
            Some(&Stage::Queued { ttl, timer, .. }) => (ttl, timer),
            _ => unreachable!("who is taken back, or gives up, leaves the queue"),
        };
        let mut timer = timer;
        self.timers.clear_in(&mut timer);
        let token = draw(&mut self.rng);
        let round = Round::acquire(self.nodes.len(), now, ttl);
        let key = &self.queues[queue as usize].key;
        let hash = KeyHash::of(key);
        self.records.give_up_reserved();
        let number = self.records.open(key, token, round).expect("its place was kept for it");
        self.records.index(number, hash);
        self.records.get_mut(number).queue = Some(queue);
        self.ops.move_to(op, Stage::Running { record: number });
        let keep = self.ops.get_mut(op).and_then(|request| request.keep);
        self.will_be_kept(number, op, keep);
        let round_trip = self.round_trip.usual();
        let queue = &mut self.queues[queue as usize];
        if now < queue.others_until {
            // Who left it to them gave up meanwhile.
            self.leave_others_a_turn(op, number, now);
        } else if !given_back {
            queue.ends_streak(now);
            self.begin_attempt(number, now);
        } else if queue.hands_over(now) {
            queue.others_until = now.saturating_add(waiters::turn_of_others(round_trip));
            self.leave_others_a_turn(op, number, now);
        } else {
            self.begin_attempt(number, now);
        }
    }

    /// It begins to wait, though the key is free as far as we know.
    fn leave_others_a_turn(&mut self, op: Op, number: u32, now: Instant) {
        let nodes = self.nodes.len();
        let mut waiting = Waiting::new(nodes, Duration::ZERO, now);
        waiting.mode = Mode::Yielding;
        if let Some(place) = self.ops.waiter(op, || Waiting::new(nodes, Duration::ZERO, now)) {
            *place = waiting;
        }
        let key = &self.records.get(number).key;
        let last = Error::Contended(self.report_unasked(key, now));
        self.name_it(number, now);
        let at = now.saturating_add(waiters::turn_of_others(self.round_trip.usual()));
        self.pause_until(op, number, at, Some(last));
    }
}
