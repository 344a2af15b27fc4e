//! A request that waits for a key that others hold: what it knows of the nodes, and when it asks
//! them again.
//!
//! The hazard is a herd: every waiter that is notified of a release wakes, and all but one lose. So
//! a waiter that lost after a wake-up backs off: it ignores notifications for a while, and longer
//! each time. The second hazard is a waiter that ignores them for ever, so the pauses are bounded,
//! and after a few tries the waiter subscribes again.

use std::time::Duration;

use crate::proto::error::HeldFor;
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::time::Instant;

/// The longest back-off. Other clients get a turn only if this client stays away a little longer
/// than that.
pub const WINDOW: Duration = Duration::from_millis(2);
/// How often in a row a waiter asks before it subscribes.
const TRIES: u32 = 3;
/// A moment that does not come.
pub const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What a node last reported to a waiter about how long the key lives there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedTtl {
    /// Nothing yet.
    Nothing,
    /// The key expires at this moment, unless it is extended.
    FreeAt(Instant),
    /// The key has no ttl.
    NoTtl,
}

/// What a waiter does until its next attempt for the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The waiter only waits for its timer: no node reports writes to it.
    Polling,
    /// The waiter is notified when the key is written to.
    Subscribed,
    /// The waiter woke and lost, and ignores notifications for a while.
    BackingOff,
    /// The client had the key for long: the waiter leaves other clients a turn.
    Yielding,
    /// The waiter stands in line on the nodes, which hand the key over to it.
    InLine,
}

impl ReportedTtl {
    fn moment(&self) -> Option<Instant> {
        match *self {
            ReportedTtl::Nothing => None,
            ReportedTtl::FreeAt(at) => Some(at),
            ReportedTtl::NoTtl => Some(NEVER),
        }
    }
}

/// A request that waits for a key that others hold.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// What the waiter does.
    pub mode: Mode,
    /// When the key is free on each node, as far as the node reported it: else the end of time.
    pub free_at: Vec<Instant>,
    /// What each node reported last. Unlike `free_at` it stays when the waiter asks anew.
    pub reported: Vec<ReportedTtl>,
    /// If the waiter waits for several keys, when each of them is free on each node; a node's keys
    /// stand together.
    keys: Option<Box<[Instant]>>,
    /// The last of these keys that a node answers for.
    last_key: usize,
    /// When the waiter asks again, whatever was reported to it.
    pub poll_at: Instant,
    /// The attempt that is in flight was begun by a wake-up.
    pub woken: bool,
    /// The waiter in line got the key, and no node knew of another client.
    pub was_alone: bool,
    lost_wake_ups: u32,
    tries: u32,
    polls: u32,
}

impl Waiting {
    /// A waiter for so many keys that begins to wait now.
    pub fn new(nodes: usize, keys: usize, now: Instant) -> Waiting {
        Waiting {
            mode: Mode::Polling,
            free_at: vec![NEVER; nodes],
            reported: vec![ReportedTtl::Nothing; nodes],
            keys: (keys > 1).then(|| vec![NEVER; nodes * keys].into()),
            last_key: keys - 1,
            poll_at: now,
            woken: false,
            was_alone: false,
            lost_wake_ups: 0,
            tries: 0,
            polls: 0,
        }
    }

    /// What is known of when the keys are free is not true any more.
    pub fn forget_free_at(&mut self) {
        self.free_at.fill(NEVER);
        self.wait_for_keys(None);
    }

    /// From now on the waiter waits for this one of its keys only, or for all of them.
    pub fn wait_for_keys(&mut self, only: Option<usize>) {
        let Some(keys) = &mut self.keys else { return };
        let count = keys.len() / self.free_at.len();
        self.last_key = only.unwrap_or(count - 1);
        for (place, at) in keys.iter_mut().enumerate() {
            let waits = only.is_none_or(|only| place % count == only);
            *at = if waits { NEVER } else { Instant::default() };
        }
    }

    /// The key of this number is free on the node at this moment. Returns when all keys are, if
    /// that is known: a node answers for one key after the other.
    pub fn note_free_at(&mut self, node: NodeId, key: usize, at: Instant) -> Option<Instant> {
        let place = node.index();
        let Some(keys) = &mut self.keys else {
            self.free_at[place] = at;
            return Some(at);
        };
        let count = keys.len() / self.free_at.len();
        let of_node = &mut keys[place * count..(place + 1) * count];
        *of_node.get_mut(key)? = at;
        let last = of_node.iter().max().copied()?;
        self.free_at[place] = last;
        (key == self.last_key).then_some(last)
    }

    /// The waiter woke, and another client was faster.
    pub fn note_lost_wake_up(&mut self) {
        self.lost_wake_ups = (self.lost_wake_ups + 1).min(8);
    }

    /// Whether the waiter should subscribe instead of asking, because the holder seems to keep the
    /// key. A key that passes from client to client all the time is acquired sooner by asking.
    pub fn should_subscribe(&self) -> bool {
        self.tries >= TRIES
    }

    /// The waiter is subscribed from now on.
    pub fn begin_subscription(&mut self) {
        (self.mode, self.tries) = (Mode::Subscribed, 0);
    }

    /// For how long others hold the key by what the nodes reported last, if enough of them did:
    /// until a majority of `quorum` nodes can be free.
    pub fn held_for(&self, quorum: usize, now: Instant) -> Option<HeldFor> {
        let mut moments: Vec<Instant> =
            self.reported.iter().filter_map(ReportedTtl::moment).collect();
        moments.sort_unstable();
        match *moments.get(quorum - 1)? {
            NEVER => {
                let nodes = self
                    .reported
                    .iter()
                    .filter(|&&reported| reported == ReportedTtl::NoTtl)
                    .count();
                Some(HeldFor::Ever { nodes })
            }
            // The key has expired, and another client may have it by now.
            at if at <= now => None,
            at => Some(HeldFor::Left(at.saturating_since(now))),
        }
    }

    /// Whether the waiter stands in line on the nodes.
    pub fn is_in_line(&self) -> bool {
        self.mode == Mode::InLine
    }

    /// Whether other clients seem to wait as well.
    #[cfg(test)]
    pub fn is_contended(&self) -> bool {
        self.lost_wake_ups > 0
    }

    /// The shortest and the longest back-off: times that grow with each wake-up that lost.
    pub fn window(&self, round_trip: Duration) -> (Duration, Duration) {
        let most = round_trip.saturating_mul(1 << self.lost_wake_ups).min(WINDOW);
        (most / 2, most)
    }

    /// The waiter asks the nodes.
    pub fn asks(&mut self, woken: bool) {
        self.woken = woken;
        self.tries += u32::from(woken);
    }

    /// The pause before the waiter asks, whatever was reported to it, between `shortest` and
    /// `longest`.
    pub fn next_poll(&mut self, shortest: Duration, longest: Duration) -> (Duration, Duration) {
        let pause = shortest.saturating_mul(1 << self.polls.min(8)).min(longest);
        self.polls = self.polls.saturating_add(1);
        (pause / 2, pause)
    }

    /// When the key is free on `quorum` nodes, as far as they reported it.
    pub fn wakes_at(&self, quorum: usize) -> Instant {
        let mut moments = [NEVER; MAX_NODES];
        let moments = &mut moments[..self.free_at.len()];
        moments.copy_from_slice(&self.free_at);
        moments.sort_unstable();
        moments[quorum - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_micros(100);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_back_off_grows_up_to_its_bound() {
        let mut waiting = Waiting::new(5, 1, at(0));
        assert!(!waiting.is_contended());
        let mut before = waiting.window(TRIP);
        assert_eq!(before, (TRIP / 2, TRIP));
        for _ in 0..20 {
            waiting.note_lost_wake_up();
            let window = waiting.window(TRIP);
            assert!(window.1 == WINDOW || window.1 == 2 * before.1);
            before = window;
        }
        assert_eq!(before, (WINDOW / 2, WINDOW));
        assert!(waiting.is_contended());
    }

    #[test]
    fn waiter_wakes_when_a_majority_can_be_free() {
        let mut waiting = Waiting::new(5, 1, at(0));
        assert_eq!(waiting.wakes_at(3), NEVER);
        for (node, millis) in [(0, 30), (1, 10), (4, 20)] {
            waiting.free_at[node] = at(millis);
        }
        assert_eq!(waiting.wakes_at(3), at(30));
        waiting.free_at[2] = at(5);
        assert_eq!(waiting.wakes_at(3), at(20));
    }

    #[test]
    fn polls_grow_up_to_their_bound() {
        let mut waiting = Waiting::new(1, 1, at(0));
        let (shortest, longest) = (Duration::from_millis(5), Duration::from_millis(50));
        assert_eq!(waiting.next_poll(shortest, longest), (shortest / 2, shortest));
        (0..100).for_each(|_| assert!(waiting.next_poll(shortest, longest).1 <= longest));
        assert_eq!(waiting.next_poll(shortest, longest), (longest / 2, longest));
    }

    #[test]
    fn waiter_subscribes_after_a_few_tries() {
        let mut waiting = Waiting::new(3, 1, at(0));
        for asked in 0..TRIES {
            assert!(!waiting.should_subscribe(), "after {asked} tries");
            waiting.asks(true);
        }
        assert!(waiting.should_subscribe());
        waiting.begin_subscription();
        assert!(!waiting.should_subscribe(), "the tries count anew");
        waiting.asks(false);
        waiting.asks(false);
        waiting.asks(false);
        assert!(!waiting.should_subscribe(), "an attempt without a wake-up is no try");
    }

    #[test]
    fn time_left_is_that_until_a_majority_can_be_free() {
        let mut waiting = Waiting::new(3, 1, at(0));
        let held_for = |waiting: &Waiting, now| waiting.held_for(2, at(now));
        assert_eq!(held_for(&waiting, 0), None);
        waiting.reported[0] = ReportedTtl::FreeAt(at(30));
        assert_eq!(held_for(&waiting, 0), None, "one report of two");
        waiting.reported[2] = ReportedTtl::FreeAt(at(20));
        let left = |millis| Some(HeldFor::Left(Duration::from_millis(millis)));
        assert_eq!(held_for(&waiting, 5), left(25), "the second of them decides");
        assert_eq!(held_for(&waiting, 29), left(1));
        assert_eq!(held_for(&waiting, 30), None, "it has expired");
        waiting.reported[0] = ReportedTtl::NoTtl;
        assert_eq!(held_for(&waiting, 5), Some(HeldFor::Ever { nodes: 1 }));
        waiting.reported[1] = ReportedTtl::NoTtl;
        assert_eq!(held_for(&waiting, 5), Some(HeldFor::Ever { nodes: 2 }));
    }
}
