//! A closed loop: a fixed number of pairs is in flight, and the next one begins when one has ended.
//!
//! The hazard is what it cannot show: while the nodes stall nothing new begins, so a stall counts
//! once for each pair in flight, however many would have come meanwhile. An open loop shows that.

use std::collections::VecDeque;
use std::time::Duration;

use redlatch::clock::Instant;

use super::measure::Load;
use super::pairs::{Begin, Ended};

/// How long the place of a failed pair stays empty. If no node can be asked, an attempt fails at
/// once, and the next one would as well.
pub const REST: Duration = Duration::from_millis(10);

/// A fixed number of pairs at once, each with a key of its own.
#[derive(Debug)]
pub struct Closed {
    most: usize,
    taken: usize,
    free_keys: VecDeque<usize>,
    /// Places that stay empty until then.
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
    fn so_many_and_no_more_and_none_after_the_end() {
        let mut load = Closed::new(2, 3);
        let keys: Vec<_> = std::iter::from_fn(|| load.next(at(0), END)).map(|it| it.key).collect();
        assert_eq!(keys, [0, 1]);
        load.ended(Ended { client: 0, key: 0, failed: false }, at(1));
        assert_eq!(load.next(at(1), END).map(|it| it.key), Some(2), "every key has its turn");
        load.ended(Ended { client: 0, key: 1, failed: false }, at(2));
        assert_eq!(load.next(END, END), None);
    }

    #[test]
    fn a_place_rests_after_a_failure() {
        let mut load = Closed::new(1, 1);
        load.next(at(0), END).expect("it is free");
        load.ended(Ended { client: 0, key: 0, failed: true }, at(0));
        assert_eq!(load.next(at(9), END), None);
        assert_eq!(load.due(), Some(at(10)));
        assert!(load.next(at(10), END).is_some());
        assert_eq!(load.due(), None);
    }
}
