//! When a client that asks for a key again and again lets other clients have it. If it asks soon
//! after its own release, its `SET NX` reaches the nodes before a waiter in line has learnt of the
//! release and has asked.
//!
//! The hazard is a waiter that never gets the key. So the client counts the locks that it asks for
//! so soon, and now and then the release of one of them hands the key over to the first waiter in
//! line.

use std::time::Duration;

use crate::proto::error::{Error, Report, ReportedSet};
#[cfg(feature = "testing")]
use crate::proto::fingerprint::{Fingerprint, hash_of};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::time::Instant;

/// A request within this time after the release of its key is counted. The time is longer than a
/// round trip of most waiters, so after it a waiter has had its chance.
const SOON: Duration = Duration::from_millis(10);
/// After a hold of this length the next lock is handed over in any case: a hand-over costs little
/// in comparison.
pub const LONG_HOLD: Duration = Duration::from_millis(10);
/// Of so many counted requests in a row at least one has its lock handed over.
const LOCKS_PER_HAND_OVER: u8 = 64;
/// The random number that is taken off [`LOCKS_PER_HAND_OVER`] is below this. Without it two keys
/// that share a place in the table could alternate so that only one of them is ever handed over.
const RANDOM_FEWER: u8 = 32;

/// How many places the table has. Two keys that share a place are counted as one, so that a key is
/// handed over earlier or later than needed.
const PLACES: usize = 64;

/// When the client released its keys last: a table of fixed size, by the hash of the key.
#[derive(Debug, Clone)]
pub struct Releases([Release; PLACES]);

#[derive(Debug, Clone, Copy)]
struct Release {
    at: Option<Instant>,
    after_long_hold: bool,
    /// How many counted requests come before the one whose lock is handed over.
    left: u8,
}

impl Default for Releases {
    fn default() -> Releases {
        Releases([Release { at: None, after_long_hold: false, left: LOCKS_PER_HAND_OVER }; PLACES])
    }
}

impl Releases {
    /// Notes that the client releases this key, and for how long it `held` the key.
    #[inline]
    pub fn note(&mut self, key: KeyHash, held: Duration, now: Instant) {
        let release = &mut self.0[key.place(PLACES)];
        (release.at, release.after_long_hold) = (Some(now), held >= LONG_HOLD);
    }

    /// Adds the releases to a fingerprint.
    #[cfg(feature = "testing")]
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        for (place, release) in self.0.iter().enumerate() {
            let Release { at, after_long_hold, left } = *release;
            let ago =
                at.map(|at| fingerprint.ago(at, SOON)).filter(|&ago| ago < SOON.as_nanos() as u64);
            if ago.is_some() || left != LOCKS_PER_HAND_OVER {
                let ago = ago.map(|ago| (ago, after_long_hold));
                fingerprint.add(hash_of(&(place, ago, left)));
            }
        }
    }

    /// Notes that the client asks for this key. Returns whether the lock that the request gets is
    /// to be handed over to the next waiter when it is released: the client may have had the key
    /// often enough. `fewer` draws a random number below its argument.
    fn note_ask(&mut self, key: KeyHash, now: Instant, fewer: impl FnOnce(usize) -> usize) -> bool {
        let release = &mut self.0[key.place(PLACES)];
        if release.at.is_none_or(|at| now.saturating_since(at) >= SOON) {
            return false;
        }
        release.left -= 1;
        let is_enough = release.after_long_hold || release.left == 0;
        if is_enough {
            release.left = LOCKS_PER_HAND_OVER - fewer(usize::from(RANDOM_FEWER)) as u8;
        }
        is_enough
    }
}

/// What a request does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstStep {
    /// The request asks the nodes.
    Ask,
    /// The request asks the nodes, and the release of its lock hands the key over.
    AskAndHandOver,
    /// The request joins the line, because other clients stand in it.
    Join,
    /// The request pauses before it asks, so that other clients can get the key: the nodes refuse
    /// lines, so it cannot be handed over.
    Pause,
}

/// How a request may wait.
#[derive(Debug, Clone, Copy)]
pub struct HowItWaits {
    /// The request may stand in line: the nodes do not refuse that.
    pub joins: bool,
    /// The request may wait now: its time to wait is not over, and the first handshakes are.
    pub may_wait: bool,
}

impl FirstStep {
    /// Whether the request gets a token by which its release hands the key over.
    pub fn hands_over(self) -> bool {
        matches!(self, FirstStep::AskAndHandOver | FirstStep::Join)
    }
}

impl Locks {
    /// Whether this client asks for a key again that it released just before.
    #[inline]
    pub(in crate::proto::locks) fn asks_again(&mut self, key: KeyHash, now: Instant) -> bool {
        let random = &mut self.random;
        self.releases.note_ask(key, now, |most| random.index(most))
    }

    /// What a request does first. `again`: it is for a key that this client released just before.
    /// `has_line`: other clients stand in line for one of its keys.
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

    /// Asks for a key `pause` after each release, and holds each lock for `hold`. Returns which of
    /// these requests is the first whose lock is handed over.
    fn locks_until_one_is_handed_over(pause: Duration, hold: Duration) -> Option<usize> {
        let (mut releases, key) = (Releases::default(), KeyHash::of(b"k"));
        let mut now = at(1);
        let mut asks_once_more = || {
            let hands_over = releases.note_ask(key, now, |_| 0);
            now = now.saturating_add(hold);
            releases.note(key, hold, now);
            now = now.saturating_add(pause);
            hands_over
        };
        (1..1_000).find(|_| asks_once_more())
    }

    #[test]
    fn one_of_64_locks_is_handed_over() {
        let micros = Duration::from_micros;
        let after = locks_until_one_is_handed_over;
        assert_eq!(after(micros(0), micros(100)), Some(1 + usize::from(LOCKS_PER_HAND_OVER)));
        assert_eq!(after(micros(9_999), micros(9_999)), Some(1 + usize::from(LOCKS_PER_HAND_OVER)));
        assert_eq!(after(micros(0), LONG_HOLD), Some(2));
        assert_eq!(after(SOON, LONG_HOLD), None, "others have had the time");
    }

    #[test]
    fn number_of_locks_before_the_next_hand_over_is_drawn() {
        let (mut releases, key) = (Releases::default(), KeyHash::of(b"k"));
        releases.note(key, LONG_HOLD, at(1));
        assert!(releases.note_ask(key, at(2), |most| most - 1));
        releases.note(key, Duration::ZERO, at(3));
        let least = usize::from(LOCKS_PER_HAND_OVER - RANDOM_FEWER);
        let next = (1..1_000).find(|_| releases.note_ask(key, at(4), |_| 0));
        assert_eq!(next, Some(least + 1));
    }
}
