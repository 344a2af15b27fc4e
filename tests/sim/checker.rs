//! What must never happen, whatever goes wrong: two at once who believe in a lock on one key; a
//! request without its one answer in time. It knows no coordinator and no master: it is told what
//! callers are told, and what time it is.
//!
//! A caller that was told a deadline acts on it without asking again. So a belief lasts until the
//! latest deadline that was told, unless its owner gave the lock back before.

use std::collections::BTreeMap;

/// So many violations are reported of one run: the first tells the most.
const REPORTED: usize = 5;

/// Who was told of a lock, up to when it is its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belief {
    /// The client, and its user.
    pub who: (usize, usize),
    /// The place of the key in the list of keys.
    pub key: usize,
    /// What the nodes hold for it.
    pub token: Vec<u8>,
    /// When it was handed out.
    pub from: u64,
    /// The first moment at which its owner does not believe in it any more.
    pub until: u64,
}

/// A request without an answer yet.
#[derive(Debug)]
struct Asked {
    client: usize,
    what: &'static str,
    /// When the answer has to be there, had the client run all the time.
    due: u64,
    /// How long the client had been kept from running before, in total.
    kept_waiting: u64,
}

/// The checker.
#[derive(Debug)]
pub struct Checker {
    beliefs: Vec<Belief>,
    asked: BTreeMap<u64, Asked>,
    violations: Vec<String>,
}

impl Checker {
    /// One that has been told nothing yet.
    pub fn new() -> Checker {
        Checker { beliefs: Vec::new(), asked: BTreeMap::new(), violations: Vec::new() }
    }

    /// A lock was handed out, to be believed in up to `until`. Returns the belief's number.
    pub fn hand_out(&mut self, now: u64, belief: Belief) -> usize {
        if belief.until <= now {
            let (who, late) = (belief.who, now - belief.until);
            self.violate(format!("{who:?} was handed a lock {late} ns behind its deadline"));
        }
        let number = self.beliefs.len();
        self.beliefs.push(belief);
        self.compare(number, now);
        number
    }

    /// The owner was told a later deadline.
    pub fn prolong(&mut self, now: u64, number: usize, until: u64) {
        let belief = &mut self.beliefs[number];
        let was = belief.until;
        belief.until = until.max(was);
        if was <= now && now < until {
            let who = belief.who;
            self.violate(format!("the lock of {who:?} came back behind its deadline"));
        }
        self.compare(number, now);
    }

    /// The owner gave the lock back, or was told that it is lost.
    pub fn end(&mut self, now: u64, number: usize) {
        let belief = &mut self.beliefs[number];
        belief.until = belief.until.min(now);
    }

    /// A belief by its number.
    pub fn belief(&self, number: usize) -> &Belief {
        &self.beliefs[number]
    }

    /// Whether two believe in a key at the same time.
    fn compare(&mut self, number: usize, now: u64) {
        let new = &self.beliefs[number];
        let overlaps =
            |other: &Belief| other.key == new.key && other.until > now && new.until > now;
        let mut others = self.beliefs.iter().enumerate();
        let other = others.rfind(|(at, other)| *at != number && overlaps(other));
        if let Some((_, other)) = other {
            let (a, b, key) = (other.who, new.who, new.key);
            let (until, from) = (other.until, now);
            self.violate(format!(
                "two holders of key {key}: {a:?} until {until} ns, and {b:?} from {from} ns on"
            ));
        }
    }

    /// A request was made; its answer is due at `due`.
    pub fn ask(
        &mut self,
        serial: u64,
        client: usize,
        what: &'static str,
        due: u64,
        kept_waiting: u64,
    ) {
        self.asked.insert(serial, Asked { client, what, due, kept_waiting });
    }

    /// A request was taken back: no answer may follow.
    pub fn cancel(&mut self, serial: u64) {
        self.asked.remove(&serial);
    }

    /// An answer came.
    pub fn answer(&mut self, serial: u64, now: u64, kept_waiting: u64) {
        let Some(asked) = self.asked.remove(&serial) else {
            self.violate(format!("request {serial} was answered twice, or behind its cancelling"));
            return;
        };
        // A client that did not run could not be told.
        let due = asked.due + (kept_waiting - asked.kept_waiting);
        if now > due {
            let (client, what, late) = (asked.client, asked.what, now - due);
            self.violate(format!("{what} {serial} of client {client} was answered {late} ns late"));
        }
    }

    /// At the end nothing may be unanswered.
    pub fn all_answered(&mut self) {
        let open: Vec<String> = self
            .asked
            .iter()
            .map(|(serial, asked)| format!("{} {serial} of client {}", asked.what, asked.client))
            .collect();
        if !open.is_empty() {
            self.violate(format!("never answered: {}", open.join(", ")));
        }
        self.asked.clear();
    }

    /// Something happened that must not.
    pub fn violate(&mut self, words: String) {
        if self.violations.len() < REPORTED {
            self.violations.push(words);
        }
    }

    /// What happened that must not.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(who: usize, key: usize, from: u64, until: u64) -> Belief {
        Belief { who: (who, 0), key, token: vec![who as u8], from, until }
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let mut checker = Checker::new();
        checker.hand_out(10, belief(1, 7, 10, 100));
        checker.hand_out(99, belief(2, 7, 99, 200));
        assert!(checker.violations()[0].starts_with("two holders of key 7: (1, 0)"));
    }

    #[test]
    fn holders_of_two_keys_or_one_behind_the_other_are_fine() {
        let mut checker = Checker::new();
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
    fn one_user_that_holds_a_key_twice_is_two_holders() {
        let mut checker = Checker::new();
        checker.hand_out(10, belief(1, 7, 10, 100));
        checker.hand_out(20, belief(1, 7, 20, 200));
        assert_eq!(checker.violations().len(), 1);
    }

    #[test]
    fn a_longer_deadline_can_make_a_second_holder() {
        let mut checker = Checker::new();
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.prolong(50, first, 150);
        assert!(checker.violations().is_empty());
        checker.hand_out(149, belief(2, 7, 149, 200));
        assert_eq!(checker.violations().len(), 1);
    }

    #[test]
    fn a_lock_that_comes_back_behind_its_deadline_is_found() {
        let mut checker = Checker::new();
        let first = checker.hand_out(10, belief(1, 7, 10, 100));
        checker.prolong(100, first, 150);
        assert!(checker.violations()[0].contains("came back"));
    }

    #[test]
    fn a_lock_handed_out_at_its_deadline_is_found() {
        let mut checker = Checker::new();
        checker.hand_out(100, belief(1, 7, 100, 100));
        assert!(checker.violations()[0].contains("behind its deadline"));
    }

    #[test]
    fn each_request_has_one_answer_in_time() {
        let mut checker = Checker::new();
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

    #[test]
    fn a_request_without_an_answer_is_found_at_the_end() {
        let mut checker = Checker::new();
        checker.ask(1, 3, "release", 100, 0);
        checker.all_answered();
        assert_eq!(checker.violations(), ["never answered: release 1 of client 3"]);
    }

    #[test]
    fn the_first_violations_are_kept() {
        let mut checker = Checker::new();
        for number in 0..100 {
            checker.violate(number.to_string());
        }
        assert_eq!(checker.violations(), ["0", "1", "2", "3", "4"]);
    }
}
