//! Waiting for a key that others hold: being notified, looking at one node, and asking again.
//!
//! The hazard is to believe the notifications: a push may be lost, a node may lie or be frozen. So
//! whatever a waiter believes, it asks the nodes again after a bounded time.

use std::time::Duration;

use crate::proto::error::Error;
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::locks::Locks;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::waiting::{Mode, NEVER, Told, Waiting};
use crate::proto::waits::Waits;
use crate::proto::waits::contention;

/// How many times longer the pauses may be for a waiter that is notified than for one that is not.
const RARELY: u32 = 8;

impl Waits {
    /// An attempt was lost, and `id` is the record of the next one. Decides what the request
    /// waits for.
    pub(super) fn wait_for_it(
        &mut self,
        locks: &mut Locks,
        op: Op,
        id: RecordId,
        last: Error,
        now: Instant,
    ) {
        let (nodes, quorum) = (locks.cluster().size(), locks.cluster().quorum());
        let contended = matches!(last, Error::Contended(_));
        let told = contended && tell_us(locks).len() >= quorum;
        let round_trip = self.round_trip.usual();
        let usual = self.contention.at(KeyHash::of(locks.key(id)), now);
        let (shortest, longest) = locks.cluster().settings().retry;
        let Some(give_up_at) = locks.give_up_at(op) else { return };
        let first = locks.waiting(op).is_none();
        let begin = || Waiting::new(nodes, usual, now);
        let Some(waiting) = locks.begin_waiting(op, begin) else { return };
        let woken = std::mem::take(&mut waiting.woken) || (first && !usual.is_zero());
        let at = if !told {
            waiting.mode = Mode::Polling;
            let (least, most) = waiting.next_poll(2 * shortest, longest);
            now.saturating_add(locks.draw_pause(least, most))
        } else if woken {
            if !first {
                waiting.woke_in_vain();
            }
            waiting.mode = Mode::BackingOff;
            let (least, most) = waiting.window(round_trip, now);
            // A waiter with little time left has to be notified, too, so it backs off for a quarter
            // of that time at most.
            let left = give_up_at.saturating_since(now) / 4;
            now.saturating_add(locks.draw_pause(least, most).min(left))
        } else {
            name_it(locks, op, id, now);
            listen(locks, op, now)
        };
        locks.pause(op, id, at, last);
    }

    /// The timer of a waiter came due.
    pub(super) fn waiter_is_due(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let (quorum, round_trip) = (locks.cluster().quorum(), self.round_trip.usual());
        let Some(waiting) = locks.waiting(op) else {
            locks.attempt_again(op, now);
            return;
        };
        match waiting.mode {
            Mode::Listening if waiting.wakes_at(quorum) <= now => self.wake(locks, op, now),
            Mode::Holding { look: true } => self.look_at_one(locks, op, now),
            Mode::BackingOff if waiting.had_better_listen(round_trip) => {
                listen_for_it(locks, op, now)
            }
            mode => {
                let polls = matches!(mode, Mode::Polling | Mode::Listening | Mode::Yielding);
                let woken = !polls;
                waiting.asks(woken);
                locks.attempt_again(op, now);
            }
        }
    }

    /// A majority may be free: the waiter asks at once, or holds back a little if others seem to
    /// wait. Its timer is not set.
    fn wake(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let round_trip = self.round_trip.usual();
        let Some(waiting) = locks.waiting(op) else { return };
        let most = waiting.hold_back(round_trip, now);
        if most.is_zero() {
            waiting.asks(true);
            locks.attempt_again(op, now);
            return;
        }
        let pause = locks.draw_pause(Duration::ZERO, most);
        if let Some(waiting) = locks.waiting(op) {
            waiting.mode = Mode::Holding { look: pause > round_trip };
        }
        locks.pause_on(op, now.saturating_add(pause));
    }

    /// Looks at one node, drawn at random, and registers the key there. The waiter's timer is not
    /// set.
    fn look_at_one(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let nodes: Vec<NodeId> = tell_us(locks).iter().collect();
        if nodes.is_empty() {
            locks.attempt_again(op, now);
            return;
        }
        let node = nodes[locks.draw_index(nodes.len())];
        if let Some(waiting) = locks.waiting(op) {
            waiting.mode = Mode::Looking { node };
        }
        if let Some(id) = locks.pauses_before(op) {
            locks.name_key(id, [node], now);
        }
        let patience = contention::patience(self.round_trip.usual());
        locks.pause_on(op, now.saturating_add(patience));
    }

    /// A node answered how long the key lives there, and will report writes to it.
    pub(super) fn waiter_looked(
        &mut self,
        locks: &mut Locks,
        op: Op,
        node: NodeId,
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
        let Some(waiting) = locks.waiting(op) else { return };
        waiting.free_at[node.index()] = free_at;
        waiting.told[node.index()] = match left {
            Some(-1) => Told::NoTtl,
            Some(_) => Told::FreeAt(free_at),
            None => Told::Nothing,
        };
        match waiting.mode {
            Mode::Looking { node: looked_at } if looked_at == node => {
                self.one_has_told(locks, op, free_at <= now, now);
            }
            Mode::Listening => self.listen_on(locks, op, now),
            // Another client has the key already: it has had its turn.
            Mode::Yielding if left.is_some() && free_at > now => listen_again(locks, op, now),
            _ => {}
        }
    }

    /// What the waiter believes of the nodes has changed: it wakes, or gets a new timer.
    fn listen_on(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let quorum = locks.cluster().quorum();
        if !locks.interrupt(op) {
            return;
        }
        let Some(waiting) = locks.waiting(op) else { return };
        let wakes_at = waiting.wakes_at(quorum);
        if wakes_at <= now {
            self.wake(locks, op, now);
        } else {
            let at = wakes_at.min(waiting.poll_at);
            locks.pause_on(op, at);
        }
    }

    /// The node that the waiter looked at answered whether the key is free there.
    fn one_has_told(&mut self, locks: &mut Locks, op: Op, free: bool, now: Instant) {
        let round_trip = self.round_trip.usual();
        if !locks.interrupt(op) {
            return;
        }
        let Some(waiting) = locks.waiting(op) else { return };
        // One node's answer may be wrong for ever: it delays an attempt, but does not prevent it.
        if free || waiting.saw_it_held() {
            waiting.asks(true);
            locks.attempt_again(op, now);
            return;
        }
        waiting.woke_in_vain();
        waiting.mode = Mode::BackingOff;
        let (least, most) = waiting.window(round_trip, now);
        let at = now.saturating_add(locks.draw_pause(least, most));
        locks.pause_on(op, at);
    }

    /// The key was written to on a node; `ours`: by this client.
    pub(super) fn notify_waiter(
        &mut self,
        locks: &mut Locks,
        op: Op,
        node: NodeId,
        ours: bool,
        now: Instant,
    ) {
        let Some(waiting) = locks.waiting(op) else { return };
        match waiting.mode {
            Mode::Listening => {
                waiting.free_at[node.index()] = now;
                self.listen_on(locks, op, now);
            }
            Mode::Yielding if !ours => listen_again(locks, op, now),
            _ => {}
        }
    }
}

/// The nodes that may be asked, and report writes to registered keys.
fn tell_us(locks: &Locks) -> NodeSet {
    let cluster = locks.cluster();
    cluster.all_nodes().iter().filter(|&node| cluster.reports_writes(node)).collect()
}

/// Registers the key at the nodes that report writes: at all of them, or, in a crowd, at one more
/// than a quorum, drawn at random. Every push costs the node and the waiter.
pub(super) fn name_it(locks: &mut Locks, op: Op, id: RecordId, now: Instant) {
    let mut nodes: Vec<NodeId> = tell_us(locks).iter().collect();
    let quorum = locks.cluster().quorum();
    let Some(waiting) = locks.waiting(op) else { return };
    waiting.free_at.fill(NEVER);
    let most = if waiting.is_in_a_crowd() { quorum + 1 } else { nodes.len() };
    while nodes.len() > most {
        nodes.swap_remove(locks.draw_index(nodes.len()));
    }
    locks.name_key(id, nodes, now);
}

/// The waiter listens from now on. Returns until when at most.
fn listen(locks: &mut Locks, op: Op, now: Instant) -> Instant {
    let (_, longest) = locks.cluster().settings().retry;
    let quorum = locks.cluster().quorum();
    let Some(waiting) = locks.waiting(op) else { return now };
    waiting.begins_to_listen(now);
    let (least, most) = waiting.next_poll(2 * longest, longest * RARELY);
    let poll_at = now.saturating_add(locks.draw_pause(least, most));
    let Some(waiting) = locks.waiting(op) else { return now };
    waiting.poll_at = poll_at;
    waiting.wakes_at(quorum).min(poll_at)
}

fn listen_again(locks: &mut Locks, op: Op, now: Instant) {
    if locks.interrupt(op) {
        listen_for_it(locks, op, now);
    }
}

/// Registers the key and listens. The timer of the waiter is not set.
fn listen_for_it(locks: &mut Locks, op: Op, now: Instant) {
    if let Some(id) = locks.pauses_before(op) {
        name_it(locks, op, id, now);
    }
    let at = listen(locks, op, now);
    locks.pause_on(op, at);
}
