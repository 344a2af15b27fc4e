//! Waiting for a key that others hold: being told, looking, and asking again.
//!
//! The hazard is to believe what is told: a push may be lost, a node may lie or be frozen. So
//! whatever is believed, the nodes are asked again after a bounded time.

use std::time::Duration;

use rand::RngExt;

use super::super::key::KeyHash;
use super::super::ops::Request;
use super::super::waiters::{self, Mode, NEVER, Waiting};
use super::*;

/// The bound of the pauses where we are told, in times of the one where we are not.
const RARELY: u32 = 8;

impl Coordinator {
    /// Whether all that is open are waiters that do not want to be told of anything for a while:
    /// then answers that are still on their way need wake nobody.
    pub fn is_deaf(&self) -> bool {
        let deaf = |request: &Request| {
            let mode = request.waiting.as_ref().map(|waiting| waiting.mode);
            let quiet = matches!(mode, Some(Mode::Deaf | Mode::Polling | Mode::Holding { .. }));
            quiet && matches!(request.stage, Stage::Pausing { .. })
        };
        self.keeper.is_empty() && !self.ops.is_empty() && self.ops.all_are(deaf)
    }

    /// An attempt was lost, and its record is followed by `number`: what does it wait for?
    pub(super) fn wait_for_it(&mut self, op: Op, number: u32, last: Error, now: Instant) {
        let nodes = self.cluster.size();
        let contended = matches!(last, Error::Contended(_));
        let told = contended && self.tell_us().len() >= self.cluster.quorum();
        let round_trip = self.round_trip.usual();
        let key = KeyHash::of(&self.records.get(number).key);
        let usual = self.crowds.at(key, now);
        let Some(request) = self.ops.get_mut(op) else { return };
        let (first, give_up_at) = (request.waiting.is_none(), request.give_up_at);
        let begin = || Waiting::new(nodes, usual, now);
        let Some(waiting) = self.ops.waiter(op, begin) else { return };
        let woken = std::mem::take(&mut waiting.woken) || (first && !usual.is_zero());
        let at = if !told {
            waiting.mode = Mode::Polling;
            let (shortest, longest) = self.cluster.settings().retry;
            let (least, most) = waiting.next_poll(2 * shortest, longest);
            now.saturating_add(self.rng.random_range(least..=most))
        } else if woken {
            if !first {
                waiting.woke_in_vain();
            }
            waiting.mode = Mode::Deaf;
            let (least, most) = waiting.window(round_trip, now);
            // Whoever waits for a shorter time than others did is to be told, too.
            let left = give_up_at.saturating_since(now) / 4;
            now.saturating_add(self.rng.random_range(least..=most).min(left))
        } else {
            self.name_it(number, now);
            self.listen(op, now)
        };
        self.pause_until(op, number, at, Some(last));
    }

    /// The waiter listens from now on; up to when at most.
    fn listen(&mut self, op: Op, now: Instant) -> Instant {
        let (_, longest) = self.cluster.settings().retry;
        let Some(waiting) = self.ops.get_mut(op).and_then(|request| request.waiting.as_mut())
        else {
            return now;
        };
        waiting.begins_to_listen(now);
        let (least, most) = waiting.next_poll(2 * longest, longest * RARELY);
        waiting.poll_at = now.saturating_add(self.rng.random_range(least..=most));
        waiting.wakes_at(self.cluster.quorum()).min(waiting.poll_at)
    }

    /// Nodes that may be asked, and tell of writes to keys that were named.
    fn tell_us(&self) -> NodeSet {
        let tells = |node: &NodeId| self.cluster.reports_writes(*node);
        self.cluster.all_nodes().iter().filter(tells).collect()
    }

    /// Names the key to the nodes that tell of it: to all of them, or, in a crowd, to one more
    /// than a quorum, drawn at random. Every push costs the node and the waiter.
    pub(super) fn name_it(&mut self, number: u32, now: Instant) {
        let mut nodes: Vec<NodeId> = self.tell_us().iter().collect();
        let quorum = self.cluster.quorum();
        let Some(waiting) = self.waiting_of(number) else { return };
        waiting.free_at.fill(NEVER);
        let most = if waiting.is_in_a_crowd() { quorum + 1 } else { nodes.len() };
        while nodes.len() > most {
            nodes.swap_remove(self.rng.random_range(0..nodes.len()));
        }
        for node in nodes {
            self.register(node, number, now);
        }
    }

    /// A waiter has its lock: so long one waits.
    pub(super) fn note_crowd(&mut self, number: u32, now: Instant) {
        let Some(waiting) = self.waiting_of(number) else { return };
        if let Some(wait) = waiting.waited_among_others(now) {
            self.crowds.note(KeyHash::of(&self.records.get(number).key), wait, now);
        }
    }

    fn waiting_of(&mut self, number: u32) -> Option<&mut Waiting> {
        let op = self.records.get(number).op?;
        let request = self.ops.get_mut(op)?;
        let pausing = matches!(request.stage, Stage::Pausing { .. } | Stage::Running { .. });
        request.waiting.as_deref_mut().filter(|_| pausing)
    }

    /// Sets the timer of a waiter; `last` is what its last attempt came to.
    pub(super) fn pause_until(&mut self, op: Op, number: u32, at: Instant, last: Option<Error>) {
        let Some(request) = self.ops.get_mut(op) else { return };
        let at = at.min(request.give_up_at);
        let timer = self.timers.set_at(at, Due::Retry { op });
        match (&mut request.stage, last) {
            (Stage::Pausing { timer: place, .. }, None) => *place = timer,
            (stage, Some(last)) => *stage = Stage::Pausing { record: number, timer, last },
            (_, None) => unreachable!("a waiter between two attempts has lost one"),
        }
    }

    /// The timer of a waiter came due.
    pub(super) fn waiter_is_due(&mut self, op: Op, number: u32, now: Instant) {
        let (quorum, round_trip) = (self.cluster.quorum(), self.round_trip.usual());
        let Some(waiting) = self.waiting_of(number) else {
            self.attempt_again(op, number, now);
            return;
        };
        match waiting.mode {
            Mode::Listening if waiting.wakes_at(quorum) <= now => self.wake(op, number, now),
            Mode::Holding { look: true } => self.look_at_one(op, number, now),
            Mode::Deaf if waiting.had_better_listen(round_trip) => {
                self.name_it(number, now);
                let at = self.listen(op, now);
                self.pause_until(op, number, at, None);
            }
            mode => {
                let polls = matches!(mode, Mode::Polling | Mode::Listening | Mode::Yielding);
                let woken = !polls;
                waiting.asks(woken);
                self.attempt_again(op, number, now);
            }
        }
    }

    /// A majority can be free: it asks at once, or holds back a little where others seem to wait.
    /// Its timer is not set.
    fn wake(&mut self, op: Op, number: u32, now: Instant) {
        let round_trip = self.round_trip.usual();
        let Some(waiting) = self.waiting_of(number) else { return };
        let most = waiting.hold_back(round_trip, now);
        if most.is_zero() {
            waiting.asks(true);
            self.attempt_again(op, number, now);
            return;
        }
        let pause = self.rng.random_range(Duration::ZERO..=most);
        if let Some(waiting) = self.waiting_of(number) {
            waiting.mode = Mode::Holding { look: pause > round_trip };
        }
        self.pause_until(op, number, now.saturating_add(pause), None);
    }

    /// Looks at one node, drawn at random, and names the key to it. Its timer is not set.
    fn look_at_one(&mut self, op: Op, number: u32, now: Instant) {
        let nodes: Vec<NodeId> = self.tell_us().iter().collect();
        if nodes.is_empty() {
            self.attempt_again(op, number, now);
            return;
        }
        let node = nodes[self.rng.random_range(0..nodes.len())];
        if let Some(waiting) = self.waiting_of(number) {
            waiting.mode = Mode::Looking { node };
        }
        self.register(node, number, now);
        let at = now.saturating_add(waiters::patience(self.round_trip.usual()));
        self.pause_until(op, number, at, None);
    }

    /// The op that pauses before an attempt of this record, with its timer cleared.
    fn interrupted(&mut self, number: u32) -> Option<Op> {
        let op = self.records.get(number).op?;
        let Stage::Pausing { timer, .. } = &self.ops.get_mut(op)?.stage else { return None };
        let timer = *timer;
        self.timers.clear(timer);
        Some(op)
    }

    /// A node told how long the key lives there, and will tell when it is written to.
    pub(super) fn waiter_looked(
        &mut self,
        node: NodeId,
        number: u32,
        left: Option<i64>,
        now: Instant,
    ) {
        let free_at = match left {
            Some(-2) => now,
            // A node expires keys by whole milliseconds.
            Some(millis @ 0..) => {
                now.saturating_add(Duration::from_millis(millis.unsigned_abs().saturating_add(1)))
            }
            _ => NEVER,
        };
        let Some(waiting) = self.waiting_of(number) else { return };
        waiting.free_at[node.index()] = free_at;
        match waiting.mode {
            Mode::Looking { node: looked_at } if looked_at == node => {
                self.one_has_told(number, free_at <= now, now);
            }
            Mode::Listening => self.listen_on(number, now),
            // Another has it already: that was its turn.
            Mode::Yielding if left.is_some() && free_at > now => self.listen_again(number, now),
            _ => {}
        }
    }

    /// What is believed of the nodes has changed: it wakes, or the timer is set anew.
    fn listen_on(&mut self, number: u32, now: Instant) {
        let quorum = self.cluster.quorum();
        let Some(op) = self.interrupted(number) else { return };
        let Some(waiting) = self.waiting_of(number) else { return };
        let wakes_at = waiting.wakes_at(quorum);
        if wakes_at <= now {
            self.wake(op, number, now);
        } else {
            let at = wakes_at.min(waiting.poll_at);
            self.pause_until(op, number, at, None);
        }
    }

    fn listen_again(&mut self, number: u32, now: Instant) {
        let Some(op) = self.interrupted(number) else { return };
        self.name_it(number, now);
        let at = self.listen(op, now);
        self.pause_until(op, number, at, None);
    }

    /// The node that was looked at told whether the key is free there.
    fn one_has_told(&mut self, number: u32, free: bool, now: Instant) {
        let round_trip = self.round_trip.usual();
        let Some(op) = self.interrupted(number) else { return };
        let Some(waiting) = self.waiting_of(number) else { return };
        // What one says may be wrong for ever: it delays an attempt, and does not prevent it.
        if free || waiting.saw_it_held() {
            waiting.asks(true);
            self.attempt_again(op, number, now);
            return;
        }
        waiting.woke_in_vain();
        waiting.mode = Mode::Deaf;
        let (least, most) = waiting.window(round_trip, now);
        let at = now.saturating_add(self.rng.random_range(least..=most));
        self.pause_until(op, number, at, None);
    }

    /// Somebody wrote to the key on a node; `ours`: we did.
    pub(super) fn waiter_is_told(&mut self, node: NodeId, number: u32, ours: bool, now: Instant) {
        if self.records.get(number).phase != Phase::Asking {
            return;
        }
        let Some(waiting) = self.waiting_of(number) else { return };
        match waiting.mode {
            Mode::Listening => {
                waiting.free_at[node.index()] = now;
                self.listen_on(number, now);
            }
            Mode::Yielding if !ours => self.listen_again(number, now),
            _ => {}
        }
    }
}
