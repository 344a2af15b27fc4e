//! The restart guard: for how long the grants of a node do not count, and why.
//!
//! The hazard is a node that forgot a live lock and grants it again. A node that does not report
//! what is needed is distrusted.

use std::fmt;
use std::time::Duration;

use crate::proto::cluster::known::Known;
use crate::proto::settings::RestartGuard;
use crate::proto::time::Instant;
use crate::proto::wire::handshake::{Info, Vetted};
use crate::proto::wire::marker::{Marker, MarkerState, Marking};

/// Why a node's grants do not count for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuarantineReason {
    /// The node started a short time ago.
    Young,
    /// The node is another process than before.
    Restarted,
    /// Another server, which was a replica, was promoted in the place of the former one, as in a
    /// failover: it is another process, and was up before that one was gone.
    Replaced,
    /// The node was a replica, and became a master at an unknown time.
    Promoted,
    /// The node has no node marker: it is new, or it lost its keys.
    Unmarked,
    /// Another client wrote the node's marker a short time ago, because it met a new node, or one
    /// that was restarted, flushed or promoted.
    MarkedLately,
    /// A database of the node was flushed.
    Flushed,
    /// The node's clock jumped: its keys may expire too early or too late.
    ClockJumped,
    /// The node does not report how long it has been up.
    Unknown,
    /// The node has another node marker than before: its keys were replaced, or another client saw
    /// it lose them.
    MarkerChanged,
    /// The node marker is one of a later version of redlatch, which this one does not understand.
    MarkerOfLaterVersion,
    /// The node could evict keys until a moment ago.
    Evicting,
}

impl QuarantineReason {
    /// Whether the client notices this only some time after the node forgot keys. What the node
    /// granted in between may have taken the place of a forgotten key.
    pub const fn is_noticed_late(self) -> bool {
        matches!(
            self,
            QuarantineReason::ClockJumped
                | QuarantineReason::Unmarked
                | QuarantineReason::MarkedLately
                | QuarantineReason::MarkerChanged
                | QuarantineReason::MarkerOfLaterVersion
                | QuarantineReason::Evicting
        )
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuarantineReason::Young => "it started a short time ago",
            QuarantineReason::Restarted => "it was restarted",
            QuarantineReason::Replaced => "another server was promoted in its place",
            QuarantineReason::Promoted => "it was a replica and was promoted",
            QuarantineReason::Unmarked => {
                "its node marker is missing, so it is new or lost its keys"
            }
            QuarantineReason::MarkedLately => {
                "its node marker was written a short time ago: it was restarted or promoted, is \
                 new, or lost its keys"
            }
            QuarantineReason::Flushed => "it was flushed",
            QuarantineReason::ClockJumped => "its clock jumped",
            QuarantineReason::Unknown => "it does not report its uptime",
            QuarantineReason::MarkerChanged => {
                "its node marker is another than before, so its keys were replaced or lost"
            }
            QuarantineReason::MarkerOfLaterVersion => {
                "its node marker is of a later version of redlatch"
            }
            QuarantineReason::Evicting => "it could evict keys until a moment ago",
        })
    }
}

/// How the marker of a node has to be written after its handshake has read it; `None`: not at all.
/// `evicted`: when the client last saw that the node may evict keys, on the node's clock.
pub fn marking(
    guard: RestartGuard,
    known: Option<&Known>,
    vetted: &Vetted,
    evicted: Option<u64>,
    max_ttl: Duration,
    now: Instant,
) -> Option<Marking> {
    if guard == RestartGuard::Off || vetted.info.identity.run_id.is_none() {
        return None;
    }
    let marker = match vetted.marker {
        MarkerState::Unavailable | MarkerState::Later(_) => return None,
        MarkerState::Absent => return Some(Marking::IfMissing),
        MarkerState::Present(marker) => marker,
    };
    let has_evicted = evicted.is_some_and(|at| marker.since_micros < at);
    let is_strange = known.is_some_and(|known| known.is_strange(&marker, vetted, now));
    let info = &vetted.info;
    if marker.identity.run_id != info.identity.run_id {
        Some(marking_of_another_process(guard, known, vetted, &marker))
    } else if marker.is_ahead(vetted.micros) {
        Some(Marking::Renew)
    } else if is_strange || has_evicted {
        Some(Marking::Replace(marker.since_micros))
    } else if marker.identity == info.identity {
        None
    } else if is_harmless_history(info, max_ttl) {
        Some(Marking::KeepAll)
    } else {
        Some(Marking::IfMissing)
    }
}

/// How to write a marker that names another process: it has survived a restart with the data, or it
/// belongs to another node.
fn marking_of_another_process(
    guard: RestartGuard,
    known: Option<&Known>,
    vetted: &Vetted,
    marker: &Marker,
) -> Marking {
    let info = &vetted.info;
    if guard != RestartGuard::Persistent || info.promoted {
        return Marking::IfMissing;
    }
    match before_this_process(known, info) {
        Some(known) if known.is_of_known_data(marker, info) => Marking::Keep,
        Some(_) => Marking::IfMissing,
        None => Marking::Started {
            since: marker.since_micros,
            start: vetted.micros.unwrap_or(u64::MAX).saturating_sub(micros(surely_up(info))),
        },
    }
}

/// Whether a server was promoted in the place of the known one, and a client has met it since: the
/// marker names the process and the replication history, which began with the promotion.
pub fn was_met_after_promotion(known: &Known, found: MarkerState, info: &Info) -> bool {
    let is_own = matches!(found, MarkerState::Present(marker) if marker.identity == info.identity);
    let identity = info.identity;
    is_own
        && info.promoted
        && identity.replid.is_some()
        && identity.run_id != known.info.identity.run_id
}

/// What the client knew of the node before its present process.
fn before_this_process<'a>(known: Option<&'a Known>, info: &Info) -> Option<&'a Known> {
    known.filter(|known| known.info.identity.run_id != info.identity.run_id)
}

/// Whether the marker may be written only when the quarantine of the node is over. Until then it is
/// left as it is: a client that knew the node before sees by it that the node kept its data.
pub fn is_for_later(how: Marking, vetted: &Vetted, max_ttl: Duration) -> bool {
    let whole = RestartGuard::quarantine(max_ttl);
    matches!(how, Marking::Started { .. }) && left_since_start(&vetted.info, whole).is_some()
}

/// For how long from now the grants of a node do not count after its handshake, and why. `known` is
/// what the client knew of the node before this connection; `found` is its marker as it was before
/// the handshake wrote it anew, `vetted` has the marker as it is now.
pub fn distrust(
    guard: RestartGuard,
    known: Option<&Known>,
    found: MarkerState,
    vetted: &Vetted,
    max_ttl: Duration,
) -> Option<(Duration, QuarantineReason)> {
    let (info, whole) = (&vetted.info, RestartGuard::quarantine(max_ttl));
    if guard == RestartGuard::Off {
        return None;
    }
    if info.identity.run_id.is_none() {
        return Some((whole, QuarantineReason::Unknown));
    }
    let changed = known.and_then(|known| change(known, vetted, max_ttl));
    match vetted.marker {
        MarkerState::Unavailable => match known {
            None => without_a_marker(info, whole),
            Some(_) => changed.map(|why| (whole, why)),
        },
        MarkerState::Present(marker) if marker.identity == info.identity => {
            let by_marker = by_marker(&marker, found, vetted, whole);
            match guard {
                _ if marker.vouched => None,
                RestartGuard::Persistent => {
                    let promoted = changed.filter(|&why| why == QuarantineReason::Promoted);
                    longest(by_marker, promoted.map(|why| (whole, why)))
                }
                _ => {
                    let changed = changed.map(|why| (whole, why));
                    longest(longest(changed, by_marker), left_since_start(info, whole))
                }
            }
        }
        MarkerState::Later(_) => Some((whole, QuarantineReason::MarkerOfLaterVersion)),
        // This marker names another process, and is left as it is. It may be another node's, so it
        // proves nothing. But such a node forgets only when it starts, so its uptime decides.
        MarkerState::Present(marker)
            if guard == RestartGuard::Persistent
                && marker.identity.run_id != info.identity.run_id
                && !info.promoted
                && before_this_process(known, info).is_none() =>
        {
            left_since_start(info, whole)
        }
        MarkerState::Absent | MarkerState::Present(_) => {
            Some((whole, changed.unwrap_or(QuarantineReason::Unmarked)))
        }
    }
}

/// The longer of two quarantines; of equal ones the first.
fn longest(
    one: Option<(Duration, QuarantineReason)>,
    other: Option<(Duration, QuarantineReason)>,
) -> Option<(Duration, QuarantineReason)> {
    match (one, other) {
        (Some((left, _)), Some((longer, _))) if longer > left => other,
        (Some(_), _) => one,
        (None, _) => other,
    }
}

/// How the node changed since the client knew it: it is another process, or has another replication
/// history. `None`: it did not.
fn change(known: &Known, vetted: &Vetted, max_ttl: Duration) -> Option<QuarantineReason> {
    let (before, info) = (&known.info, &vetted.info);
    let promoted = info.promoted && !before.promoted;
    let history = info.identity.replid != before.identity.replid;
    if info.identity.run_id != before.identity.run_id {
        let seen_at = known.sighting.map(|sighting| sighting.micros);
        let ago = vetted.micros.zip(seen_at).map(|(now, then)| now.saturating_sub(then));
        Some(other_process(info, ago.map_or(Duration::MAX, Duration::from_micros)))
    } else if promoted || (history && !is_harmless_history(info, max_ttl)) {
        Some(QuarantineReason::Promoted)
    } else {
        None
    }
}

/// Why a node is another process than the one that was seen this long ago. A server that was up
/// then was not restarted, and one that was promoted is a replica of the former one. This is only
/// for the words: the two clocks may differ.
fn other_process(info: &Info, ago: Duration) -> QuarantineReason {
    if info.promoted && surely_up(info) >= ago {
        QuarantineReason::Replaced
    } else {
        QuarantineReason::Restarted
    }
}

/// For how long a node remembers that it was promoted, unless it is configured otherwise:
/// `repl-backlog-ttl` of Redis and Valkey.
const PROMOTION_REPORTED_FOR: Duration = Duration::from_secs(3600);

/// Whether a `master_replid` that changed in one process is no sign of a promotion that matters.
/// The id also changes when the first replica attaches, which a backup by `redis-cli --rdb` does,
/// and when the backlog is dropped an hour after the last one left. A promotion shows in
/// `second_repl_offset` for as long as the backlog is kept.
fn is_harmless_history(info: &Info, max_ttl: Duration) -> bool {
    let reported = info.reports_promotion && !info.promoted;
    reported && RestartGuard::quarantine(max_ttl) < PROMOTION_REPORTED_FOR
}

/// What is left of the quarantine that began when the marker was written.
fn by_marker(
    marker: &Marker,
    found: MarkerState,
    vetted: &Vetted,
    whole: Duration,
) -> Option<(Duration, QuarantineReason)> {
    let left = whole.saturating_sub(marker.age(vetted.micros));
    let why = match found {
        // The client does not know when the process that the marker named was last seen. But if the
        // present process has been up for a whole quarantine, and no client met it before, it was a
        // replica.
        MarkerState::Present(found) if found.identity.run_id != marker.identity.run_id => {
            other_process(&vetted.info, whole)
        }
        MarkerState::Present(found) if found.identity.replid != marker.identity.replid => {
            QuarantineReason::Promoted
        }
        MarkerState::Present(found) if found.is_ahead(vetted.micros) => {
            QuarantineReason::ClockJumped
        }
        MarkerState::Present(found) if found.since_micros != marker.since_micros => {
            QuarantineReason::MarkerChanged
        }
        MarkerState::Present(_) => QuarantineReason::MarkedLately,
        _ => QuarantineReason::Unmarked,
    };
    (!left.is_zero()).then_some((left, why))
}

/// Without a marker a node that is seen for the first time is judged by what it reports.
fn without_a_marker(info: &Info, whole: Duration) -> Option<(Duration, QuarantineReason)> {
    if info.promoted {
        Some((whole, QuarantineReason::Promoted))
    } else {
        left_since_start(info, whole)
    }
}

fn left_since_start(info: &Info, whole: Duration) -> Option<(Duration, QuarantineReason)> {
    let left = whole.saturating_sub(surely_up(info));
    (!left.is_zero()).then_some((left, QuarantineReason::Young))
}

/// How long the node has been up at least. `uptime_in_seconds` is a difference of wall-clock
/// seconds: off by up to one, and negative after the clock was set back.
fn surely_up(info: &Info) -> Duration {
    let uptime = info.uptime_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(uptime.unwrap_or(0).saturating_sub(1))
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::marker::{ID_DIGITS, Identity};

    fn info(run_id: Option<u8>, uptime: Option<i64>, promoted: bool) -> Info {
        let run_id = run_id.map(|digit| [digit; ID_DIGITS]);
        let identity = Identity { run_id, replid: None };
        Info { identity, uptime_seconds: uptime, promoted, ..Info::default() }
    }

    /// What is known of a node with this `INFO` whose marker may not be read.
    fn unmarked(info: Info) -> Vetted {
        Vetted { info, ..Vetted::default() }
    }

    const MAX_TTL: Duration = Duration::from_secs(60);
    /// `max_ttl` and its drift, in milliseconds.
    const WHOLE: u64 = 60_000 + 602;

    #[test]
    fn a_node_seen_for_the_first_time_is_trusted_by_its_uptime() {
        let day = 24 * 3600;
        let cases = [
            (info(Some(1), Some(day), false), None),
            (info(Some(1), Some(62), false), None),
            (info(Some(1), Some(61), false), Some((602, QuarantineReason::Young))),
            (info(Some(1), Some(31), false), Some((WHOLE - 30_000, QuarantineReason::Young))),
            (info(Some(1), Some(1), false), Some((WHOLE, QuarantineReason::Young))),
            (info(Some(1), Some(0), false), Some((WHOLE, QuarantineReason::Young))),
            (info(Some(1), Some(-3600), false), Some((WHOLE, QuarantineReason::Young))),
            (info(Some(1), Some(i64::MAX), false), None),
            (info(Some(1), None, false), Some((WHOLE, QuarantineReason::Young))),
            (info(None, Some(day), false), Some((WHOLE, QuarantineReason::Unknown))),
            (info(Some(1), Some(day), true), Some((WHOLE, QuarantineReason::Promoted))),
        ];
        for (info, expected) in cases {
            let expected = expected.map(|(millis, why)| (Duration::from_millis(millis), why));
            let (none, vetted) = (MarkerState::Unavailable, unmarked(info));
            let judged = |guard| distrust(guard, None, none, &vetted, MAX_TTL);
            assert_eq!(judged(RestartGuard::On), expected, "{info:?}");
            assert_eq!(judged(RestartGuard::Off), None);
        }
    }

    #[test]
    fn a_node_seen_before_is_distrusted_when_it_changed() {
        let day = Some(24 * 3600);
        let known = |run_id: Option<u8>, promoted| info(run_id, day, promoted);
        let cases = [
            (known(Some(1), false), info(Some(1), Some(3), false), None),
            (known(Some(1), false), info(Some(2), day, false), Some(QuarantineReason::Restarted)),
            (known(None, false), info(Some(1), day, false), Some(QuarantineReason::Restarted)),
            (known(Some(1), false), info(None, day, false), Some(QuarantineReason::Unknown)),
            (known(None, false), info(None, day, false), Some(QuarantineReason::Unknown)),
            (known(Some(1), false), info(Some(1), day, true), Some(QuarantineReason::Promoted)),
            (known(Some(1), true), info(Some(1), day, true), None),
        ];
        for (known, info, expected) in cases {
            let expected = expected.map(|why| (Duration::from_millis(WHOLE), why));
            let (none, vetted) = (MarkerState::Unavailable, unmarked(info));
            let known = Known { info: known, marker: none, sighting: None };
            let judged = distrust(RestartGuard::On, Some(&known), none, &vetted, MAX_TTL);
            assert_eq!(judged, expected, "{info:?}");
        }
    }

    #[test]
    fn marker_of_another_identity_proves_nothing_however_old_it_is() {
        let day = Some(24 * 3600);
        let info = info(Some(1), day, false);
        let micros = 1_700_000_000_000_000;
        let marker = |identity| {
            let since_micros = micros - 24 * 3600 * 1_000_000;
            MarkerState::Present(Marker { identity, since_micros, vouched: false })
        };
        let other = Identity { run_id: Some([2; ID_DIGITS]), replid: None };
        let whole = Duration::from_millis(WHOLE);
        let before = Info { identity: other, ..info };
        let before = Known { info: before, marker: MarkerState::Absent, sighting: None };
        for (identity, expected) in [(info.identity, None), (other, Some(whole))] {
            let marker = marker(identity);
            let vetted = Vetted { info, marker, micros: Some(micros), ..Vetted::default() };
            let known = Known { info, marker, sighting: None };
            for (guard, known) in [
                (RestartGuard::On, None),
                (RestartGuard::On, Some(&known)),
                (RestartGuard::Persistent, Some(&before)),
            ] {
                let judged = distrust(guard, known, marker, &vetted, MAX_TTL);
                assert_eq!(judged.map(|(left, _)| left), expected, "{guard:?}");
            }
            let promoted = Vetted { info: Info { promoted: true, ..info }, ..vetted };
            let judged = distrust(RestartGuard::Persistent, None, marker, &promoted, MAX_TTL);
            assert_eq!(judged.map(|(left, _)| left), expected, "promoted");
        }
    }

    #[test]
    fn longer_of_two_quarantines_counts_and_of_equal_ones_the_first() {
        let of = |seconds, why| Some((Duration::from_secs(seconds), why));
        let (short, long) = (of(1, QuarantineReason::Young), of(2, QuarantineReason::Restarted));
        let equal = of(2, QuarantineReason::Promoted);
        let cases = [
            (short, long, long),
            (long, short, long),
            (long, equal, long),
            (equal, long, equal),
            (None, short, short),
            (short, None, short),
            (None, None, None),
        ];
        for (one, other, expected) in cases {
            assert_eq!(longest(one, other), expected, "{one:?}, {other:?}");
        }
    }

    #[test]
    fn history_is_harmless_only_while_the_node_would_still_report_a_promotion() {
        let info = Info { reports_promotion: true, ..info(Some(1), None, false) };
        // With its drift this is exactly an hour.
        let hour = Duration::from_nanos(3_564_354_455_446);
        assert_eq!(RestartGuard::quarantine(hour), PROMOTION_REPORTED_FOR);
        let less = hour - Duration::from_millis(1);
        assert!(is_harmless_history(&info, less));
        assert!(!is_harmless_history(&info, hour));
        let promoted = Info { promoted: true, ..info };
        assert!(!is_harmless_history(&promoted, less));
    }
}
