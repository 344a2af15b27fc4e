//! Several clients that want the same keys: each waits for a lock, releases it immediately, and
//! asks for the next.
//!
//! Every client has connections of its own, like programs on different machines. The bench measures
//! the time from the request to the lock. One thread drives all clients, so the figures include the
//! time that it needs for the others.

use std::collections::VecDeque;

use redlatch::clock::Instant;

use super::closed::REST;
use super::measure::Load;
use super::pairs::{Begin, Ended};

/// Each client asks for one key at a time.
#[derive(Debug)]
pub struct Contended {
    keys: usize,
    /// Clients without a request.
    idle: VecDeque<usize>,
    asked: Vec<usize>,
    /// Clients whose request failed, and when they ask again.
    resting: VecDeque<(Instant, usize)>,
}

impl Contended {
    pub fn new(clients: usize, keys: usize) -> Contended {
        let asked = vec![0; clients];
        Contended { keys, idle: (0..clients).collect(), asked, resting: VecDeque::new() }
    }
}

impl Load for Contended {
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin> {
        while self.resting.front().is_some_and(|&(until, _)| until <= now) {
            self.idle.extend(self.resting.pop_front().map(|(_, client)| client));
        }
        if now >= end {
            return None;
        }
        let client = self.idle.pop_front()?;
        // All clients go through the keys in the same order, so they contend for the same key.
        let key = self.asked[client] % self.keys;
        self.asked[client] += 1;
        Some(Begin { client, key, intended: None })
    }

    fn due(&self) -> Option<Instant> {
        self.resting.front().map(|&(until, _)| until)
    }

    fn ended(&mut self, ended: Ended, now: Instant) {
        if ended.failed {
            self.resting.push_back((now.saturating_add(REST), ended.client));
        } else {
            self.idle.push_back(ended.client);
        }
    }

    fn late(&self, _: Instant) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_want_the_same_keys_in_turn() {
        let (now, end) = (Instant::from_nanos(0), Instant::from_nanos(1));
        let mut load = Contended::new(2, 2);
        let mut round = || {
            let begun: Vec<_> = std::iter::from_fn(|| load.next(now, end)).collect();
            for &Begin { client, key, .. } in &begun {
                load.ended(Ended { client, key, failed: false }, now);
            }
            begun.iter().map(|begin| (begin.client, begin.key)).collect::<Vec<_>>()
        };
        // Each client asks, and asks for the next key when its pair has ended.
        assert_eq!(round(), [(0, 0), (1, 0)]);
        assert_eq!(round(), [(0, 1), (1, 1)]);
        assert_eq!(round(), [(0, 0), (1, 0)]);
        assert_eq!(load.next(end, end), None);
    }
}
