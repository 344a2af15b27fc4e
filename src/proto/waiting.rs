//! A request that waits for a key that others hold: what it knows of the nodes, and when it asks
//! them again.
//!
//! The hazard is a herd: every waiter that is notified of a release wakes, and all but one lose. So
//! a waiter that lost after a wake-up backs off: it ignores notifications for a while, and longer
//! each time. The second hazard is a waiter that ignores them for ever, so age makes the pauses
//! shorter.

use std::time::Duration;

use crate::proto::error::HeldFor;
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::time::Instant;

/// The longest back-off of a waiter whose turn is about to come. Other clients get a turn only if
/// this client stays away a little longer than that.
pub const WINDOW: Duration = Duration::from_millis(2);
/// The longest back-off of a waiter before its turn.
const NOT_YET: Duration = Duration::from_millis(200);
/// The fraction of the usual wait during which a waiter's turn has not come: so few waiters are
/// awake at a time.
const TURN: (u32, u32) = (19, 20);
/// How often in a row a waiter asks before it subscribes.
const TRIES: u32 = 3;
/// If the usual wait is longer than so many round trips, a waiter subscribes at once.
const LONG_WAIT: u32 = 200;
/// For how many round trips at most a waiter holds back.
const HELD_BACK: u32 = 16;

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
    /// The key may be free. The waiter holds back a little, because other waiters were notified as
    /// well. Then it probes one node, or asks all at once.
    Holding {
        /// Whether the waiter probes one node first.
        probe: bool,
    },
    /// The waiter probes one node.
    Probing {
        /// The node.
        node: NodeId,
    },
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
    /// When the waiter asks again, whatever was reported to it.
    pub poll_at: Instant,
    /// The attempt that is in flight was begun by a wake-up.
    pub woken: bool,
    /// The waiter in line got the key, and no node knew of another client.
    pub was_alone: bool,
    since: Instant,
    subscribed_since: Instant,
    lost_wake_ups: u32,
    /// How long others usually waited for this key: until then the waiter's turn has not come.
    usual: Duration,
    held_probes: u32,
    tries: u32,
    polls: u32,
}

impl Waiting {
    /// A waiter that begins to wait now; `usual` is the usual wait for the key.
    pub fn new(nodes: usize, usual: Duration, now: Instant) -> Waiting {
        Waiting {
            mode: Mode::Polling,
            free_at: vec![NEVER; nodes],
            reported: vec![ReportedTtl::Nothing; nodes],
            poll_at: now,
            woken: false,
            was_alone: false,
            since: now,
            subscribed_since: now,
            lost_wake_ups: 0,
            usual,
            held_probes: 0,
            tries: 0,
            polls: 0,
        }
    }

    /// The waiter woke, and another client was faster.
    pub fn note_lost_wake_up(&mut self) {
        self.lost_wake_ups = (self.lost_wake_ups + 1).min(8);
    }

    /// Whether the waiter should subscribe instead of asking, because the holder seems to keep the
    /// key. A key that passes from client to client all the time is acquired sooner by asking.
    pub fn should_subscribe(&self, round_trip: Duration) -> bool {
        self.tries >= TRIES || self.usual > LONG_WAIT * round_trip
    }

    /// The waiter is subscribed from now on.
    pub fn begin_subscription(&mut self, now: Instant) {
        (self.mode, self.subscribed_since, self.tries) = (Mode::Subscribed, now, 0);
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

    fn age(&self, now: Instant) -> Duration {
        now.saturating_since(self.since)
    }

    /// How long the waiter had to wait because of other waiters; `None` if there were none. If it
    /// had the key at once when its turn came, it could have come sooner, so half of its wait
    /// counts.
    pub fn waited_among_others(&self, now: Instant) -> Option<Duration> {
        let age = self.age(now);
        if self.mode == Mode::InLine {
            return (!self.was_alone).then_some(age);
        }
        match (self.lost_wake_ups, self.usual.is_zero()) {
            (0, true) => None,
            (0, false) => Some(age / 2),
            _ => Some(age),
        }
    }

    /// Whether the waiter stands in line on the nodes.
    pub fn is_in_line(&self) -> bool {
        self.mode == Mode::InLine
    }

    /// Whether other clients seem to wait as well.
    pub fn is_contended(&self) -> bool {
        self.lost_wake_ups > 0 || !self.usual.is_zero()
    }

    /// The shortest and the longest back-off: until about the waiter's turn, if its time is known,
    /// and then short times that grow with each wake-up that lost.
    pub fn window(&self, round_trip: Duration, now: Instant) -> (Duration, Duration) {
        let turn = (self.usual * TURN.0 / TURN.1).min(NOT_YET);
        let early = turn.saturating_sub(self.age(now));
        let most = round_trip.saturating_mul(1 << self.lost_wake_ups).min(WINDOW);
        if early > most { (early * 7 / 8, early * 9 / 8) } else { (most / 2, most) }
    }

    /// For how long at most the waiter holds back when the key may be free. The longer the key was
    /// held, the more other waiters are subscribed, too.
    pub fn hold_back(&self, round_trip: Duration, now: Instant) -> Duration {
        if !self.is_contended() {
            return Duration::ZERO;
        }
        now.saturating_since(self.subscribed_since).min(HELD_BACK * round_trip)
    }

    /// A probe said that the key is held. Returns whether to ask the nodes all the same: one node's
    /// answer may be wrong for ever.
    pub fn probe_found_held(&mut self) -> bool {
        self.held_probes += 1;
        self.held_probes > 2
    }

    /// The waiter asks the nodes.
    pub fn asks(&mut self, woken: bool) {
        self.woken = woken;
        self.tries += u32::from(woken);
        self.held_probes = 0;
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
    fn a_back_off_lasts_until_the_turn_and_then_grows() {
        let mut waiting = Waiting::new(5, Duration::ZERO, at(0));
        assert!(!waiting.is_contended());
        assert_eq!(waiting.hold_back(TRIP, at(9)), Duration::ZERO);
        let mut before = waiting.window(TRIP, at(0));
        assert_eq!(before, (TRIP / 2, TRIP));
        for _ in 0..20 {
            waiting.note_lost_wake_up();
            let window = waiting.window(TRIP, at(0));
            assert!(window.1 == WINDOW || window.1 == 2 * before.1);
            before = window;
        }
        assert_eq!(before, (WINDOW / 2, WINDOW));
        waiting.begin_subscription(at(10));
        assert_eq!(waiting.hold_back(TRIP, at(11)), Duration::from_millis(1));
        assert_eq!(waiting.hold_back(TRIP, at(100)), HELD_BACK * TRIP);
        let waiting = Waiting::new(5, Duration::from_millis(10), at(0));
        assert!(waiting.is_contended());
        let left = Duration::from_micros(8_500);
        assert_eq!(waiting.window(TRIP, at(1)), (left * 7 / 8, left * 9 / 8));
        assert_eq!(waiting.window(TRIP, at(10)), (TRIP / 2, TRIP));
        let waiting = Waiting::new(5, Duration::from_secs(10), at(0));
        assert!(waiting.window(TRIP, at(0)).0 <= NOT_YET);
    }

    #[test]
    fn waiter_wakes_when_a_majority_can_be_free() {
        let mut waiting = Waiting::new(5, Duration::ZERO, at(0));
        assert_eq!(waiting.wakes_at(3), NEVER);
        for (node, millis) in [(0, 30), (1, 10), (4, 20)] {
            waiting.free_at[node] = at(millis);
        }
        assert_eq!(waiting.wakes_at(3), at(30));
        waiting.free_at[2] = at(5);
        assert_eq!(waiting.wakes_at(3), at(20));
    }

    #[test]
    fn polls_grow_up_to_their_bound_and_every_third_probe_is_overruled() {
        let mut waiting = Waiting::new(1, Duration::ZERO, at(0));
        let (shortest, longest) = (Duration::from_millis(5), Duration::from_millis(50));
        assert_eq!(waiting.next_poll(shortest, longest), (shortest / 2, shortest));
        (0..100).for_each(|_| assert!(waiting.next_poll(shortest, longest).1 <= longest));
        assert_eq!(waiting.next_poll(shortest, longest), (longest / 2, longest));
        assert!(
            !waiting.probe_found_held()
                && !waiting.probe_found_held()
                && waiting.probe_found_held()
        );
        waiting.asks(true);
        assert!(!waiting.probe_found_held());
    }

    #[test]
    fn waiter_subscribes_after_a_few_tries_or_at_once_where_the_usual_wait_is_long() {
        let mut waiting = Waiting::new(3, LONG_WAIT * TRIP, at(0));
        for asked in 0..TRIES {
            assert!(!waiting.should_subscribe(TRIP), "after {asked} tries");
            waiting.asks(true);
        }
        assert!(waiting.should_subscribe(TRIP));
        waiting.begin_subscription(at(0));
        assert!(!waiting.should_subscribe(TRIP), "the tries count anew");
        waiting.asks(false);
        waiting.asks(false);
        waiting.asks(false);
        assert!(!waiting.should_subscribe(TRIP), "an attempt without a wake-up is no try");
        let long = LONG_WAIT * TRIP + Duration::from_nanos(1);
        assert!(Waiting::new(3, long, at(0)).should_subscribe(TRIP));
    }

    #[test]
    fn time_left_is_that_until_a_majority_can_be_free() {
        let mut waiting = Waiting::new(3, Duration::ZERO, at(0));
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

    #[test]
    fn wait_of_a_waiter_among_others_is_counted_whole_or_by_half() {
        let mut alone = Waiting::new(3, Duration::ZERO, at(0));
        assert_eq!(alone.waited_among_others(at(10)), None);
        alone.note_lost_wake_up();
        assert_eq!(alone.waited_among_others(at(10)), Some(Duration::from_millis(10)));
        let mut queued = Waiting::new(3, TRIP, at(0));
        assert_eq!(queued.waited_among_others(at(10)), Some(Duration::from_millis(5)));
        queued.note_lost_wake_up();
        assert_eq!(queued.waited_among_others(at(10)), Some(Duration::from_millis(10)));
    }
}
