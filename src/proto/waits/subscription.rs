//! Waiting for a key that others hold: being notified, and asking again.
//!
//! The hazard is to believe the notifications: a push may be lost, a node may lie or be frozen. So
//! whatever a waiter believes, it asks the nodes again after a bounded time.

use std::time::Duration;

use crate::proto::error::{Error, NodeReply, Report};
use crate::proto::ids::{Op, RecordId};
use crate::proto::locks::Locks;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::waiting::{Mode, Waiting};
use crate::proto::waits::Waits;

/// How many times longer the pauses may be for a waiter that is notified than for one that is not.
const RARELY: u32 = 8;

impl Waits {
    /// An attempt was lost, and `id` is the record of the next one. Decides what the request
    /// waits for.
    pub(super) fn begin_wait(
        &mut self,
        locks: &mut Locks,
        op: Op,
        id: RecordId,
        last: Error,
        now: Instant,
    ) {
        let (nodes, quorum) = (locks.cluster().size(), locks.cluster().quorum());
        let contended = matches!(last, Error::Contended(_));
        let met = contended && met_another(&last);
        let notified = contended && reporting_nodes(locks).len() >= quorum;
        let round_trip = self.round_trip.usual();
        let (shortest, longest) = locks.cluster().settings().retry;
        let Some(give_up_at) = locks.ops().give_up_at(op) else { return };
        if locks.ops().is_fair(op) && !matches!(last, Error::NoQuorum(_)) {
            let begin = || Waiting::new(nodes, 1, now);
            if let Some(waiting) = locks.ops_mut().begin_waiting(op, begin) {
                waiting.mode = Mode::InLine;
            }
            locks.stand_in_line(op, id, last, now);
            return;
        }
        let keys = locks.count_keys(id);
        let crowd = self.crowds.of(locks.key_hash(id), now);
        let begin = || Waiting::new(nodes, keys, now).among(crowd);
        let Some(waiting) = locks.ops_mut().begin_waiting(op, begin) else { return };
        let woken = std::mem::take(&mut waiting.woken);
        let at = if !notified {
            waiting.mode = Mode::Polling;
            let (least, most) = waiting.next_poll(2 * shortest, longest);
            now.saturating_add(locks.random_mut().pause(least, most))
        } else if woken || met || waiting.is_contended() {
            waiting.note_lost(met, round_trip);
            waiting.backs_off(woken);
            let (least, most) = waiting.window(round_trip);
            back_off(locks, (least, most), give_up_at, now)
        } else {
            register_key(locks, op, id, now);
            subscribe(locks, op, now)
        };
        locks.ops_mut().pause(op, id, at, last);
    }

    /// The timer of a waiter came due.
    pub(super) fn on_waiter_due(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let quorum = locks.cluster().quorum();
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else {
            locks.attempt_again(op, now);
            return;
        };
        match waiting.mode {
            Mode::InLine => locks.on_poll_due(op, now),
            Mode::Subscribed if waiting.wakes_at(quorum) <= now => self.wake(locks, op, now),
            Mode::BackingOff if waiting.should_subscribe() => {
                register_and_subscribe(locks, op, now)
            }
            mode => {
                let polls = matches!(mode, Mode::Polling | Mode::Subscribed | Mode::Yielding);
                let woken = !polls;
                waiting.asks(woken);
                locks.attempt_again(op, now);
            }
        }
    }

    /// A majority may be free: the waiter asks at once. One that lost before was notified together
    /// with others, and asks a moment later. Its timer is not set.
    fn wake(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let round_trip = self.round_trip.usual();
        let Some(give_up_at) = locks.ops().give_up_at(op) else { return };
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
        if waiting.is_contended() {
            waiting.mode = Mode::BackingOff;
            let (_, most) = waiting.window(round_trip);
            let at = back_off(locks, (Duration::ZERO, most), give_up_at, now);
            locks.ops_mut().pause_on(op, at);
            return;
        }
        waiting.asks(true);
        locks.attempt_again(op, now);
    }

    /// A node answered how long the key lives there, and will report writes to it.
    pub(super) fn on_ttl_reported(
        &mut self,
        locks: &mut Locks,
        op: Op,
        (node, key): (NodeId, usize),
        left: Option<i64>,
        now: Instant,
    ) {
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
        let Some(free_at) = waiting.note_left(node, key, left, now) else { return };
        match waiting.mode {
            Mode::InLine if free_at <= now => locks.on_key_written(op, node, now),
            Mode::Subscribed => self.wake_or_rearm(locks, op, now),
            // Another client has the key already: it has had its turn.
            Mode::Yielding if left.is_some() && free_at > now => resubscribe(locks, op, now),
            _ => {}
        }
    }

    /// What the waiter believes of the nodes has changed: it wakes, or gets a new timer.
    fn wake_or_rearm(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let quorum = locks.cluster().quorum();
        if !locks.ops_mut().interrupt(op) {
            return;
        }
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
        let wakes_at = waiting.wakes_at(quorum);
        if wakes_at <= now {
            self.wake(locks, op, now);
        } else {
            let at = wakes_at.min(waiting.poll_at);
            locks.ops_mut().pause_on(op, at);
        }
    }

    /// The key was written to on a node; `ours`: by this client.
    pub(super) fn notify_waiter(
        &mut self,
        locks: &mut Locks,
        op: Op,
        (node, key): (NodeId, usize),
        ours: bool,
        now: Instant,
    ) {
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
        match waiting.mode {
            Mode::Subscribed => {
                waiting.note_free_at(node, key, now);
                self.wake_or_rearm(locks, op, now);
            }
            Mode::Yielding if !ours => resubscribe(locks, op, now),
            Mode::InLine => locks.on_key_written(op, node, now),
            _ => {}
        }
    }
}

/// Whether some nodes granted the key in an attempt that others won or lost, too.
fn met_another(error: &Error) -> bool {
    let granted =
        |report: &Report| report.nodes.iter().any(|node| node.reply == NodeReply::Granted);
    error.report().is_some_and(granted)
}

/// The nodes that may be asked, and report writes to registered keys.
fn reporting_nodes(locks: &Locks) -> NodeSet {
    let cluster = locks.cluster();
    cluster.all_nodes().iter().filter(|&node| cluster.reports_writes(node)).collect()
}

/// Registers the key at all nodes that report writes. On some nodes another token than the holder's
/// may stand, and the waiter cannot know on which: its majority may need every other node.
pub(super) fn register_key(locks: &mut Locks, op: Op, id: RecordId, now: Instant) {
    let awaited = locks.awaited(id);
    let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
    waiting.forget_free_at();
    waiting.wait_for_keys(awaited);
    let nodes = reporting_nodes(locks);
    locks.register_at(id, nodes, now);
}

/// When a waiter asks again that backs off for a time between these two. A waiter with little time
/// left backs off for a quarter of that time at most, so that it still asks a few times.
fn back_off(
    locks: &mut Locks,
    (least, most): (Duration, Duration),
    give_up_at: Instant,
    now: Instant,
) -> Instant {
    let left = give_up_at.saturating_since(now) / 4;
    now.saturating_add(locks.random_mut().pause(least, most).min(left))
}

/// The waiter is subscribed from now on. Returns until when at most.
fn subscribe(locks: &mut Locks, op: Op, now: Instant) -> Instant {
    let (_, longest) = locks.cluster().settings().retry;
    let quorum = locks.cluster().quorum();
    let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return now };
    waiting.begin_subscription();
    let (least, most) = waiting.next_poll(2 * longest, longest * RARELY);
    let poll_at = now.saturating_add(locks.random_mut().pause(least, most));
    let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return now };
    waiting.poll_at = poll_at;
    waiting.wakes_at(quorum).min(poll_at)
}

fn resubscribe(locks: &mut Locks, op: Op, now: Instant) {
    if locks.ops_mut().interrupt(op) {
        register_and_subscribe(locks, op, now);
    }
}

/// Registers the key and subscribes. The timer of the waiter is not set.
fn register_and_subscribe(locks: &mut Locks, op: Op, now: Instant) {
    if let Some(id) = locks.ops().pauses_before(op) {
        register_key(locks, op, id, now);
    }
    let at = subscribe(locks, op, now);
    locks.ops_mut().pause_on(op, at);
}
