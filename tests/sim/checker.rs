//! Finds what must never happen, whatever goes wrong: two callers that believe in a lock on one key
//! at the same time, or a request without exactly one answer in time. The checker knows no
//! coordinator and no master: it gets what is reported to callers, and the time.
//!
//! A caller that got a deadline acts on it without asking again. So a belief lasts until the latest
//! deadline that was reported. It ends earlier if its owner released the lock, or if its loss was
//! reported well before the deadline. A caller may notice late that a loss was reported shortly
//! before the deadline, so no other caller may get the lock before the deadline. The loss of a kept
//! lock (one with auto-extend) is reported once, in time, and after a warning.

use std::collections::BTreeMap;

use crate::agenda::MILLI;

/// How many violations of a run are reported: the first ones are the most useful.
const REPORTED: usize = 5;

/// A caller's belief that it holds a lock, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belief {
    /// The client, and the user of this client.
    pub who: (usize, usize),
    /// The index of the key in the list of keys.
    pub key: usize,
    /// The other keys of the lock, if it has several.
    pub also: Vec<usize>,
    /// The token of the lock.
    pub token: Vec<u8>,
    /// When the lock was handed out.
    pub from: u64,
    /// The first moment at which its owner does not believe in it any more.
    pub until: u64,
    /// The owner may act on the lock up to this moment, because it may not have noticed yet that
    /// the loss was reported.
    acts_until: u64,
    /// An operator deleted its key on some node, so the owner may rightly take the lock for lost
    /// early.
    pub touched: bool,
    /// An operator deleted its key on all nodes without the owner's knowledge. Then another caller
    /// may have the lock, which is no violation, but this lock must not come back.
    pub forced: bool,
}

impl Belief {
    /// A belief of this caller in this lock, between these two moments.
    pub fn new(who: (usize, usize), key: usize, token: Vec<u8>, from: u64, until: u64) -> Belief {
        let (touched, forced) = (false, false);
        let also = Vec::new();
        Belief { who, key, also, token, from, until, acts_until: until, touched, forced }
    }

    /// All keys of the lock.
    pub fn keys(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.key).chain(self.also.iter().copied())
    }
}

/// A lock that is kept: it has auto-extend.
#[derive(Debug)]
struct Kept {
    belief: usize,
    /// How long before the deadline its owner wants a warning.
    warn_before: u64,
    /// A warning came since the deadline was last moved.
    warned: bool,
    /// When the deadline was last moved, and the client's `stopped_for` at that moment.
    moved: (u64, u64),
    /// The client already answers that the lock is lost.
    lost: bool,
    /// When the loss has to be reported at the latest, if the client runs all the time.
    due: u64,
    /// The client's `stopped_for` when `due` was set.
    stopped_for: u64,
}

/// Why a kept lock ended, as it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its deadline or its bound came.
    Deadline,
    /// Too many nodes do not hold its key any more.
    Gone,
}

/// A kept lock may be given up this long before its deadline, so that its loss is reported in time.
pub const LOSS_BEFORE: u64 = 2 * MILLI;

/// A request that is not answered yet.
#[derive(Debug)]
struct Asked {
    client: usize,
    what: &'static str,
    /// When the answer is due, if the client runs all the time.
    due: u64,
    /// The client's `stopped_for` when it made the request.
    stopped_for: u64,
}

/// The checker.
#[derive(Debug)]
pub struct Checker {
    beliefs: Vec<Belief>,
    asked: BTreeMap<u64, Asked>,
    kept: BTreeMap<u64, Kept>,
    /// The greatest fencing number of each key, and its owner.
    fences: BTreeMap<usize, (u64, (usize, usize))>,
    violations: Vec<String>,
    /// Whether two holders of a key are a violation.
    excludes: bool,
}

impl Checker {
    /// A checker without any report yet. `excludes`: two holders of a key are a violation.
    pub fn new(excludes: bool) -> Checker {
        Checker {
            beliefs: Vec::new(),
            asked: BTreeMap::new(),
            kept: BTreeMap::new(),
            fences: BTreeMap::new(),
            violations: Vec::new(),
            excludes,
        }
    }

    /// Notes that a lock was handed out. Returns the number of the belief.
    pub fn hand_out(&mut self, now: u64, belief: Belief) -> usize {
        if belief.until <= now {
            let (who, late) = (belief.who, now - belief.until);
            self.report(format!("{who:?} was handed a lock {late} ns after its deadline"));
        }
        let number = self.beliefs.len();
        self.beliefs.push(belief);
        self.check_exclusion(number, now);
        number
    }

    /// Notes the fencing number of a lock that was just handed out, for this key. It has to be
    /// greater than that of every lock on the key that was handed out before, even if an earlier
    /// holder still acts.
    pub fn note_fence(&mut self, number: usize, key: usize, fence: u64) {
        let who = self.beliefs[number].who;
        if let Some((before, other)) = self.fences.insert(key, (fence, who)) {
            if fence <= before {
                self.report(format!(
                    "fence {fence} of {who:?} on key {key} is not above {before} of {other:?}"
                ));
            }
        }
    }

    /// Notes that the owner was given a later deadline.
    pub fn prolong(&mut self, now: u64, number: usize, until: u64, stopped_for: u64) {
        let belief = &mut self.beliefs[number];
        let (was, who) = (belief.until, belief.who);
        belief.until = until.max(was);
        belief.acts_until = belief.until;
        let forced = belief.forced;
        if was <= now && now < until {
            self.report(format!("the lock of {who:?} came back after its deadline"));
        } else if forced {
            self.report(format!(
                "{who:?} prolonged from {was} to {until} ns a lock that was taken away"
            ));
        }
        self.note_moved_deadline(now, number, stopped_for);
        self.check_exclusion(number, now);
    }

    /// Notes that the lock now has a bound, which may be before its deadline.
    pub fn shorten(&mut self, now: u64, number: usize, until: u64, stopped_for: u64) {
        let belief = &mut self.beliefs[number];
        belief.until = until.min(belief.until);
        belief.acts_until = belief.until;
        self.note_moved_deadline(now, number, stopped_for);
    }

    /// Notes that the client answers that the lock is lost. If that is shortly before the deadline,
    /// the owner may not notice, and act until the deadline.
    pub fn lose(&mut self, now: u64, number: usize, stopped_for: u64) {
        let belief = &mut self.beliefs[number];
        let acts_until = belief.until;
        self.end(now, number);
        let belief = &mut self.beliefs[number];
        if acts_until.saturating_sub(now) <= LOSS_BEFORE && !belief.touched {
            belief.acts_until = acts_until;
        }
        for kept in self.kept.values_mut().filter(|kept| kept.belief == number) {
            kept.lost = true;
            if now < kept.due {
                (kept.due, kept.stopped_for) = (now, stopped_for);
            }
        }
    }

    /// Notes that the deadline moved, if the lock is kept.
    fn note_moved_deadline(&mut self, now: u64, number: usize, stopped_for: u64) {
        let due = self.beliefs[number].until;
        for kept in self.kept.values_mut().filter(|kept| kept.belief == number) {
            (kept.warned, kept.moved) = (false, (now, stopped_for));
            (kept.due, kept.stopped_for) = (due, stopped_for);
        }
    }

    /// Notes that the lock is kept from now on: its loss has to be reported under this `serial`.
    pub fn keep(
        &mut self,
        serial: u64,
        number: usize,
        warn_before: u64,
        now: u64,
        stopped_for: u64,
    ) {
        let (due, moved) = (self.beliefs[number].until, (now, stopped_for));
        let (warned, lost) = (false, false);
        let kept = Kept { belief: number, warn_before, warned, moved, lost, due, stopped_for };
        self.kept.insert(serial, kept);
    }

    /// Notes that the owner wants no more reports about this lock.
    pub fn unkeep(&mut self, serial: u64, now: u64, stopped_for: u64) {
        let Some(kept) = self.kept.remove(&serial) else { return };
        if kept.lost && now > kept.due + (stopped_for - kept.stopped_for) {
            let who = self.beliefs[kept.belief].who;
            self.report(format!("{who:?} was not told that its lock is lost"));
        }
    }

    /// Notes a warning that a kept lock ends at `deadline`.
    pub fn note_warning(&mut self, serial: u64, deadline: u64) {
        let Some(kept) = self.kept.get_mut(&serial) else {
            return self.report(format!("a warning of {serial}, which is not kept"));
        };
        kept.warned = true;
        let until = self.beliefs[kept.belief].until;
        if deadline > until {
            self.report(format!("{serial} was given {deadline} ns, and ends at {until} ns"));
        }
    }

    /// Notes that the loss of a kept lock was reported.
    pub fn note_loss(&mut self, serial: u64, end: End, now: u64, stopped_for: u64) {
        let Some(kept) = self.kept.remove(&serial) else {
            return self.report(format!("the loss of {serial}, which is not kept (any more)"));
        };
        let belief = &self.beliefs[kept.belief];
        let (who, until) = (belief.who, belief.until);
        let waited = stopped_for - kept.stopped_for;
        if now < until {
            self.report(format!("{who:?} got the report of a loss, and still has the lock"));
        }
        if now > kept.due + waited {
            let late = now - kept.due - waited;
            self.report(format!("the loss of {who:?} was reported {late} ns late"));
        }
        // No warning is needed if the client did not run all the time, or if the warning was
        // already due when the deadline moved.
        let warns_at = (kept.due + LOSS_BEFORE).saturating_sub(kept.warn_before);
        let in_time = kept.warn_before > 2 * LOSS_BEFORE && warns_at > kept.moved.0;
        let ran = stopped_for == kept.moved.1;
        if end == End::Deadline && ran && in_time && !kept.warned {
            self.report(format!("{who:?} lost its lock without a warning"));
        }
    }

    /// Notes that the owner released the lock, or does not believe in it any more.
    pub fn end(&mut self, now: u64, number: usize) {
        let belief = &mut self.beliefs[number];
        belief.until = belief.until.min(now);
        belief.acts_until = belief.acts_until.min(now);
    }

    /// Notes that a client's process ended: its users act no more, not even on a lock whose loss
    /// was reported a moment ago.
    pub fn end_acts_of(&mut self, now: u64, client: usize) {
        for belief in self.beliefs.iter_mut().filter(|belief| belief.who.0 == client) {
            belief.acts_until = belief.acts_until.min(now.max(belief.until));
        }
    }

    /// Notes that an operator deleted the key of a lock, on a minority of the nodes or on all of
    /// them.
    pub fn delete(&mut self, number: usize, on_all: bool) {
        let belief = &mut self.beliefs[number];
        (belief.touched, belief.forced) = (true, belief.forced || on_all);
    }

    /// A belief, by its number.
    pub fn belief(&self, number: usize) -> &Belief {
        &self.beliefs[number]
    }

    /// Checks that no other caller believes in a key of this belief at the same time.
    fn check_exclusion(&mut self, number: usize, now: u64) {
        let new = &self.beliefs[number];
        let shares = |other: &Belief| other.keys().any(|key| new.keys().any(|own| own == key));
        let overlaps = |other: &Belief| other.acts_until > now && !other.forced && shares(other);
        if new.until <= now || new.forced || !self.excludes {
            return;
        }
        let mut others = self.beliefs.iter().enumerate();
        let other = others.rfind(|(at, other)| *at != number && overlaps(other));
        if let Some((_, other)) = other {
            let shared = new.keys().find(|&key| other.keys().any(|theirs| theirs == key));
            let (a, b, key) = (other.who, new.who, shared.unwrap_or(new.key));
            let (until, from) = (other.acts_until, now);
            self.report(format!(
                "two holders of key {key}: {a:?} until {until} ns, and {b:?} from {from} ns on"
            ));
        }
    }

    /// Notes a request, and when its answer is due.
    pub fn ask(
        &mut self,
        serial: u64,
        client: usize,
        what: &'static str,
        due: u64,
        stopped_for: u64,
    ) {
        self.asked.insert(serial, Asked { client, what, due, stopped_for });
    }

    /// Notes that a request was cancelled, so that it must get no answer.
    pub fn cancel(&mut self, serial: u64) {
        self.asked.remove(&serial);
        self.kept.remove(&serial);
    }

    /// Notes the answer to a request.
    pub fn answer(&mut self, serial: u64, now: u64, stopped_for: u64) {
        let Some(asked) = self.asked.remove(&serial) else {
            self.report(format!("request {serial} was answered twice, or after its cancelling"));
            return;
        };
        // While the client did not run it could get no answer, so that time comes on top.
        let due = asked.due + (stopped_for - asked.stopped_for);
        if now > due {
            let (client, what, late) = (asked.client, asked.what, now - due);
            self.report(format!("{what} {serial} of client {client} was answered {late} ns late"));
        }
    }

    /// Checks at the end of a run that no request is unanswered.
    pub fn check_all_answered(&mut self) {
        let open: Vec<String> = self
            .asked
            .iter()
            .map(|(serial, asked)| format!("{} {serial} of client {}", asked.what, asked.client))
            .collect();
        if !open.is_empty() {
            self.report(format!("never answered: {}", open.join(", ")));
        }
        self.asked.clear();
        if !self.kept.is_empty() {
            let serials: Vec<u64> = std::mem::take(&mut self.kept).into_keys().collect();
            self.report(format!("kept to the end: {serials:?}"));
        }
    }

    /// Records a violation.
    pub fn report(&mut self, words: String) {
        if self.violations.len() < REPORTED {
            self.violations.push(words);
        }
    }

    /// The violations so far.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(who: usize, key: usize, from: u64, until: u64) -> Belief {
        Belief::new((who, 0), key, vec![who as u8], from, until)
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let mut checker = Checker::new(true);
        checker.hand_out(10, belief(1, 7, 10, 100));
        checker.hand_out(99, belief(2, 7, 99, 200));
        assert!(checker.violations()[0].starts_with("two holders of key 7: (1, 0)"));
    }

    #[test]
    fn holders_of_two_keys_or_one_after_the_other_are_no_violation() {
        let mut checker = Checker::new(true);
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.hand_out(20, belief(2, 8, 20, 300));
        checker.hand_out(100, belief(2, 7, 100, 200));
        checker.end(150, first);
        let third = checker.hand_out(200, belief(1, 7, 200, 300));
        checker.end(210, third);
        checker.hand_out(210, belief(2, 7, 210, 300));
        assert_eq!(checker.violations(), [""; 0]);
    }

    #[test]
    fn user_that_holds_a_key_twice_counts_as_two_holders() {
        let mut checker = Checker::new(true);
        checker.hand_out(10, belief(1, 7, 10, 100));
        checker.hand_out(20, belief(1, 7, 20, 200));
        assert_eq!(checker.violations().len(), 1);
    }

    #[test]
    fn a_longer_deadline_can_make_a_second_holder() {
        let mut checker = Checker::new(true);
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.prolong(50, first, 150, 0);
        assert!(checker.violations().is_empty());
        checker.hand_out(149, belief(2, 7, 149, 200));
        assert_eq!(checker.violations().len(), 1);
    }

    #[test]
    fn a_lock_that_comes_back_after_its_deadline_is_found() {
        let mut checker = Checker::new(true);
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.prolong(100, first, 150, 0);
        assert!(checker.violations()[0].contains("came back"));
    }

    #[test]
    fn a_lock_handed_out_at_its_deadline_is_found() {
        let mut checker = Checker::new(true);
        checker.hand_out(100, belief(1, 7, 100, 100));
        assert!(checker.violations()[0].contains("after its deadline"));
    }

    #[test]
    fn fences_of_a_key_that_do_not_grow_are_found() {
        let mut checker = Checker::new(true);
        for (key, fence, found) in [(7, 5, 0), (8, 5, 0), (7, 6, 0), (7, 6, 1), (8, 4, 2)] {
            let number = checker.hand_out(10, belief(1, key, 10, 11));
            checker.end(10, number);
            checker.note_fence(number, key, fence);
            assert_eq!(checker.violations().len(), found, "{:?}", checker.violations());
        }
    }

    #[test]
    fn each_request_has_one_answer_in_time() {
        let mut checker = Checker::new(true);
        for serial in 1..=4 {
            checker.ask(serial, 0, "acquire", 100, 5);
        }
        checker.answer(1, 100, 5);
        checker.cancel(2);
        checker.answer(3, 110, 15);
        assert!(checker.violations().is_empty(), "it was kept from running for 10 ns");
        checker.answer(4, 111, 15);
        assert!(checker.violations()[0].contains("1 ns late"));
        checker.answer(1, 100, 5);
        checker.answer(2, 100, 5);
        assert_eq!(checker.violations().len(), 3);
    }

    /// A lock up to 90 ms that is kept under the serial number 1, with a warning 30 ms before its
    /// end.
    fn kept() -> (Checker, usize) {
        let mut checker = Checker::new(true);
        let number = checker.hand_out(0, belief(1, 7, 0, 90 * MILLI));
        checker.keep(1, number, 30 * MILLI, 0, 0);
        (checker, number)
    }

    #[test]
    fn the_loss_of_a_kept_lock_is_reported_once_in_time_and_after_a_warning() {
        let (mut checker, number) = kept();
        checker.note_warning(1, 90 * MILLI);
        checker.lose(88 * MILLI, number, 0);
        checker.note_loss(1, End::Deadline, 88 * MILLI, 0);
        checker.check_all_answered();
        assert_eq!(checker.violations(), [""; 0]);
        checker.note_loss(1, End::Deadline, 88 * MILLI, 0);
        checker.note_warning(1, 90 * MILLI);
        assert_eq!(checker.violations().len(), 2, "after the end");

        let (mut checker, number) = kept();
        checker.lose(88 * MILLI, number, 0);
        checker.note_loss(1, End::Deadline, 88 * MILLI, 0);
        assert!(checker.violations()[0].contains("without a warning"));

        let (mut checker, number) = kept();
        checker.lose(50 * MILLI, number, 0);
        checker.note_loss(1, End::Gone, 51 * MILLI, 0);
        assert!(checker.violations()[0].contains("1000000 ns late"));

        let (mut checker, number) = kept();
        checker.lose(50 * MILLI, number, 5);
        checker.note_loss(1, End::Gone, 51 * MILLI, 5 + MILLI);
        assert_eq!(checker.violations(), [""; 0], "it was kept from running");

        let (mut checker, _) = kept();
        checker.note_loss(1, End::Gone, 50 * MILLI, 0);
        assert!(checker.violations()[0].contains("still has the lock"));

        let (mut checker, number) = kept();
        checker.lose(50 * MILLI, number, 5);
        checker.unkeep(1, 60 * MILLI, 5);
        assert!(checker.violations()[0].contains("was not told"));

        let (mut checker, _) = kept();
        checker.check_all_answered();
        assert_eq!(checker.violations(), ["kept to the end: [1]"]);
    }

    #[test]
    fn a_warning_counts_until_the_deadline_moves() {
        let (mut checker, number) = kept();
        checker.note_warning(1, 90 * MILLI);
        checker.prolong(70 * MILLI, number, 150 * MILLI, 0);
        checker.lose(148 * MILLI, number, 0);
        checker.note_loss(1, End::Deadline, 148 * MILLI, 0);
        assert!(checker.violations()[0].contains("without a warning"));
    }

    #[test]
    fn checker_ends_a_lock_that_an_operator_deleted() {
        let mut checker = Checker::new(true);
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.delete(first, true);
        checker.hand_out(20, belief(2, 7, 20, 200));
        assert_eq!(checker.violations(), [""; 0]);
        checker.prolong(50, first, 150, 0);
        assert!(checker.violations()[0].contains("was taken away"));
    }

    #[test]
    fn a_request_without_an_answer_is_found_at_the_end() {
        let mut checker = Checker::new(true);
        checker.ask(1, 3, "release", 100, 0);
        checker.check_all_answered();
        assert_eq!(checker.violations(), ["never answered: release 1 of client 3"]);
    }

    #[test]
    fn only_the_first_violations_are_reported() {
        let mut checker = Checker::new(true);
        for number in 0..100 {
            checker.report(number.to_string());
        }
        assert_eq!(checker.violations(), ["0", "1", "2", "3", "4"]);
    }
}
