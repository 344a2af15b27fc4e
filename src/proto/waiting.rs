//! A request that waits for a key that others hold: what it knows of the nodes, and when it asks
//! them again.
//!
//! The hazard is a herd: every waiter that is notified of a release wakes, and all but one lose, or
//! each gets some nodes, and all lose. So a waiter that lost backs off: it ignores notifications
//! for a while, and longer each time, by what it has seen of the others ([`Crowd`]). The second
//! hazard is a waiter that ignores them for ever, so the pauses are bounded, and after some tries
//! the waiter subscribes again.

use std::time::Duration;

use crate::proto::error::HeldFor;
#[cfg(feature = "testing")]
use crate::proto::fingerprint::Fingerprint;
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::quorum::not_exceeded_by;
use crate::proto::time::Instant;

/// The longest back-off of a waiter that never met another one, unless round trips are long. Other
/// clients get a turn only if this client stays away a little longer than that.
pub const WINDOW: Duration = Duration::from_millis(5);
/// The same, in round trips: where they are long, attempts meet each other for longer.
const TRIPS: u32 = 8;
/// The longest back-off of a waiter that met another one for the first time.
const FIRST_SPREAD: Duration = Duration::from_micros(500);
/// To which it grows with each attempt that meets another: so many round trips, within bounds.
const SPREAD_TRIPS: u32 = 16;
const SPREADS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(40));
/// So many lost attempts are counted.
const MOST_LOST: u32 = 8;
/// How often in a row a waiter asks before it subscribes for the first time after it lost. Each
/// time after that it is twice as often.
const TRIES: u32 = 3;
/// So many of these times are counted.
const MOST_SUBSCRIBED: u32 = 3;
/// The pauses between polls double so often at most.
const MOST_POLLS: u32 = 8;
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

/// What is known of other clients that wait for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crowd {
    /// How many attempts were lost, less those that were won.
    lost: u32,
    /// The longest back-off by the attempts that met others: it doubles with each of them.
    spread: Duration,
    /// How often the waiter subscribed after it had lost, less the attempts that it won.
    subscribed: u32,
}

impl Crowd {
    /// An attempt was lost. If it met another one, the pauses are to be twice as long.
    fn note_lost(&mut self, met: bool, round_trip: Duration) {
        self.lost = (self.lost + 1).min(MOST_LOST);
        if met {
            let most = round_trip.saturating_mul(SPREAD_TRIPS).clamp(SPREADS.0, SPREADS.1);
            self.spread = (2 * self.spread).clamp(FIRST_SPREAD, most);
        } else if self.spread > WINDOW {
            // It met nobody: the key is held, and may be given back at any moment.
            self.spread = (self.spread * 4 / 5).max(WINDOW);
        }
    }

    /// The waiter got the key. The longer its pauses are the more they shrink, so that those of all
    /// waiters become alike.
    pub fn note_won(&mut self) {
        let (spread, window) = (self.spread.as_secs_f64(), WINDOW.as_secs_f64());
        self.spread = self.spread.div_f64(1.0 + spread / window);
        self.lost = self.lost.saturating_sub(1);
        self.subscribed = self.subscribed.saturating_sub(1);
    }

    /// The waiter subscribes: it asks more often until it subscribes again.
    fn note_subscribed(&mut self) {
        self.subscribed = (self.subscribed + 1).min(MOST_SUBSCRIBED);
        self.lost /= 2;
    }

    /// How often in a row the waiter asks before it subscribes.
    fn tries(&self) -> u32 {
        TRIES << self.subscribed
    }

    /// The longest back-off.
    fn window(&self, round_trip: Duration) -> Duration {
        let most = round_trip.saturating_mul(TRIPS).max(WINDOW);
        round_trip.saturating_mul(1 << self.lost).min(most).max(self.spread)
    }
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
    /// When the waiter in line asked the nodes last.
    pub polled_at: Instant,
    /// The attempt that is in flight was begun by a wake-up.
    pub woken: bool,
    /// The waiter in line got the key, and no node knew of another client.
    pub was_alone: bool,
    /// What it knows of others that wait, too.
    pub crowd: Crowd,
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
            polled_at: now,
            woken: false,
            was_alone: false,
            crowd: Crowd::default(),
            tries: 0,
            polls: 0,
        }
    }

    /// The same waiter, which knows this of the others.
    pub fn among(self, crowd: Crowd) -> Waiting {
        Waiting { crowd, ..self }
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

    /// A node answered how long the key of this number lives there: as `PTTL` says it, or nothing
    /// if it refused. Returns when all keys are free there, if that is known.
    pub fn note_left(
        &mut self,
        node: NodeId,
        key: usize,
        left: Option<i64>,
        now: Instant,
    ) -> Option<Instant> {
        let free_at = match left {
            Some(-2) => now,
            // A node expires keys by whole milliseconds.
            Some(millis @ 0..) => {
                now.saturating_add(Duration::from_millis(millis.unsigned_abs().saturating_add(1)))
            }
            _ => NEVER,
        };
        // Of several keys, the one that is held longest counts.
        let free_at = self.note_free_at(node, key, free_at)?;
        self.reported[node.index()] = match left {
            Some(-1) => ReportedTtl::NoTtl,
            Some(_) => ReportedTtl::FreeAt(free_at),
            None => ReportedTtl::Nothing,
        };
        Some(free_at)
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

    /// The waiter asked, and another client was faster. `met`: some nodes granted it the key, so it
    /// met an attempt of another client.
    pub fn note_lost(&mut self, met: bool, round_trip: Duration) {
        self.crowd.note_lost(met, round_trip);
    }

    /// Whether the waiter should subscribe instead of asking, because the holder seems to keep the
    /// key. A key that passes from client to client all the time is acquired sooner by asking.
    pub fn should_subscribe(&self) -> bool {
        self.tries >= self.crowd.tries()
    }

    /// The waiter is subscribed from now on.
    pub fn begin_subscription(&mut self) {
        if self.is_contended() {
            self.crowd.note_subscribed();
        }
        (self.mode, self.tries) = (Mode::Subscribed, 0);
    }

    /// For how long others hold the key by what the nodes reported last, if enough of them did:
    /// until a majority of `quorum` nodes can be free.
    pub fn held_for(&self, quorum: usize, now: Instant) -> Option<HeldFor> {
        let mut moments: Vec<Instant> =
            self.reported.iter().filter_map(ReportedTtl::moment).collect();
        match not_exceeded_by(quorum, &mut moments)? {
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
    pub fn is_contended(&self) -> bool {
        self.crowd != Crowd::default()
    }

    /// Adds the waiter to a fingerprint.
    ///
    /// # Panics
    /// If the waiter does anything but to stand in line, or to poll for want of a quorum.
    #[cfg(feature = "testing")]
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        let Waiting {
            mode,
            free_at,
            // It is said in the error.
            reported: _,
            keys,
            last_key: _,
            poll_at,
            polled_at,
            woken,
            // It is read when the lock is handed out.
            was_alone: _,
            crowd,
            // Only waiters that are notified look at it.
            tries: _,
            polls,
        } = self;
        assert!(matches!(mode, Mode::InLine | Mode::Polling), "it does not cover {mode:?}");
        assert!(keys.is_none() && !woken && *crowd == Crowd::default(), "nor {self:?}");
        fingerprint.add(u64::from(*polls.min(&MOST_POLLS)) + 64 * u64::from(self.is_in_line()));
        if self.is_in_line() {
            for (index, &moment) in free_at.iter().enumerate() {
                // How far off the moment is that does not come depends on the time itself.
                let ahead = if moment == NEVER { u64::MAX } else { fingerprint.ahead(moment) };
                fingerprint.add_at(NodeId::new(index), ahead);
            }
            fingerprint.add(fingerprint.ahead(*poll_at));
            fingerprint.add(fingerprint.ago(*polled_at, Duration::from_millis(4)));
        }
    }

    /// The shortest and the longest back-off: times that grow with each attempt that was lost.
    pub fn window(&self, round_trip: Duration) -> (Duration, Duration) {
        let most = self.crowd.window(round_trip);
        (most / 2, most)
    }

    /// The waiter backs off after an attempt, which counts as a try also if no wake-up began it.
    pub fn backs_off(&mut self, woken: bool) {
        self.mode = Mode::BackingOff;
        self.tries += u32::from(!woken);
    }

    /// The waiter asks the nodes.
    pub fn asks(&mut self, woken: bool) {
        self.woken = woken;
        self.tries += u32::from(woken);
    }

    /// The pause before the waiter asks, whatever was reported to it, between `shortest` and
    /// `longest`.
    pub fn next_poll(&mut self, shortest: Duration, longest: Duration) -> (Duration, Duration) {
        let pause = shortest.saturating_mul(1 << self.polls.min(MOST_POLLS)).min(longest);
        self.polls = self.polls.saturating_add(1);
        (pause / 2, pause)
    }

    /// When the key is free on `quorum` nodes, as far as they reported it.
    pub fn wakes_at(&self, quorum: usize) -> Instant {
        let mut moments = [NEVER; MAX_NODES];
        let moments = &mut moments[..self.free_at.len()];
        moments.copy_from_slice(&self.free_at);
        not_exceeded_by(quorum, moments).unwrap_or(NEVER)
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
            waiting.note_lost(false, TRIP);
            let window = waiting.window(TRIP);
            assert!(window.1 == WINDOW || window.1 == 2 * before.1);
            before = window;
        }
        assert_eq!(before, (WINDOW / 2, WINDOW));
        assert!(waiting.is_contended());
        let long = Duration::from_millis(5);
        assert_eq!(waiting.window(long).1, 8 * long, "long round trips make it longer");
    }

    #[test]
    fn a_back_off_grows_with_attempts_that_met_and_shrinks_with_others() {
        let mut waiting = Waiting::new(5, 1, at(0));
        let long = Duration::from_millis(5);
        let mut after = |met, trip| {
            (0..10).for_each(|_| waiting.note_lost(met, trip));
            waiting.window(TRIP).1
        };
        assert_eq!(after(true, TRIP), SPREADS.0);
        assert_eq!(after(true, long), SPREADS.1, "long round trips raise the bound");
        assert_eq!(after(true, TRIP), SPREADS.0);
        assert_eq!(after(false, TRIP), WINDOW);
    }

    #[test]
    fn a_longer_back_off_shrinks_more_when_the_key_is_won() {
        let spread = |millis| Crowd { spread: Duration::from_millis(millis), ..Crowd::default() };
        let (mut short, mut long) = (spread(5), spread(40));
        (0..4).for_each(|_| [&mut short, &mut long].into_iter().for_each(Crowd::note_won));
        let ratio = long.spread.as_secs_f64() / short.spread.as_secs_f64();
        assert!(ratio > 1.0 && ratio < 1.3, "they become alike: {short:?}, {long:?}");
        assert!(short.spread < Duration::from_millis(2));
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
        waiting.note_lost(false, TRIP);
        for most in [TRIES, 2 * TRIES, 4 * TRIES, 8 * TRIES, 8 * TRIES] {
            for asked in 0..most {
                assert!(!waiting.should_subscribe(), "after {asked} tries of {most}");
                waiting.asks(asked % 2 == 0);
                waiting.backs_off(asked % 2 == 0);
            }
            assert!(waiting.should_subscribe());
            waiting.begin_subscription();
        }
        (0..9).for_each(|_| waiting.asks(false));
        assert!(!waiting.should_subscribe(), "a poll of a waiter that is notified is no try");
    }

    #[test]
    fn a_waiter_that_never_lost_asks_a_few_times_only() {
        let mut waiting = Waiting::new(3, 1, at(0));
        (0..5).for_each(|_| waiting.begin_subscription());
        (0..TRIES).for_each(|_| waiting.asks(true));
        assert!(waiting.should_subscribe());
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
