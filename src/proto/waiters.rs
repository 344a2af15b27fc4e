//! Who waits for a key: in one client a queue, of which only the first asks the nodes; and what
//! that one believes of the nodes, and when it asks again.
//!
//! The hazard is a herd: whoever is told of a release wakes, and all but one wake in vain. So a
//! waiter that woke in vain is deaf for a while, and longer each time; and the hazard behind it is
//! a waiter that is deaf for ever, so age makes the pauses shorter.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use super::key::KeyHash;
use super::node::NodeId;
use super::ops::Op;
use super::time::Instant;

/// How often in a row a key is handed over inside one client before others get a turn.
const STREAK: u32 = 1000;
/// And how long at most.
const STREAK_TIME: Duration = Duration::from_millis(200);
/// The longest a waiter is deaf: so long others have to be left alone to have a turn.
const WINDOW: Duration = Duration::from_millis(16);
/// Each time a waiter grows older by this, its window is shorter: by the square of its ages, so
/// that hardly anybody waits for long.
const AGES: Duration = Duration::from_millis(24);
/// How many keys are remembered for which others wait, too.
const CROWDS: usize = 64;
/// A crowd is taken for smaller by one each time this has passed.
const DISPERSES: Duration = Duration::from_millis(20);
/// The largest crowd that is told from larger ones, as the power of two.
const LARGEST_CROWD: u32 = 8;
/// For how many round trips at most a waiter holds back.
const HELD_BACK: u32 = 16;
/// What round trips are taken for: a loop that is busy must not make everybody wait for long.
const ROUND_TRIPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// The waiters of one key behind the one that asks the nodes, or holds it.
#[derive(Debug)]
pub struct Queue {
    /// The key.
    pub key: Vec<u8>,
    /// In the order of their turns.
    pub waiting: VecDeque<Op>,
    /// How often it was handed over in a row, and since when.
    streak: (u32, Instant),
}

/// The queues, by number.
pub type Queues = Slab<Queue>;

impl Queue {
    /// Nobody behind the one that has the key now.
    pub fn new(key: &[u8], now: Instant) -> Queue {
        Queue { key: key.to_vec(), waiting: VecDeque::new(), streak: (0, now) }
    }

    /// It is handed over once more. Whether the next one has to leave others a turn first.
    pub fn hands_over(&mut self, now: Instant) -> bool {
        let (count, since) = self.streak;
        let over = count >= STREAK || now.saturating_since(since) >= STREAK_TIME;
        if count == 0 || over {
            self.streak = (u32::from(!over), now);
        } else {
            self.streak.0 += 1;
        }
        over && count > 0
    }

    /// It came to the next one in another way.
    pub fn ends_streak(&mut self, now: Instant) {
        self.streak = (0, now);
    }
}

/// What a waiter does until its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It waits for the time to pass: nobody tells it anything.
    Polling,
    /// It is to be told when the key is written to.
    Listening,
    /// It woke in vain, and does not want to know for a while.
    Deaf,
    /// The key may be free; it waits a little, for others have been told as well. Then it looks,
    /// or asks at once.
    Holding {
        /// It looks first.
        look: bool,
    },
    /// It looks at one node.
    Looking {
        /// Which.
        node: NodeId,
    },
    /// The client had the key for long: it leaves others a turn.
    Yielding,
}

/// One that waits for a key that others hold.
#[derive(Debug)]
pub struct Waiting {
    /// What it does.
    pub mode: Mode,
    /// When the key is free on each node, as far as it was told: the end of time where not.
    pub free_at: Vec<Instant>,
    /// When it asks again whatever it was told.
    pub poll_at: Instant,
    /// The attempt that is under way was begun by a wake.
    pub woken: bool,
    since: Instant,
    listens_since: Instant,
    in_vain: u32,
    held_looks: u32,
    polls: u32,
}

impl Waiting {
    /// It begins to wait, in a crowd of that size or in none.
    pub fn new(nodes: usize, crowd: u32, now: Instant) -> Waiting {
        Waiting {
            mode: Mode::Polling,
            free_at: vec![NEVER; nodes],
            poll_at: now,
            woken: false,
            since: now,
            listens_since: now,
            in_vain: crowd,
            held_looks: 0,
            polls: 0,
        }
    }

    /// It woke, and another was faster.
    pub fn woke_in_vain(&mut self) {
        self.in_vain = (self.in_vain + 1).min(LARGEST_CROWD);
    }

    /// It listens from now on.
    pub fn begins_to_listen(&mut self, now: Instant) {
        (self.mode, self.listens_since) = (Mode::Listening, now);
    }

    /// About how many others wait, as the power of two.
    pub fn crowd(&self) -> u32 {
        self.in_vain
    }

    /// Whether others seem to wait as well.
    pub fn is_in_a_crowd(&self) -> bool {
        self.in_vain > 0
    }

    /// For how long at most it is deaf.
    pub fn window(&self, round_trip: Duration, now: Instant) -> Duration {
        let age = now.saturating_since(self.since);
        let times = u32::try_from(age.as_nanos() / AGES.as_nanos()).unwrap_or(u32::MAX);
        let most = WINDOW / times.saturating_mul(times).saturating_add(1);
        (2 * round_trip).saturating_mul(1 << self.in_vain).min(most)
    }

    /// For how long at most it holds back when the key may be free. The longer it was held, the
    /// more of the others are listening, too.
    pub fn hold_back(&self, round_trip: Duration, now: Instant) -> Duration {
        if self.in_vain == 0 {
            return Duration::ZERO;
        }
        now.saturating_since(self.listens_since).min(HELD_BACK * round_trip)
    }

    /// A look said that the key is held. Whether to ask the nodes all the same: what one says may
    /// be wrong for ever.
    pub fn saw_it_held(&mut self) -> bool {
        self.held_looks += 1;
        self.held_looks > 2
    }

    /// It asks the nodes.
    pub fn asks(&mut self, woken: bool) {
        self.woken = woken;
        self.held_looks = 0;
    }

    /// The pause before it asks whatever it was told, between `shortest` and `longest`.
    pub fn next_poll(&mut self, shortest: Duration, longest: Duration) -> (Duration, Duration) {
        let pause = shortest.saturating_mul(1 << self.polls.min(8)).min(longest);
        self.polls = self.polls.saturating_add(1);
        (pause / 2, pause)
    }

    /// When the key is free on `quorum` nodes, as far as it was told.
    pub fn wakes_at(&self, quorum: usize) -> Instant {
        let mut moments = [NEVER; super::node::MAX_NODES];
        let moments = &mut moments[..self.free_at.len()];
        moments.copy_from_slice(&self.free_at);
        moments.sort_unstable();
        moments[quorum - 1]
    }
}

/// The sizes of crowds for a few keys: who asks anew need not find it out anew.
#[derive(Debug)]
pub struct Crowds([(KeyHash, u32, Instant); CROWDS]);

impl Crowds {
    /// The crowd at a key, as it seemed last.
    pub fn at(&self, key: KeyHash, now: Instant) -> u32 {
        let (whose, size, seen_at) = self.0[key.place(CROWDS)];
        let passed = now.saturating_since(seen_at).as_nanos() / DISPERSES.as_nanos();
        let gone = u32::try_from(passed).unwrap_or(u32::MAX);
        if whose == key { size.saturating_sub(gone) } else { 0 }
    }

    /// So it seems now.
    pub fn note(&mut self, key: KeyHash, size: u32, now: Instant) {
        self.0[key.place(CROWDS)] = (key, size, now);
    }
}

impl Default for Crowds {
    fn default() -> Crowds {
        Crowds([(KeyHash::of(b""), 0, Instant::default()); CROWDS])
    }
}

/// A moment that does not come.
pub const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// How long others are left alone to have a turn.
pub fn turn_of_others(round_trip: Duration) -> Duration {
    WINDOW + 2 * round_trip
}

/// How long a look may take before it is taken for unanswered.
pub fn patience(round_trip: Duration) -> Duration {
    4 * round_trip + Duration::from_millis(1)
}

/// About how long a node takes to answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTrip {
    nanos: u64,
}

impl RoundTrip {
    /// One took so long.
    pub fn add(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos = (self.nanos - self.nanos / 8).saturating_add(took / 8);
    }

    /// What one takes, within bounds.
    pub fn usual(self) -> Duration {
        Duration::from_nanos(self.nanos).clamp(ROUND_TRIPS.0, ROUND_TRIPS.1)
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
    fn a_round_trip_is_about_what_the_last_ones_took() {
        let mut trips = RoundTrip::default();
        (0..100).for_each(|_| trips.add(Duration::from_micros(800)));
        assert!(trips.usual().abs_diff(Duration::from_micros(800)) < Duration::from_micros(2));
        trips.add(Duration::MAX);
        assert_eq!(trips.usual(), ROUND_TRIPS.1);
        assert_eq!(RoundTrip::default().usual(), ROUND_TRIPS.0);
    }

    #[test]
    fn a_streak_is_bounded_by_its_length_and_by_its_time() {
        let mut queue = Queue::new(b"k", at(0));
        assert!((0..STREAK).all(|_| !queue.hands_over(at(1))));
        assert!(queue.hands_over(at(1)));
        assert!(!queue.hands_over(at(1)), "a new one begins");
        assert!(queue.hands_over(at(201)));
        assert!(!queue.hands_over(at(500)), "one hand-over is always had");
        queue.ends_streak(at(500));
        assert!(!queue.hands_over(at(5_000)));
    }

    #[test]
    fn windows_grow_with_each_wake_in_vain_and_shrink_with_age() {
        let mut waiting = Waiting::new(5, 0, at(0));
        assert!(!waiting.is_in_a_crowd());
        assert_eq!(waiting.hold_back(TRIP, at(9)), Duration::ZERO);
        let mut before = waiting.window(TRIP, at(0));
        for _ in 0..20 {
            waiting.woke_in_vain();
            let window = waiting.window(TRIP, at(0));
            assert!(window == WINDOW || window == 2 * before || waiting.crowd() == LARGEST_CROWD);
            before = window;
        }
        assert_eq!(before, WINDOW, "others are left alone for so long");
        assert_eq!(waiting.window(TRIP, at(24)), WINDOW / 2);
        assert_eq!(waiting.window(TRIP, at(48)), WINDOW / 5);
        assert!(waiting.window(TRIP, at(20_000)) < TRIP);
        waiting.begins_to_listen(at(10));
        assert_eq!(waiting.hold_back(TRIP, at(11)), Duration::from_millis(1));
        assert_eq!(waiting.hold_back(TRIP, at(100)), HELD_BACK * TRIP);
    }

    #[test]
    fn a_crowd_is_remembered_for_a_while() {
        let (key, other) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        let mut crowds = Crowds::default();
        assert_eq!(crowds.at(key, at(1)), 0);
        crowds.note(key, 3, at(100));
        assert_eq!(crowds.at(key, at(119)), 3);
        assert_eq!(crowds.at(key, at(140)), 1);
        assert_eq!(crowds.at(key, at(10_000)), 0);
        assert_eq!(crowds.at(other, at(100)), 0);
    }

    #[test]
    fn it_wakes_when_a_majority_can_be_free() {
        let mut waiting = Waiting::new(5, 0, at(0));
        assert_eq!(waiting.wakes_at(3), NEVER);
        for (node, millis) in [(0, 30), (1, 10), (4, 20)] {
            waiting.free_at[node] = at(millis);
        }
        assert_eq!(waiting.wakes_at(3), at(30));
        waiting.free_at[2] = at(5);
        assert_eq!(waiting.wakes_at(3), at(20));
    }

    #[test]
    fn polls_grow_up_to_their_bound_and_every_third_look_is_overruled() {
        let mut waiting = Waiting::new(1, 0, at(0));
        let (shortest, longest) = (Duration::from_millis(5), Duration::from_millis(50));
        assert_eq!(waiting.next_poll(shortest, longest), (shortest / 2, shortest));
        (0..100).for_each(|_| assert!(waiting.next_poll(shortest, longest).1 <= longest));
        assert_eq!(waiting.next_poll(shortest, longest), (longest / 2, longest));
        assert!(!waiting.saw_it_held() && !waiting.saw_it_held() && waiting.saw_it_held());
        waiting.asks(true);
        assert!(!waiting.saw_it_held());
    }
}
