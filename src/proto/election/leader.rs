//! Who leads, by what the nodes hold: the lock's key, whose token names the leader, and beside it
//! the note in which the leader writes the number of its term and its present address.
//!
//! The hazard is a leader that only a minority names, or a note of an earlier leader. So a leader
//! is one whose token a majority holds, and a note counts only if it begins with the digits of that
//! token.

use std::fmt;
use std::time::Duration;

use crate::proto::election::Candidate;
use crate::proto::inspection::{Inspection, KeyState, KeySummary};
use crate::proto::lock::{LockToken, TOKEN_DIGITS};
use crate::proto::time::Instant;

/// The leader of an election, as the nodes named it at one moment. It may have changed since.
#[derive(Clone, PartialEq, Eq)]
pub struct Leader {
    candidate: Candidate,
    token: LockToken,
    term: Option<u64>,
    remaining: Option<Duration>,
    seen_at: Instant,
    next: Option<Candidate>,
}

impl Leader {
    /// The leader's name.
    pub fn name(&self) -> &str {
        &self.candidate.name
    }

    /// The leader's address: the one that it proclaimed last, if it has one.
    pub fn address(&self) -> Option<&str> {
        self.candidate.address.as_deref()
    }

    /// The number of the term, which is the fencing number of the leader's lock. `None` for a
    /// moment after a change, until the leader has written it beside the key.
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    /// How long the term lasted at the moment of the observation, unless it is renewed. `None` if a
    /// key without an expiry stands in the place of the lock.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The moment of the observation, on the clock of [`clock::now`](crate::clock::now).
    pub fn seen_at(&self) -> Instant {
        self.seen_at
    }

    /// Who stands first in line, and leads next if the leader resigns now.
    pub fn next(&self) -> Option<&Candidate> {
        self.next.as_ref()
    }

    /// The token of the leader's lock.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// Whether nothing changed that is reported. The time that is left and the line are not
    /// compared, because they change all the time.
    fn is_same(&self, other: &Leader) -> bool {
        let same_note = self.term == other.term && self.candidate == other.candidate;
        self.token == other.token && same_note
    }
}

/// The leader's name, and after an `@` its address if it has one.
impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.candidate.fmt(f)
    }
}

/// One line with `{:?}`.
impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leader { candidate, term, remaining, .. } = self;
        write!(f, "Leader {{ {candidate}, term: {term:?}, remaining: {remaining:?} }}")
    }
}

/// Who leads an election.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leadership {
    /// A majority of the nodes names this leader.
    Leader(Leader),
    /// A majority of the nodes says that nobody leads.
    Nobody,
    /// Neither: too few nodes answered, the leader is just changing, or the key is not that of an
    /// election.
    Unknown,
}

impl Leadership {
    /// Who leads by what the nodes held at `at`: the election's key, and the notes beside it.
    pub(crate) fn of(key: &Inspection, notes: &Inspection, at: Instant) -> Leadership {
        let (value, left) = match key.summary() {
            KeySummary::Free => return Leadership::Nobody,
            KeySummary::Held { value, left, .. } => (value, left),
            _ => return Leadership::Unknown,
        };
        let Some(token) = value.token() else { return Leadership::Unknown };
        let mut candidate = Candidate::of_owner(token.owner().unwrap_or("?"));
        let note = latest_note(notes, &token);
        if let Some(note) = &note {
            candidate.address = note.address.map(Box::from);
        }
        let next = key.line().into_iter().filter(|it| it.as_bytes() != value.as_bytes());
        let next = next.filter_map(|it| it.owner().map(Candidate::of_owner)).next();
        let term = note.map(|note| note.term);
        Leadership::Leader(Leader { candidate, token, term, remaining: left, seen_at: at, next })
    }

    /// The leader, if one is known.
    pub fn leader(&self) -> Option<&Leader> {
        if let Leadership::Leader(leader) = self { Some(leader) } else { None }
    }

    /// Whether nothing changed that is reported.
    pub(crate) fn is_same(&self, other: &Leadership) -> bool {
        match (self, other) {
            (Leadership::Leader(one), Leadership::Leader(other)) => one.is_same(other),
            (one, other) => one == other,
        }
    }
}

/// What a leader writes beside the key of its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaderNote<'a> {
    term: u64,
    version: u32,
    address: Option<&'a str>,
}

/// The text of a leader's note. `version` counts the addresses that it proclaimed in this term.
pub fn leader_note(token: &LockToken, term: u64, version: u32, address: Option<&str>) -> String {
    let digits = std::str::from_utf8(token.digits()).expect("hex digits are ASCII");
    format!("{digits} {term} {version} {}", address.unwrap_or("-"))
}

impl LeaderNote<'_> {
    /// Reads a note about the lock with this token; `None` for any other text.
    fn read<'a>(text: &'a [u8], token: &LockToken) -> Option<LeaderNote<'a>> {
        let mut words = words_about(text, token)?;
        let (term, version) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let address = words.next()?;
        let address = (address != "-").then_some(address);
        words.next().is_none().then_some(LeaderNote { term, version, address })
    }
}

/// The text of a note that asks the holder of this lock to resign, and to stay out for `pause`.
pub fn resign_note(token: &LockToken, pause: Duration) -> String {
    let digits = std::str::from_utf8(token.digits()).expect("hex digits are ASCII");
    format!("{digits} {}", u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
}

/// The pause that a note on any node asks the holder of this lock for. One node is enough, because
/// any user that may write notes there may ask.
pub fn asked_pause(notes: &Inspection, token: &LockToken) -> Option<Duration> {
    let pause = |text: &[u8]| {
        let mut words = words_about(text, token)?;
        let millis = words.next()?.parse().ok()?;
        words.next().is_none().then(|| Duration::from_millis(millis))
    };
    values(notes).filter_map(|value| pause(value.as_bytes())).max()
}

/// The note about this token with the latest version, on any node.
fn latest_note<'a>(notes: &'a Inspection, token: &LockToken) -> Option<LeaderNote<'a>> {
    let read = values(notes).filter_map(|value| LeaderNote::read(value.as_bytes(), token));
    read.max_by_key(|note| note.version)
}

/// What the nodes hold at the key of an inspection.
fn values(inspection: &Inspection) -> impl Iterator<Item = &crate::proto::inspection::Value> {
    inspection.nodes.iter().filter_map(|node| match &node.state {
        KeyState::Held { value, .. } => Some(value),
        _ => None,
    })
}

/// The words of a note after the digits, if it is about the lock with this token.
fn words_about<'a>(text: &'a [u8], token: &LockToken) -> Option<impl Iterator<Item = &'a str>> {
    let rest = text.strip_prefix(token.digits().as_slice())?.strip_prefix(b" ")?;
    debug_assert_eq!(token.digits().len(), TOKEN_DIGITS);
    Some(std::str::from_utf8(rest).ok()?.split(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::NodeError;
    use crate::proto::inspection::{NodeKeyState, VALUE_BYTES, Value};

    const NOW: Instant = Instant::from_nanos(5);

    fn token(digit: &str, owner: &str) -> LockToken {
        format!("{}:{owner}", digit.repeat(TOKEN_DIGITS)).parse().unwrap()
    }

    /// What three nodes hold: nothing if the text is empty, and no answer if it is `?`.
    fn on_three(texts: [&str; 3]) -> Inspection {
        let node = |text: &str| NodeKeyState {
            label: "node".into(),
            state: match text {
                "" => KeyState::Absent,
                "?" => KeyState::Failed(NodeError::Silent),
                text => KeyState::Held {
                    value: Value::of(text.as_bytes()),
                    left: Some(Duration::from_secs(7)),
                },
            },
            detail: None,
            took: Duration::ZERO,
            line: Vec::new(),
        };
        Inspection { key: b"k"[..].into(), quorum: 2, nodes: texts.map(node).into() }
    }

    #[test]
    fn leader_is_one_that_a_majority_names() {
        let (a, b) = (token("a", "web-1@h:1"), token("b", "web-2"));
        let (one, two) = (&*a.to_string(), &*b.to_string());
        let of = |texts| Leadership::of(&on_three(texts), &on_three(["", "", ""]), NOW);
        for texts in [[one, one, two], ["?", one, one], [one, "", one]] {
            let Leadership::Leader(leader) = of(texts) else { panic!("{texts:?}") };
            assert_eq!((leader.name(), leader.address()), ("web-1", Some("h:1")));
            assert_eq!((leader.term(), leader.remaining()), (None, Some(Duration::from_secs(7))));
        }
        for texts in [["", "", one], ["", "?", ""]] {
            assert_eq!(of(texts), Leadership::Nobody, "{texts:?}");
        }
        let others =
            [[one, two, ""], [one, "?", ""], ["?", "?", one], ["nonsense", "nonsense", ""]];
        for texts in others {
            assert_eq!(of(texts), Leadership::Unknown, "{texts:?}");
        }
    }

    #[test]
    fn note_counts_only_for_the_token_that_it_names() {
        let (a, b) = (token("a", "web-1@h:1"), token("b", "web-2"));
        let of = |texts: [&str; 3]| {
            let key = a.to_string();
            match Leadership::of(&on_three([&key; 3]), &on_three(texts), NOW) {
                Leadership::Leader(it) => (it.term(), it.address().map(str::to_owned)),
                other => panic!("{other:?}"),
            }
        };
        let note = |version, address| leader_note(&a, 7, version, address);
        let (first, second) = (note(0, Some("h:1")), note(1, Some("h:2")));
        let (last, others) = (note(10, None), leader_note(&b, 9, 99, Some("h:9")));
        assert_eq!(of([&first, "", "?"]), (Some(7), Some("h:1".into())));
        assert_eq!(of([&second, &first, &first]), (Some(7), Some("h:2".into())));
        assert_eq!(of([&second, &last, &others]), (Some(7), None));
        for other in [&others, &first[..TOKEN_DIGITS], &format!("{first} x"), "x"] {
            assert_eq!(of([other, "", ""]), (None, Some("h:1".into())), "{other}");
        }
    }

    #[test]
    fn longest_note_is_read_whole() {
        let address = "x".repeat(super::super::LONGEST_ADDRESS);
        let note = leader_note(&token("a", "a"), (1 << 53) - 1, u32::MAX, Some(&address));
        assert!(note.len() <= VALUE_BYTES, "{}", note.len());
    }

    #[test]
    fn resign_note_asks_only_the_holder_of_its_token() {
        let (a, b) = (token("a", "web-1"), token("b", "web-1"));
        let pause = Duration::from_secs(30);
        let notes = on_three(["", &resign_note(&a, pause), "?"]);
        assert_eq!((asked_pause(&notes, &a), asked_pause(&notes, &b)), (Some(pause), None));
        assert_eq!(asked_pause(&on_three(["", "", ""]), &a), None);
    }
}
