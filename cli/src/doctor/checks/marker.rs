//! Checks the node marker, by which a client sees that the node lost keys while that client was not
//! connected.

use redlatch::{NodeState, RestartGuard};

use super::{Finding, Subject, Use, span};
use crate::doctor::marker::Seen;

const NAME: &str = "marker";

/// Whether the restart guard can rely on the marker. `None` if doctor did not read the marker.
pub fn check(subject: &Subject, how: &Use) -> Option<Finding> {
    if !how.restart_guard {
        return Some(Finding::ok(NAME, "not used: the restart guard is off"));
    }
    // The library writes the marker only into nodes that it asks for locks.
    if !matches!(subject.met.state, NodeState::Ready | NodeState::Quarantined(_)) {
        return None;
    }
    let key = how.marker;
    let unnoticed = "if this node loses keys while a client is not connected, that goes unnoticed";
    Some(match &subject.seen.marker {
        Seen::Nothing => return None,
        Seen::Refused(line) => Finding::warn(
            NAME,
            format!(
                "the key {key} may not be read and written ({line}): {unnoticed}. ACL rule: \
                 ~{key} +get +set +eval +time"
            ),
        ),
        Seen::Foreign => {
            Finding::warn(NAME, format!("another program uses the key {key}: {unnoticed}"))
        }
        Seen::OfLaterVersion => Finding::warn(
            NAME,
            format!(
                "the key {key} is of a later version of redlatch, so each new client of this \
                 version counts none of the node's grants for {}; use the later version everywhere",
                span(RestartGuard::quarantine(how.max_ttl))
            ),
        ),
        Seen::Absent => Finding::warn(
            NAME,
            format!("the key {key} is not there, although the library tried to write it"),
        ),
        Seen::OfAnother => Finding::warn(
            NAME,
            format!("the key {key} names another server, although the library tried to write it"),
        ),
        Seen::Fits(marker) => {
            let now = subject.seen.readings.last().map(|reading| reading.micros);
            let age = span(marker.age(now));
            let vouched = if marker.vouched { ", when an operator vouched for it" } else { "" };
            Finding::ok(NAME, format!("written {age} ago{vouched}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::examples::{node, using};
    use super::*;

    #[test]
    fn a_marker_that_cannot_be_used_is_a_warning_that_names_its_key() {
        let with = |seen: Seen, how: &Use| {
            let mut subject = node("a");
            subject.seen.marker = seen;
            check(&subject, how)
        };
        let refused = Seen::Refused("NOPERM no".to_owned());
        let cases = [
            (refused.clone(), "ACL rule: ~redlatch:node"),
            (refused.clone(), "goes unnoticed"),
            (Seen::Foreign, "another program uses the key redlatch:node"),
            (Seen::OfLaterVersion, "of a later version of redlatch"),
            (Seen::Absent, "redlatch:node is not there"),
            (Seen::OfAnother, "redlatch:node names another server"),
        ];
        for (seen, words) in cases {
            let found = with(seen, &using()).expect("it was looked for");
            assert_eq!(found.level, Level::Warn);
            assert!(found.detail.contains(words), "{found:?}");
        }
        assert_eq!(with(Seen::Nothing, &using()), None);
        let unguarded = Use { restart_guard: false, ..using() };
        assert_eq!(with(refused, &unguarded).expect("it is said").level, Level::Ok);
    }

    #[test]
    fn the_age_of_a_marker_is_reported() {
        let mut subject = node("a");
        let found = check(&subject, &using()).expect("it was looked for");
        assert_eq!((found.level, &*found.detail), (Level::Ok, "written 10 min ago"));
        if let Seen::Fits(marker) = &mut subject.seen.marker {
            marker.vouched = true;
        }
        let found = check(&subject, &using()).expect("it was looked for");
        assert_eq!(found.detail, "written 10 min ago, when an operator vouched for it");
        subject.met.state = NodeState::Down(redlatch::NodeError::Evicts);
        assert_eq!(check(&subject, &using()), None);
    }
}
