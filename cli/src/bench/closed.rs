//! A closed loop: a fixed number of acquire-release pairs is in flight, and a new pair begins when
//! one has ended.
//!
//! The hazard is what a closed loop cannot show. While the nodes stall, no pair begins, so a stall
//! delays only the pairs in flight, and not those that callers would have begun meanwhile. An open
//! loop shows that.

use std::collections::VecDeque;
use std::time::Duration;

use redlatch::clock::Instant;

use super::measure::Load;
use super::pairs::{Begin, Ended};

/// The pause before another pair replaces a failed one. If no node can be asked, an attempt fails
/// immediately; without the pause the bench would do nothing but fail.
pub const REST: Duration = Duration::from_millis(10);

/// Keeps a fixed number of pairs in flight, each with another key.
#[derive(Debug)]
pub struct Closed {
    most: usize,
    taken: usize,
    free_keys: VecDeque<usize>,
    /// When the pause after each failed pair ends; until then it counts as taken.
    resting: VecDeque<Instant>,
}

impl Closed {
    pub fn new(in_flight: usize, keys: usize) -> Closed {
        let free_keys = (0..keys).collect();
        Closed { most: in_flight, taken: 0, free_keys, resting: VecDeque::new() }
    }
}

impl Load for Closed {
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin> {
        while self.resting.front().is_some_and(|&until| until <= now) {
            self.resting.pop_front();
            self.taken -= 1;
        }
        if now >= end || self.taken == self.most {
            return None;
        }
        let key = self.free_keys.pop_front()?;
        self.taken += 1;
        Some(Begin { client: 0, key, intended: None })
    }

    fn due(&self) -> Option<Instant> {
        self.resting.front().copied()
    }

    fn ended(&mut self, ended: Ended, now: Instant) {
        self.free_keys.push_back(ended.key);
        if ended.failed {
            self.resting.push_back(now.saturating_add(REST));
        } else {
            self.taken -= 1;
        }
    }

    fn late(&self, _: Instant) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Instant = Instant::from_nanos(1_000_000_000);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn closed_loop_keeps_its_number_of_pairs_in_flight_until_the_end() {
        let mut load = Closed::new(2, 3);
        let keys: Vec<_> = std::iter::from_fn(|| load.next(at(0), END)).map(|it| it.key).collect();
        assert_eq!(keys, [0, 1]);
        load.ended(Ended { client: 0, key: 0, failed: false }, at(1));
        assert_eq!(load.next(at(1), END).map(|it| it.key), Some(2), "every key has its turn");
        load.ended(Ended { client: 0, key: 1, failed: false }, at(2));
        assert_eq!(load.next(END, END), None);
    }

    #[test]
    fn closed_loop_pauses_a_place_after_a_failure() {
        let mut load = Closed::new(1, 1);
        load.next(at(0), END).expect("it is free");
        load.ended(Ended { client: 0, key: 0, failed: true }, at(0));
        assert_eq!(load.next(at(9), END), None);
        assert_eq!(load.due(), Some(at(10)));
        assert!(load.next(at(10), END).is_some());
        assert_eq!(load.due(), None);
    }
}
