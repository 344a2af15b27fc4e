//! A client that asks for a key again soon after it released it. Its `SET NX` reaches the nodes
//! before a waiter in line has heard of the release and asked, if it is written together with the
//! release, or if the client is nearer to the nodes than the waiter.
//!
//! The hazard is a waiter that never gets a turn. So the client counts the locks that it asks for
//! in this way, and now and then releases one by handing the key over to the first in line.

use std::time::Duration;

use crate::proto::error::{Error, Report, ReportedSet};
#[cfg(feature = "testing")]
use crate::proto::fingerprint::{Fingerprint, hash_of};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::time::Instant;

/// How soon the client asks again at most: longer than a round trip of most waiters.
const SOON: Duration = Duration::from_millis(10);
/// A lock that was held for as long is followed by one that is handed over, which costs little
/// beside the hold.
pub const LONG_HOLD: Duration = Duration::from_millis(10);
/// After so many other locks, at most, one is handed over.
const MOST: u8 = 64;
/// Up to so many fewer, by chance: two keys with one place in the table may take turns.
const FEWER: u8 = 32;

/// How many keys have a place of their own. Two that share one are taken for the same key, so the
/// key is handed over sooner or later than needed.
const PLACES: usize = 64;

/// When the client released its keys last.
#[derive(Debug, Clone)]
pub struct Releases([Release; PLACES]);

#[derive(Debug, Clone, Copy)]
struct Release {
    at: Option<Instant>,
    after_long_hold: bool,
    /// The number of locks that are left before one is handed over.
    left: u8,
}

impl Default for Releases {
    fn default() -> Releases {
        Releases([Release { at: None, after_long_hold: false, left: MOST }; PLACES])
    }
}

impl Releases {
    /// The client releases this key, which it held for so long.
    #[inline]
    pub fn note(&mut self, key: KeyHash, held: Duration, now: Instant) {
        let release = &mut self.0[key.place(PLACES)];
        (release.at, release.after_long_hold) = (Some(now), held >= LONG_HOLD);
    }

    /// Adds them to a fingerprint.
    #[cfg(feature = "testing")]
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        for (place, release) in self.0.iter().enumerate() {
            let Release { at, after_long_hold, left } = *release;
            let ago =
                at.map(|at| fingerprint.ago(at, SOON)).filter(|&ago| ago < SOON.as_nanos() as u64);
            if ago.is_some() || left != MOST {
                let ago = ago.map(|ago| (ago, after_long_hold));
                fingerprint.add(hash_of(&(place, ago, left)));
            }
        }
    }

    /// The client asks for this key. Returns whether the lock is to be handed over when it is
    /// released. `fewer` draws a number below its argument.
    fn ask(&mut self, key: KeyHash, now: Instant, fewer: impl FnOnce(usize) -> usize) -> bool {
        let release = &mut self.0[key.place(PLACES)];
        if release.at.is_none_or(|at| now.saturating_since(at) >= SOON) {
            return false;
        }
        release.left -= 1;
        let is_enough = release.after_long_hold || release.left == 0;
        if is_enough {
            release.left = MOST - fewer(usize::from(FEWER)) as u8;
        }
        is_enough
    }
}

/// What a request does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstStep {
    /// The request asks the nodes.
    Ask,
    /// The request asks the nodes, and its lock is handed over when it is released.
    AskAndHandOver,
    /// The request joins the line: others stand in it.
    Join,
    /// The request leaves others a pause in which they can get the key, as the nodes refuse lines.
    Pause,
}

/// How a request may wait.
#[derive(Debug, Clone, Copy)]
pub struct HowItWaits {
    /// The request may stand in line: the nodes do not refuse that.
    pub joins: bool,
    /// The request may wait at this moment.
    pub may_wait: bool,
}

impl FirstStep {
    /// Whether the token of the request is one of a lock that is handed over.
    pub fn hands_over(self) -> bool {
        matches!(self, FirstStep::AskAndHandOver | FirstStep::Join)
    }
}

impl Locks {
    /// Whether this client asks for a key again that it released just before.
    #[inline]
    pub(in crate::proto::locks) fn asks_again(&mut self, key: KeyHash, now: Instant) -> bool {
        let random = &mut self.random;
        self.releases.ask(key, now, |most| random.index(most))
    }

    /// What a request does first. `again`: it is for a key that this client released just before.
    /// `has_line`: others stand in line for one of its keys.
    #[inline]
    pub(in crate::proto::locks) fn first_step(
        how: HowItWaits,
        has_line: bool,
        again: bool,
    ) -> FirstStep {
        let HowItWaits { joins, may_wait } = how;
        match (again, joins) {
            (_, true) if has_line && may_wait => FirstStep::Join,
            (true, true) => FirstStep::AskAndHandOver,
            (true, false) if may_wait => FirstStep::Pause,
            _ => FirstStep::Ask,
        }
    }

    /// Takes the first step of a request, whose record is open.
    #[inline]
    pub(in crate::proto::locks) fn begin_request(
        &mut self,
        op: Op,
        id: RecordId,
        first: FirstStep,
        now: Instant,
    ) {
        match first {
            FirstStep::Ask | FirstStep::AskAndHandOver => self.begin_attempt(id, now),
            FirstStep::Join | FirstStep::Pause => {
                let last = Error::Contended(self.report_unasked_of(id, now));
                self.waits.push_back(WaitEvent::AttemptLost { op, next: id, last });
            }
        }
    }

    /// A report about the keys of a record for which no node was asked.
    #[cold]
    pub(in crate::proto::locks) fn report_unasked_of(
        &self,
        id: RecordId,
        now: Instant,
    ) -> Box<Report> {
        let record = self.records.get(id);
        let mut report = self.report_unasked(record.shown_key(), now);
        let keys = record.count_keys();
        report.set = record.set().map(|set| ReportedSet { keys, named: set.named().is_some() });
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// How many locks are asked for so soon after each release until one is handed over, after
    /// holds of this length.
    fn locks_until_one_is_handed_over(pause: Duration, hold: Duration) -> Option<usize> {
        let (mut releases, key) = (Releases::default(), KeyHash::of(b"k"));
        let mut now = at(1);
        let mut asks_once_more = || {
            let hands_over = releases.ask(key, now, |_| 0);
            now = now.saturating_add(hold);
            releases.note(key, hold, now);
            now = now.saturating_add(pause);
            hands_over
        };
        (1..1_000).find(|_| asks_once_more())
    }

    #[test]
    fn one_of_so_many_locks_is_handed_over() {
        let micros = Duration::from_micros;
        let after = locks_until_one_is_handed_over;
        assert_eq!(after(micros(0), micros(100)), Some(1 + usize::from(MOST)));
        assert_eq!(after(micros(9_999), micros(9_999)), Some(1 + usize::from(MOST)));
        assert_eq!(after(micros(0), LONG_HOLD), Some(2));
        assert_eq!(after(SOON, LONG_HOLD), None, "others have had the time");
    }

    #[test]
    fn number_of_locks_before_the_next_hand_over_is_drawn() {
        let (mut releases, key) = (Releases::default(), KeyHash::of(b"k"));
        releases.note(key, LONG_HOLD, at(1));
        assert!(releases.ask(key, at(2), |most| most - 1));
        releases.note(key, Duration::ZERO, at(3));
        let least = usize::from(MOST - FEWER);
        let next = (1..1_000).find(|_| releases.ask(key, at(4), |_| 0));
        assert_eq!(next, Some(least + 1));
    }
}
