//! The timers: what is due, and when.
//!
//! Timers of one kind and of equal length come due in the order they were set. So each kind and
//! length has a list of its own, a lane, and the hot path only appends to a lane and unlinks from
//! it. (A deadline counts from the start of its request and the end of a round from now, so one
//! lane for both would be out of order.) Lengths that are drawn at random go into a sorted set. A
//! timer that is cleared is gone: no stale timer wakes the driver.

use std::collections::BTreeSet;
use std::mem::Discriminant;
use std::time::Duration;

use slab::Slab;

use crate::proto::ids::Place;
use crate::proto::surplus::{insert, shrink_slab};
use crate::proto::time::Instant;

/// How many kinds and lengths can have a lane at the same time: more than the node timeout, the
/// connect timeout and the ttls of one program need. Further timers go to the sorted set.
const LANES: usize = 16;

const NONE: u32 = u32::MAX;
const NO_LANE: u8 = u8::MAX;

/// The handle of a timer, by which it can be cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer(Place);

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    due: Instant,
    what: T,
    lane: u8,
    previous: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct Lane<T> {
    kind: Discriminant<T>,
    /// In nanoseconds.
    length: u64,
    head: u32,
    tail: u32,
}

/// Timers, each with what is to be done at its end.
#[derive(Debug, Clone)]
pub struct Timers<T> {
    entries: Slab<Entry<T>>,
    lanes: Vec<Lane<T>>,
    sorted: BTreeSet<(Instant, u32)>,
    /// How many timers were looked at to find the place of another one in its lane.
    #[cfg(test)]
    steps_back: usize,
}

impl<T: Copy> Timers<T> {
    /// No timer.
    pub fn new() -> Timers<T> {
        let (entries, lanes) = (Slab::new(), Vec::with_capacity(LANES));
        Timers {
            entries,
            lanes,
            sorted: BTreeSet::new(),
            #[cfg(test)]
            steps_back: 0,
        }
    }

    /// Sets a timer of a length that many others have.
    pub fn set_after(&mut self, now: Instant, length: Duration, what: T) -> Timer {
        let due = now.saturating_add(length);
        // Those of one moment have equal lengths if they are due together. One subtraction of
        // whole nanoseconds is less than a comparison of two `Duration`s for each lane.
        let nanos = due.as_nanos() - now.as_nanos();
        let Some(lane) = self.lane_for(std::mem::discriminant(&what), nanos) else {
            return self.set_at(due, what);
        };
        let (previous, next) = self.neighbours(lane, due);
        let entry = Entry { due, what, lane: lane as u8, previous, next };
        let place = insert(&mut self.entries, entry);
        self.link(place as u32, lane, (previous, next));
        Timer(Place::new(place))
    }

    /// Sets a timer for a moment of its own.
    pub fn set_at(&mut self, due: Instant, what: T) -> Timer {
        let entry = Entry { due, what, lane: NO_LANE, previous: NONE, next: NONE };
        let key = insert(&mut self.entries, entry) as u32;
        self.sorted.insert((due, key));
        Timer(Place::new(key as usize))
    }

    /// Clears a timer that has not come due.
    ///
    /// # Panics
    /// If the timer came due or was cleared before: the code that holds a timer has to forget it
    /// then.
    pub fn clear(&mut self, timer: Timer) {
        let place = timer.0.index();
        let entry = self.entries.remove(place);
        self.unlink(place as u32, &entry);
    }

    /// Clears the timer in `place`, if there is one.
    pub fn clear_in(&mut self, place: &mut Option<Timer>) {
        if let Some(timer) = place.take() {
            self.clear(timer);
        }
    }

    /// The earliest moment at which something is due. Every turn asks this twice.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let first = self.sorted.first().map(|&(due, _)| due);
        self.lanes.iter().filter(|lane| lane.head != NONE).fold(first, |first, lane| {
            let due = self.entries[lane.head as usize].due;
            Some(first.map_or(due, |first| first.min(due)))
        })
    }

    /// The earliest timer, and when it is due.
    pub fn first(&self) -> Option<(Instant, T)> {
        let (due, key) = self.earliest()?;
        Some((due, self.entries[key as usize].what))
    }

    /// Takes out the earliest timer that is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let (due, key) = self.earliest()?;
        if due > now {
            return None;
        }
        let entry = self.entries.remove(key as usize);
        self.unlink(key, &entry);
        Some(entry.what)
    }

    /// Shrinks the slab if it has far more places than `most`, the most that were in use lately.
    pub fn shrink(&mut self, most: usize) {
        shrink_slab(&mut self.entries, most);
    }

    /// How many timers fit without another allocation.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The timers that are set, in no order, each with the moment at which it is due.
    #[cfg(feature = "testing")]
    pub fn iter(&self) -> impl Iterator<Item = (Instant, T)> {
        self.entries.iter().map(|(_, entry)| (entry.due, entry.what))
    }

    /// How many timers are set.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn earliest(&self) -> Option<(Instant, u32)> {
        let heads = self.lanes.iter().filter(|lane| lane.head != NONE);
        let heads = heads.map(|lane| (self.entries[lane.head as usize].due, lane.head));
        heads.chain(self.sorted.first().copied()).min()
    }

    /// The lane of this kind and length: its own, an empty one, or a new one while there is room.
    fn lane_for(&mut self, kind: Discriminant<T>, length: u64) -> Option<usize> {
        let is_own = |lane: &Lane<T>| lane.length == length && lane.kind == kind;
        if let Some(lane) = self.lanes.iter().position(is_own) {
            return Some(lane);
        }
        if let Some(lane) = self.lanes.iter().position(|lane| lane.head == NONE) {
            (self.lanes[lane].kind, self.lanes[lane].length) = (kind, length);
            return Some(lane);
        }
        if self.lanes.len() == LANES {
            return None;
        }
        self.lanes.push(Lane { kind, length, head: NONE, tail: NONE });
        Some(self.lanes.len() - 1)
    }

    /// The entries of a lane between which one has its place that is due at `due`: after all that
    /// are not due later. These end at the tail, unless the caller's clock went back, or requests
    /// end in another order than they began.
    #[inline]
    fn neighbours(&mut self, lane: usize, due: Instant) -> (u32, u32) {
        let (mut previous, mut next) = (self.lanes[lane].tail, NONE);
        while previous != NONE && self.entries[previous as usize].due > due {
            (previous, next) = (self.entries[previous as usize].previous, previous);
            #[cfg(test)]
            {
                self.steps_back += 1;
            }
        }
        (previous, next)
    }

    /// Links an entry into its lane, between these two.
    #[inline]
    fn link(&mut self, key: u32, lane: usize, (previous, next): (u32, u32)) {
        match previous {
            NONE => self.lanes[lane].head = key,
            _ => self.entries[previous as usize].next = key,
        }
        match next {
            NONE => self.lanes[lane].tail = key,
            _ => self.entries[next as usize].previous = key,
        }
    }

    fn unlink(&mut self, key: u32, entry: &Entry<T>) {
        if entry.lane == NO_LANE {
            self.sorted.remove(&(entry.due, key));
            return;
        }
        let lane = &mut self.lanes[usize::from(entry.lane)];
        match entry.previous {
            NONE => lane.head = entry.next,
            _ => self.entries[entry.previous as usize].next = entry.next,
        }
        match entry.next {
            NONE => lane.tail = entry.previous,
            _ => self.entries[entry.next as usize].previous = entry.previous,
        }
    }
}

impl<T: Copy> Default for Timers<T> {
    fn default() -> Timers<T> {
        Timers::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn timers_come_due_in_the_order_of_their_moments() {
        let mut timers = Timers::new();
        timers.set_after(at(0), Duration::from_nanos(10), 'b');
        timers.set_after(at(0), Duration::from_nanos(5), 'a');
        timers.set_at(at(12), 'c');
        timers.set_after(at(3), Duration::from_nanos(10), 'd');
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        let order: String = std::iter::from_fn(|| timers.pop_due(at(13))).collect();
        assert_eq!(order, "abcd");
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn timers_that_are_cleared_never_fire() {
        let mut timers = Timers::new();
        let first = timers.set_after(at(0), Duration::from_nanos(5), 1);
        let odd = timers.set_at(at(4), 2);
        timers.set_after(at(1), Duration::from_nanos(5), 3);
        timers.clear(odd);
        timers.clear(first);
        assert_eq!(timers.next(), Some(at(6)));
        assert_eq!(timers.pop_due(at(6)), Some(3));
    }

    /// Set or clear: a length (many distinct ones, so that the lanes run out), or which to clear.
    fn step() -> impl Strategy<Value = (bool, u64, usize)> {
        (any::<bool>(), 0..40_u64, any::<usize>())
    }

    proptest! {
        #[test]
        fn timers_agree_with_a_sorted_list(
            steps in proptest::collection::vec(step(), 1..200), late in 0..60_u64,
        ) {
            let mut timers = Timers::new();
            let mut list: Vec<(u64, usize, Timer)> = Vec::new();
            for (index, (set, length, which)) in steps.into_iter().enumerate() {
                let now = (index / 3) as u64;
                if set || list.is_empty() {
                    let timer = timers.set_after(at(now), Duration::from_nanos(length), index);
                    list.push((now + length, index, timer));
                } else {
                    let (_, _, timer) = list.swap_remove(which % list.len());
                    timers.clear(timer);
                }
                prop_assert_eq!(timers.next(), list.iter().map(|t| at(t.0)).min());
                prop_assert_eq!(timers.len(), list.len());
            }
            let mut due: Vec<usize> = std::iter::from_fn(|| timers.pop_due(at(late))).collect();
            let mut wanted: Vec<usize> =
                list.iter().filter(|t| t.0 <= late).map(|t| t.1).collect();
            due.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(due, wanted);
        }
    }

    /// With a ttl below the node timeout a round ends when its lock would: equal lengths, but one
    /// counts from the start of the request and the other from now.
    #[test]
    fn deadlines_of_many_requests_are_set_without_a_look_at_the_ends_of_their_rounds() {
        #[derive(Clone, Copy)]
        enum Due {
            Round,
            Deadline,
        }
        let (mut timers, length) = (Timers::new(), Duration::from_millis(20));
        for now in 0..2_000 {
            timers.set_after(at(now), length, Due::Round);
            // The request that began 512 requests ago has won.
            if let Some(began) = now.checked_sub(512) {
                timers.set_after(at(began), length, Due::Deadline);
            }
        }
        assert_eq!(timers.steps_back, 0);
    }

    #[test]
    fn timers_of_a_clock_that_went_back_come_due_in_order_and_equal_ones_as_they_were_set() {
        let mut timers = Timers::new();
        for (now, what) in [(10, 'c'), (5, 'a'), (10, 'd'), (7, 'b'), (5, 'x')] {
            timers.set_after(at(now), Duration::from_nanos(5), what);
        }
        let order: String = std::iter::from_fn(|| timers.pop_due(at(15))).collect();
        assert_eq!(order, "axbcd");
    }

    #[test]
    fn timers_give_back_the_room_of_a_burst() {
        let mut timers = Timers::new();
        let set: Vec<Timer> = (0..50_000_u64).map(|n| timers.set_at(at(n), n)).collect();
        assert!(timers.capacity() >= 50_000);
        set.into_iter().for_each(|timer| timers.clear(timer));
        timers.shrink(1);
        assert!(timers.capacity() <= 2_048, "{}", timers.capacity());
    }

    #[test]
    fn timers_of_one_length_share_a_lane_and_lengths_without_a_lane_are_sorted() {
        let mut timers = Timers::new();
        let length = |n: usize| Duration::from_nanos(n as u64 + 1);
        for n in 0..LANES {
            timers.set_after(at(0), length(n), n);
            timers.set_after(at(1), length(n), n);
        }
        assert_eq!((timers.lanes.len(), timers.sorted.len()), (LANES, 0));
        let more = timers.set_after(at(0), length(LANES), LANES);
        assert_eq!((timers.lanes.len(), timers.sorted.len()), (LANES, 1));
        timers.clear(more);
        // A lane that is empty is given to another length.
        while timers.pop_due(at(100)).is_some() {}
        timers.set_after(at(0), length(LANES), LANES);
        assert_eq!((timers.lanes.len(), timers.sorted.len()), (LANES, 0));
    }
}
