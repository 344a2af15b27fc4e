//! What the client knew of a node when it last saw the node's marker, and how a marker that it
//! reads now compares with that.
//!
//! The hazard is a marker that was written elsewhere, or long ago, and comes back with data of
//! another time: it names the node and is old enough to be trusted. Such a marker is recognized by
//! its time: one that was written on this node since the last sighting is not older than that
//! sighting.

use crate::proto::time::{Instant, drift};
use crate::proto::wire::handshake::{Info, Vetted};
use crate::proto::wire::marker::{ID_DIGITS, Marker, MarkerState};

/// When the client last saw the marker that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The time on the node's clock before the marker was read, in microseconds.
    pub micros: u64,
    /// When that time was asked for, on our clock: the node was the known process then, or later.
    pub asked_at: Instant,
}

/// What the client knew of a node before its present connection.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// What the node reported when it was vetted last.
    pub info: Info,
    /// The node marker that the client saw last.
    pub marker: MarkerState,
    /// When the client last saw that marker.
    pub sighting: Option<Sighting>,
}

/// A marker that was read, compared with the known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// The node has forgotten nothing since the last sighting: the marker is the known one, or a
    /// client has copied its time into a marker for another identity of the node, or an operator
    /// has vouched for the node since.
    Same,
    /// A client wrote the marker since the last sighting: the node had forgotten something.
    New,
    /// The node has no marker any more.
    Gone,
    /// The marker is older than the last sighting, and yet was not there then: the node has the
    /// data of another time, of another database or of another node.
    Strange(Marker),
    /// A later version of redlatch wrote the marker.
    Later,
}

/// Compares the marker that was read from a process with this `run_id`.
pub fn compare(
    known: MarkerState,
    sighting: Option<Sighting>,
    found: MarkerState,
    run_id: Option<[u8; ID_DIGITS]>,
) -> Compared {
    let found = match found {
        found if found == known => return Compared::Same,
        MarkerState::Present(found) => found,
        MarkerState::Later(_) => return Compared::Later,
        MarkerState::Absent | MarkerState::Unavailable => return Compared::Gone,
    };
    let is_own = run_id.is_some() && found.identity.run_id == run_id;
    if let MarkerState::Present(known) = known {
        let same_run_id = found.identity.run_id == known.identity.run_id;
        if found.since_micros == known.since_micros && (is_own || same_run_id) {
            return Compared::Same;
        }
    }
    let is_recent = sighting.is_none_or(|sighting| found.since_micros >= sighting.micros);
    match (is_own && is_recent, found.vouched) {
        (true, true) => Compared::Same,
        (true, false) => Compared::New,
        (false, _) => Compared::Strange(found),
    }
}

impl Known {
    /// Whether a marker shows that the node has the data of the process that the client knew: the
    /// marker names that process, or another client that knew the process has carried the marker's
    /// time over to the present one.
    pub fn is_of_known_data(&self, marker: &Marker, info: &Info) -> bool {
        let before = self.info.identity.run_id;
        let carried = match self.marker {
            MarkerState::Present(known) => {
                let is_own = marker.identity.run_id == info.identity.run_id;
                let same_time = known.since_micros == marker.since_micros;
                is_own && same_time && known.identity.run_id == before
            }
            _ => false,
        };
        carried || marker.identity.run_id == before
    }

    /// Whether a marker that names the node's present process was not written on this node since
    /// the last sighting. If that process is not the known one, such a marker is that of another
    /// server, which a client met before the server took this address.
    pub fn is_strange(&self, marker: &Marker, vetted: &Vetted, now: Instant) -> bool {
        let run_id = vetted.info.identity.run_id;
        if self.info.identity.run_id == run_id {
            let found = MarkerState::Present(*marker);
            return matches!(
                compare(self.marker, self.sighting, found, run_id),
                Compared::Strange(_)
            );
        }
        let passed = self.sighting.map(|sighting| now.saturating_since(sighting.asked_at));
        let older = passed.is_none_or(|passed| {
            let passed = passed.saturating_add(drift(passed));
            marker.age(vetted.micros) > passed
        });
        older && !self.is_of_known_data(marker, &vetted.info)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proto::key::KeyHash;
    use crate::proto::wire::marker::Identity;

    const SEEN_AT: u64 = 1_000_000;

    fn marker(digit: u8, since_micros: u64) -> Marker {
        let identity = Identity { run_id: Some([digit; ID_DIGITS]), replid: None };
        Marker { identity, since_micros, vouched: false }
    }

    fn present(digit: u8, since: u64) -> MarkerState {
        MarkerState::Present(marker(digit, since))
    }

    fn sighting() -> Option<Sighting> {
        Some(Sighting { micros: SEEN_AT, asked_at: Instant::from_nanos(60_000_000_000) })
    }

    #[test]
    fn marker_that_is_read_is_the_known_one_a_new_one_or_a_strange_one() {
        use MarkerState::{Absent, Later, Present, Unavailable};
        let vouched = |since| Present(Marker { vouched: true, ..marker(1, since) });
        let later = |text: &[u8]| Later(KeyHash::of(text));
        let strange = |digit, since| Compared::Strange(marker(digit, since));
        let known = present(1, 7);
        let cases = [
            (known, known, Compared::Same),
            (Absent, Absent, Compared::Same),
            (known, Absent, Compared::Gone),
            (known, Unavailable, Compared::Gone),
            (known, later(b"2"), Compared::Later),
            (later(b"2"), later(b"2"), Compared::Same),
            (later(b"2"), later(b"3"), Compared::Later),
            // Process 1 answers. Its marker was written after the last sighting, or before it.
            (known, present(1, SEEN_AT), Compared::New),
            (Absent, present(1, SEEN_AT), Compared::New),
            (later(b"2"), present(1, SEEN_AT), Compared::New),
            (known, present(1, SEEN_AT - 1), strange(1, SEEN_AT - 1)),
            (known, vouched(SEEN_AT), Compared::Same),
            (known, present(2, SEEN_AT), strange(2, SEEN_AT)),
            // The known marker is that of an earlier process, 2. The one that is read carries its
            // time over to process 1, or to another process.
            (present(2, 7), present(1, 7), Compared::Same),
            (present(2, 7), present(3, 7), strange(3, 7)),
        ];
        for (known, found, expected) in cases {
            let run_id = Some([1; ID_DIGITS]);
            assert_eq!(compare(known, sighting(), found, run_id), expected, "{known:?}, {found:?}");
        }
        let found = vouched(6);
        let compared = compare(known, sighting(), found, Some([1; ID_DIGITS]));
        assert!(matches!(compared, Compared::Strange(_)), "an operator vouched, but elsewhere");
        assert_eq!(compare(known, None, present(1, 6), Some([1; ID_DIGITS])), Compared::New);
    }

    fn info(digit: u8) -> Info {
        Info { identity: marker(digit, 0).identity, ..Info::default() }
    }

    #[test]
    fn data_are_known_by_the_marker_of_the_known_process_or_by_its_time_in_the_present_one() {
        let known = Known { info: info(1), marker: present(1, 7), sighting: sighting() };
        for (marker, expected) in [
            (marker(1, 7), true),
            (marker(1, 9), true),
            (marker(2, 7), true),
            (marker(2, 9), false),
            (marker(3, 7), false),
        ] {
            assert_eq!(known.is_of_known_data(&marker, &info(2)), expected, "{marker:?}");
        }
        // The known marker was not that of the known process, so it proves nothing.
        let known = Known { marker: present(4, 7), ..known };
        assert!(!known.is_of_known_data(&marker(2, 7), &info(2)));
        assert!(!known.is_of_known_data(&marker(4, 7), &info(2)));
    }

    #[test]
    fn marker_of_another_process_is_strange_if_it_is_older_than_the_last_sighting() {
        // The last sighting was 10 s ago.
        let now = Instant::from_nanos(70_000_000_000);
        let known = Known { info: info(1), marker: present(1, 7), sighting: sighting() };
        let strange = |known: &Known, ago: Duration| {
            let micros = 1_700_000_000_000_000;
            let vetted = Vetted { info: info(2), micros: Some(micros), ..Vetted::default() };
            let since = micros - ago.as_micros() as u64;
            known.is_strange(&marker(2, since), &vetted, now)
        };
        let seconds = Duration::from_secs;
        assert!(!strange(&known, seconds(10)));
        assert!(!strange(&known, seconds(10) + drift(seconds(10))));
        assert!(strange(&known, seconds(11)));
        assert!(
            strange(&Known { sighting: None, ..known }, seconds(1)),
            "its marker was never seen"
        );
        let carried = Known { marker: present(1, 1_700_000_000_000_000 - 11_000_000), ..known };
        assert!(!strange(&carried, seconds(11)), "a client that knew it has carried it over");
    }
}
