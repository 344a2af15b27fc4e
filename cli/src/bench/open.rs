//! An open loop: pairs begin at a fixed rate, however long the earlier ones take, as in a service
//! with independent callers.
//!
//! If too many pairs are in flight, a pair begins later than intended, but its latency is measured
//! from the intended moment. So the figures show what a stall does to callers that come meanwhile.

use std::collections::VecDeque;

use redlatch::clock::Instant;

use super::measure::Load;
use super::pairs::{Begin, Ended};

const SECOND: u128 = 1_000_000_000;

/// An open loop with this many pairs a second.
#[derive(Debug)]
pub struct Open {
    rate: u64,
    start: Instant,
    begun: u64,
    /// The keys that no pair in flight uses. Each pair needs one, so there are never more pairs in
    /// flight than keys.
    free_keys: VecDeque<usize>,
}

impl Open {
    /// The first pair begins at `start`. At most `keys` pairs are in flight.
    pub fn new(rate: u64, start: Instant, keys: usize) -> Open {
        Open { rate, start, begun: 0, free_keys: (0..keys).collect() }
    }

    /// When the pair with this number should begin.
    fn moment(&self, number: u64) -> Instant {
        let nanos = u128::from(number) * SECOND / u128::from(self.rate);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        Instant::from_nanos(self.start.as_nanos().saturating_add(nanos))
    }
}

impl Load for Open {
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin> {
        let intended = self.moment(self.begun);
        if intended > now || intended >= end {
            return None;
        }
        let key = self.free_keys.pop_front()?;
        self.begun += 1;
        Some(Begin { client: 0, key, intended: Some(intended) })
    }

    fn due(&self) -> Option<Instant> {
        (!self.free_keys.is_empty()).then(|| self.moment(self.begun))
    }

    fn ended(&mut self, ended: Ended, _: Instant) {
        self.free_keys.push_back(ended.key);
    }

    fn late(&self, end: Instant) -> u64 {
        let nanos = end.saturating_since(self.start).as_nanos();
        // All pairs that should begin before the end. The first should begin at the start, so this
        // is rounded up.
        let all = (nanos * u128::from(self.rate)).div_ceil(SECOND);
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn open_loop_begins_pairs_on_time_while_others_are_in_flight() {
        let mut load = Open::new(1000, at(5), 2);
        assert_eq!(load.next(at(4), at(100)), None);
        assert_eq!(load.due(), Some(at(5)));
        let begun: Vec<_> = std::iter::from_fn(|| load.next(at(10), at(100))).collect();
        let intended: Vec<_> = begun.iter().map(|begin| begin.intended).collect();
        assert_eq!(intended, [Some(at(5)), Some(at(6))]);
        assert_eq!(load.due(), None, "no place is free: nothing to wake up for");
        load.ended(Ended { client: 0, key: 1, failed: false }, at(11));
        let next = load.next(at(11), at(100)).expect("a place is free");
        assert_eq!((next.key, next.intended), (1, Some(at(7))), "counted from its moment");
    }

    #[test]
    fn open_loop_counts_pairs_that_never_began() {
        let mut load = Open::new(1000, at(0), 1);
        assert_eq!(load.late(at(0)), 0);
        assert_eq!(load.late(at(10)), 10, "at 0, 1, ... 9 ms");
        load.next(at(20), at(10)).expect("its moment was before the end");
        assert_eq!(load.late(at(10)), 9);
        load.ended(Ended { client: 0, key: 0, failed: false }, at(20));
        let rest = std::iter::from_fn(|| {
            let begin = load.next(at(20), at(10))?;
            load.ended(Ended { client: 0, key: begin.key, failed: false }, at(20));
            Some(begin)
        });
        assert_eq!(rest.count(), 9);
        assert_eq!(load.late(at(10)), 0);
    }
}
