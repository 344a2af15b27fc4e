//! The node marker: one small key on each node that remembers, for every client and process, since
//! when the node has been known in its present identity. A node that lost its keys lost its marker
//! with them, and a node that became another process, or another replication history, does not
//! match it any more.
//!
//! The hazard is a marker that vouches for more than was seen. So its time is read on the node in
//! the same script that writes it, and nothing is concluded from a value that is not a marker.
//!
//! A marker is `1 RUN_ID REPLID TIME`, and `vouched` if an operator did. Every later version has to
//! begin with the number of its format and the `run_id`: by that this version knows that the value
//! is a marker, trusts nothing, and leaves it as it is.

use std::time::Duration;

use bytes::BytesMut;

use crate::proto::key::KeyHash;
use crate::proto::wire::command::{MARK, encode};

/// How many hex digits a `run_id` and a `master_replid` have.
pub const ID_DIGITS: usize = 40;

/// How far the marker's time may be ahead of the node's clock before the clock counts as set back:
/// another client may have written the marker a moment after this client read the clock.
const AHEAD: Duration = Duration::from_secs(1);

/// The text at the end of a marker that an operator vouched with.
const VOUCHED: &str = " vouched";

/// The identity of a node, by its own `INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// `run_id`: new at each start of the server; `None` if the node does not report it.
    pub run_id: Option<[u8; ID_DIGITS]>,
    /// `master_replid`: new at each promotion to master; `None` if the node does not report it.
    pub replid: Option<[u8; ID_DIGITS]>,
}

/// What stands in a node's marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The identity of the node when the marker was written.
    pub identity: Identity,
    /// The node's `TIME` when a client first saw it in that identity: Unix microseconds.
    pub since_micros: u64,
    /// An operator vouched that no lock was live on the node at that time.
    pub vouched: bool,
}

/// What a client knows of a node's marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MarkerState {
    /// The marker may not be read or written, another program uses its key, the node does not
    /// report its time, or no marker is wanted.
    #[default]
    Unavailable,
    /// There is no marker, and none could be written just now.
    Absent,
    /// A later version of redlatch wrote the marker, and this version cannot read from it what the
    /// node forgot. The hash of its text shows whether it changes.
    Later(KeyHash),
    /// There is this marker.
    Present(Marker),
}

impl MarkerState {
    /// What the value of the marker's key says.
    pub fn read(value: &[u8]) -> MarkerState {
        match Marker::parse(value) {
            Some(marker) => MarkerState::Present(marker),
            None if Marker::is_of_later_version(value) => MarkerState::Later(KeyHash::of(value)),
            None => MarkerState::Unavailable,
        }
    }
}

/// How the marker is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Marking {
    /// With the present time, unless a marker of this identity is there by now.
    IfMissing,
    /// With the time of the marker that is there: the node restarted and kept its keys.
    Keep,
    /// With all of the marker that is there but its identity: the node has a new replication
    /// history and forgot nothing.
    KeepAll,
    /// Always, with the present time: what was known of the node does not hold any more.
    Renew,
    /// With the present time, in the place of a marker that has this time. If another client was
    /// faster, its marker stays.
    Replace(u64),
    /// With the time at which the node's process started, in the place of a marker of another
    /// process that has this time: the node has forgotten nothing since its start.
    Started {
        /// The time of the marker that is there.
        since: u64,
        /// When the process started at the latest.
        start: u64,
    },
    /// With the present time: an operator vouches that no lock is live on the node. The script
    /// replaces only a marker that has this time, because the operator does not vouch for what the
    /// node forgets while this command is in flight.
    Vouch(u64),
}

impl Marker {
    /// Reads a marker; `None` if the value is something else.
    pub fn parse(value: &[u8]) -> Option<Marker> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let id = |word: &str| <[u8; ID_DIGITS]>::try_from(word.as_bytes()).ok();
        let (run_id, replid) = (id(words.next()?)?, id(words.next()?)?);
        let since_micros = words.next()?.parse().ok()?;
        let vouched = match words.next() {
            None => false,
            Some("vouched") => true,
            Some(_) => return None,
        };
        let replid = (replid != NO_ID).then_some(replid);
        let identity = Identity { run_id: Some(run_id), replid };
        words.next().is_none().then_some(Marker { identity, since_micros, vouched })
    }

    /// Whether the value is a marker that a later version of redlatch wrote: one of another format,
    /// or one of this format with a word that is not known here.
    pub fn is_of_later_version(value: &[u8]) -> bool {
        let mut words = std::str::from_utf8(value).unwrap_or_default().split(' ');
        let format = words.next().and_then(|word| word.parse::<u64>().ok());
        let is_id = |word: Option<&str>| word.is_some_and(|word| word.len() == ID_DIGITS);
        match format {
            Some(1) => {
                let ids = is_id(words.next()) && is_id(words.next());
                let since = words.next().is_some_and(|word| word.parse::<u64>().is_ok());
                ids && since && Marker::parse(value).is_none()
            }
            Some(_) => is_id(words.next()),
            None => false,
        }
    }

    /// The marker as it is written.
    fn text(&self) -> Box<str> {
        let ids = [self.identity.run_id, self.identity.replid].map(|id| id.unwrap_or(NO_ID));
        let [run_id, replid] = ids.map(|id| String::from_utf8_lossy(&id).into_owned());
        let end = if self.vouched { VOUCHED } else { "" };
        format!("1 {run_id} {replid} {}{end}", self.since_micros).into()
    }

    /// How long ago the marker was written, by the node's clock; zero if the clock was set back
    /// since, or is not known.
    pub fn age(&self, node_micros: Option<u64>) -> Duration {
        let now = node_micros.unwrap_or(0);
        Duration::from_micros(now.saturating_sub(self.since_micros))
    }

    /// Whether the marker's time lies in the node's future: the node's clock was set back.
    pub fn is_ahead(&self, node_micros: Option<u64>) -> bool {
        let margin = AHEAD.as_micros() as u64;
        node_micros.is_some_and(|now| self.since_micros > now.saturating_add(margin))
    }
}

impl Marking {
    /// Whether this is about the start of one process of the node.
    pub const fn is_of_a_start(self) -> bool {
        matches!(self, Marking::Started { .. })
    }

    /// Whether the marker that the node returned to this marking has the time that the marking
    /// gave it, or that another client gave it since.
    pub const fn has_written(self, marker: &Marker) -> bool {
        match self {
            Marking::Renew => true,
            Marking::Replace(since) => marker.since_micros != since,
            Marking::Started { start, .. } => marker.since_micros == start,
            Marking::IfMissing | Marking::Keep | Marking::KeepAll | Marking::Vouch(_) => false,
        }
    }
}

/// The id that is written if the node does not report one.
const NO_ID: [u8; ID_DIGITS] = [b'0'; ID_DIGITS];

/// Encodes the script that writes the marker of a node with this identity. The `run_id` has to be
/// known: without it a node looks the same as the process that takes its place.
pub fn mark(out: &mut BytesMut, key: &str, identity: &Identity, how: Marking) {
    let (run_id, replid) = (identity.run_id.unwrap_or(NO_ID), identity.replid.unwrap_or(NO_ID));
    let prefix = [&b"1 "[..], &run_id, b" ", &replid, b" "].concat();
    let (expected, start);
    let (word, end) = match how {
        Marking::IfMissing => ("", ""),
        Marking::Keep => ("keep", ""),
        Marking::KeepAll => ("tail", ""),
        Marking::Renew => ("new", ""),
        Marking::Replace(since) | Marking::Started { since, .. } | Marking::Vouch(since) => {
            expected = since.to_string();
            let vouches = matches!(how, Marking::Vouch(_));
            (expected.as_str(), if vouches { VOUCHED } else { "" })
        }
    };
    let (script, key) = (MARK.as_bytes(), key.as_bytes());
    let words: [&[u8]; 7] = [b"EVAL", script, b"1", key, &prefix, word.as_bytes(), end.as_bytes()];
    match how {
        Marking::Started { start: micros, .. } => {
            start = micros.to_string();
            encode(out, &[&words[..], &[start.as_bytes()]].concat());
        }
        _ => encode(out, &words),
    }
}

/// By how much the time of a marker that is written without the script is ahead of the node's clock
/// at most. Less than [`AHEAD`], so that a client that reads the clock just before the marker does
/// not take it for one from the future.
const AHEAD_WITHOUT_SCRIPT: Duration = Duration::from_millis(500);

/// The two commands that write a marker on a node that runs no scripts.
///
/// The first one writes the marker in the place of the one that the client knows to be there. It
/// cannot read the clock, so a time that has to be the present one lies ahead of the clock, and the
/// key expires at that time. So a node that executes the command later than that keeps no marker:
/// the time of a marker is never before the moment at which it was written. The second command
/// takes the expiry away, if the key still has this marker, and returns what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    text: Box<str>,
    /// The marker that has to be there; `None` if there has to be none.
    expected: Option<Box<str>>,
    /// When the key expires before the second command, in Unix milliseconds; `None` if the time of
    /// the marker is not the present one.
    expires: Option<u64>,
}

impl Replacement {
    /// How the marker of a node with this identity is written in the place of `known`. `earliest`:
    /// the node's clock is not before this time. `None` if nothing is to be written.
    pub fn of(
        known: MarkerState,
        identity: &Identity,
        how: Marking,
        earliest: u64,
    ) -> Option<Replacement> {
        let there = match known {
            MarkerState::Present(marker) => Some(marker),
            MarkerState::Absent => None,
            MarkerState::Unavailable | MarkerState::Later(_) => return None,
        };
        let is_same = there.is_some_and(|marker| marker.identity == *identity);
        let is_from = |since: u64| there.is_some_and(|marker| marker.since_micros == since);
        // The client may not have read yet that a flush deleted the marker. So a marker of this
        // identity does not count here: only a node that has none gets one.
        let there = there.filter(|_| how != Marking::IfMissing || !is_same);
        // As the script does: it leaves some markers alone.
        let leaves = match how {
            Marking::IfMissing | Marking::Keep | Marking::KeepAll | Marking::Renew => false,
            Marking::Replace(since) | Marking::Vouch(since) => !is_from(since),
            Marking::Started { since, .. } => is_same || !is_from(since),
        };
        let kept = match (how, there) {
            (Marking::Keep, Some(there)) => Some((there.since_micros, false)),
            (Marking::KeepAll, Some(there)) => Some((there.since_micros, there.vouched)),
            (Marking::Started { start, .. }, _) => Some((start, false)),
            _ => None,
        };
        let ahead = earliest.saturating_add(AHEAD_WITHOUT_SCRIPT.as_micros() as u64);
        let (since_micros, vouched) = kept.unwrap_or((ahead, matches!(how, Marking::Vouch(_))));
        let marker = Marker { identity: *identity, since_micros, vouched };
        (!leaves).then(|| Replacement {
            text: marker.text(),
            expected: there.map(|there| there.text()),
            // Rounded down, so that the key never expires after the time of the marker.
            expires: kept.is_none().then_some(ahead / 1000),
        })
    }

    /// Encodes the first command. Its answer does not matter.
    pub fn write(&self, out: &mut BytesMut, key: &str) {
        let mut words: Vec<&[u8]> = vec![b"SET", key.as_bytes(), self.text.as_bytes()];
        match &self.expected {
            Some(expected) => words.extend([&b"IFEQ"[..], expected.as_bytes()]),
            None => words.push(b"NX"),
        }
        let expires = self.expires.map(|millis| millis.to_string());
        if let Some(expires) = &expires {
            words.extend([&b"PXAT"[..], expires.as_bytes()]);
        }
        encode(out, &words);
    }

    /// Encodes the second command. Its answer is that of the script: the marker that the node has.
    pub fn keep(&self, out: &mut BytesMut, key: &str) {
        let (key, text) = (key.as_bytes(), self.text.as_bytes());
        encode(out, &[b"SET", key, text, b"IFEQ", text, b"GET"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rest: &str) -> String {
        format!("1 {} {} {rest}", "a".repeat(40), "b".repeat(40))
    }

    #[test]
    fn a_marker_is_read_and_anything_else_is_none() {
        let identity = Identity { run_id: Some([b'a'; 40]), replid: Some([b'b'; 40]) };
        let marker = |vouched| Some(Marker { identity, since_micros: 17, vouched });
        assert_eq!(Marker::parse(text("17").as_bytes()), marker(false));
        assert_eq!(Marker::parse(text("17 vouched").as_bytes()), marker(true));
        let zeros = format!("1 {} {} 17", "a".repeat(40), "0".repeat(40));
        assert_eq!(Marker::parse(zeros.as_bytes()).unwrap().identity.replid, None);
        let short = format!("1 {} b 17", "a".repeat(40));
        let others = [String::new(), "1".into(), short, text(""), text("x"), text("17 else")];
        let others =
            others.into_iter().chain([text("17 vouched more"), text("17").replace('1', "2")]);
        for other in others {
            assert_eq!(Marker::parse(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn marker_of_a_later_version_is_distinguished_from_other_values() {
        let (word, format) = (text("17 else"), text("17").replacen('1', "2", 1));
        let run_id = format!("12 {} whatever follows", "a".repeat(40));
        for later in [word, text("17 vouched else"), format, run_id] {
            let state = MarkerState::read(later.as_bytes());
            assert_eq!(state, MarkerState::Later(KeyHash::of(later.as_bytes())), "{later:?}");
        }
        let numbers = ["", "1", "2", "2 apples", "1 2 3"].map(str::to_owned);
        let no_time = [text(""), text("x"), format!("1 {} x", "a".repeat(40))];
        for other in numbers.into_iter().chain(no_time) {
            assert_eq!(MarkerState::read(other.as_bytes()), MarkerState::Unavailable, "{other:?}");
        }
        assert!(matches!(MarkerState::read(text("17").as_bytes()), MarkerState::Present(_)));
    }

    const NOW: u64 = 1_700_000_000_000_900;
    const OWN: Identity = Identity { run_id: Some([b'a'; 40]), replid: Some([b'b'; 40]) };
    const OTHER: Identity = Identity { run_id: Some([b'c'; 40]), replid: None };

    fn known(identity: Identity, since_micros: u64) -> MarkerState {
        MarkerState::Present(Marker { identity, since_micros, vouched: false })
    }

    /// Both commands, as text; empty if the marker is only read.
    fn commands(there: MarkerState, how: Marking) -> [String; 2] {
        let Some(replacement) = Replacement::of(there, &OWN, how, NOW) else {
            return Default::default();
        };
        let (mut first, mut second) = (BytesMut::new(), BytesMut::new());
        replacement.write(&mut first, "m");
        replacement.keep(&mut second, "m");
        [first, second].map(|bytes| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join("|")
        })
    }

    #[test]
    fn marker_is_written_by_two_commands_in_the_place_of_the_known_one_alone() {
        let (own, other) = (known(OWN, 17), known(OTHER, 17));
        let text_of = |identity: Identity, rest: &str| {
            let marker = Marker { identity, since_micros: 17, vouched: false };
            marker.text().replace(" 17", &format!(" {rest}"))
        };
        let (ahead, expires) = ("1700000000500900", "1700000000500");
        let fresh = text_of(OWN, ahead);
        let first = |condition: &str| format!("SET|m|{fresh}|{condition}|PXAT|{expires}");
        let second = |text: &str| format!("SET|m|{text}|IFEQ|{text}|GET");
        let (is_own, is_other) = (text_of(OWN, "17"), text_of(OTHER, "17"));
        for (there, how, condition) in [
            (MarkerState::Absent, Marking::IfMissing, "NX".to_owned()),
            // A flush may have deleted it.
            (own, Marking::IfMissing, "NX".to_owned()),
            (other, Marking::IfMissing, format!("IFEQ|{is_other}")),
            (own, Marking::Renew, format!("IFEQ|{is_own}")),
            (own, Marking::Replace(17), format!("IFEQ|{is_own}")),
        ] {
            assert_eq!(commands(there, how), [first(&condition), second(&fresh)], "{how:?}");
        }
        let vouched = format!("{fresh} vouched");
        let first = format!("SET|m|{vouched}|IFEQ|{is_own}|PXAT|{expires}");
        assert_eq!(commands(own, Marking::Vouch(17)), [first, second(&vouched)]);
        // These have a time that is not the present one.
        for (how, written) in [
            (Marking::Keep, text_of(OWN, "17")),
            (Marking::KeepAll, text_of(OWN, "17")),
            (Marking::Started { since: 17, start: 5 }, text_of(OWN, "5")),
        ] {
            let first = format!("SET|m|{written}|IFEQ|{is_other}");
            assert_eq!(commands(other, how), [first, second(&written)], "{how:?}");
        }
        let empty: [String; 2] = Default::default();
        for (there, how) in [
            (own, Marking::Replace(18)),
            (own, Marking::Vouch(0)),
            (MarkerState::Absent, Marking::Vouch(17)),
            (MarkerState::Unavailable, Marking::Renew),
            (MarkerState::Later(KeyHash::of(b"x")), Marking::Renew),
            (other, Marking::Started { since: 18, start: 5 }),
            (own, Marking::Started { since: 17, start: 5 }),
        ] {
            assert_eq!(commands(there, how), empty, "{how:?}");
        }
    }

    #[test]
    fn the_age_of_a_marker_is_by_the_nodes_clock() {
        let marker = Marker::parse(text("5000000").as_bytes()).unwrap();
        assert_eq!(marker.age(Some(7_000_000)), Duration::from_secs(2));
        assert_eq!(marker.age(Some(4_000_000)), Duration::ZERO, "the clock was set back");
        assert_eq!(marker.age(None), Duration::ZERO, "the clock is not known");
        assert!(!marker.is_ahead(Some(4_000_000)) && !marker.is_ahead(None));
        assert!(marker.is_ahead(Some(3_999_999)));
    }
}
