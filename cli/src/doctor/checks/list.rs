//! The checks of all nodes together: how many there are, whether they are different servers, and
//! whether a lock can be acquired now.

use std::time::Duration;

use redlatch::{NodeState, RestartGuard, majority};

use super::{Finding, Level, Subject, Use, round_up_to_seconds, span};

/// The findings of these checks. `of_nodes` are the findings about single nodes.
pub fn checks(subjects: &[Subject], of_nodes: &[Finding], how: &Use) -> Vec<Finding> {
    let distinct = check_distinct(subjects);
    vec![check_count(subjects.len(), how), can_lock(subjects, of_nodes, how), distinct]
}

fn check_count(nodes: usize, how: &Use) -> Finding {
    const NAME: &str = "node-count";
    let may_fail = nodes - majority(nodes);
    match nodes {
        1 => Finding::note(NAME, one_node(how)),
        2 => Finding::note(
            NAME,
            "2 nodes: while one of them is away no lock is granted, so the second adds no \
             availability. Next step: a third master, and then one may fail",
        ),
        _ if nodes % 2 == 0 => {
            let fewer = nodes - 1;
            let as_few = format!("{nodes} nodes tolerate as few failures as {fewer}: {may_fail}");
            Finding::warn(NAME, format!("{as_few}. Take one away, or add one"))
        }
        _ => Finding::ok(NAME, format!("{nodes} nodes, of which {may_fail} may fail")),
    }
}

/// The words for a list of one node: what one node gives, and what more nodes would give.
fn one_node(how: &Use) -> String {
    let away = "1 node: while it is away no lock is granted";
    let next = "Next step: three masters, of which one may fail";
    if !how.restart_guard || how.persistent {
        return format!("{away}. {next}");
    }
    let quarantine = span(round_up_to_seconds(RestartGuard::quarantine(how.max_ttl)));
    format!("{away}, and for {quarantine} after it was restarted (restart guard). {next}")
}

/// Whether all addresses are of different servers. A server with two addresses would have two
/// votes.
fn check_distinct(subjects: &[Subject]) -> Finding {
    const NAME: &str = "distinct";
    let of = |subject: &Subject| subject.seen.identities.first().cloned();
    for (index, subject) in subjects.iter().enumerate() {
        let Some(run_id) = of(subject) else { continue };
        let same = subjects[..index].iter().find(|other| of(other).as_ref() == Some(&run_id));
        if let Some(other) = same {
            let (one, two) = (&other.label, &subject.label);
            return Finding::fail(
                NAME,
                format!("{one} and {two} are one server (run_id {run_id}): it has one vote"),
            );
        }
    }
    // A node that did not answer is not counted here: another check reports it as failed.
    let silent =
        subjects.iter().filter(|it| it.seen.handshake_answered && of(it).is_none()).count();
    let known = subjects.iter().filter(|subject| of(subject).is_some()).count();
    if silent > 0 {
        return Finding::warn(NAME, format!("unknown: {silent} of them report no run_id"));
    }
    if subjects.len() == 1 {
        return Finding::ok(NAME, "there is no other address to compare it with");
    }
    Finding::ok(
        NAME,
        format!("{known} of {} addresses answered, and lead to as many servers", subjects.len()),
    )
}

/// Whether a quorum of nodes would grant a lock.
fn can_lock(subjects: &[Subject], of_nodes: &[Finding], how: &Use) -> Finding {
    const NAME: &str = "quorum";
    let (nodes, needed) = (subjects.len(), majority(subjects.len()));
    // Only these failures keep a node from granting.
    let hindered = |subject: &&Subject| {
        of_nodes.iter().any(|finding| {
            let hinders = ["permissions", "writes", "round-trip"].contains(&finding.name);
            let of_it = finding.node.as_ref() == Some(&subject.label);
            hinders && of_it && finding.level == Level::Fail
        })
    };
    let wait = |subject: &Subject| match subject.met.state {
        NodeState::Ready => Some(Duration::ZERO),
        NodeState::Quarantined(until) => Some(until.saturating_since(how.now)),
        _ => None,
    };
    let mut waits: Vec<Duration> =
        subjects.iter().filter(|subject| !hindered(subject)).filter_map(wait).collect();
    waits.sort_unstable();
    let good = waits.iter().filter(|wait| wait.is_zero()).count();
    match waits.get(needed - 1).copied() {
        Some(Duration::ZERO) => {
            if nodes == 1 {
                return Finding::ok(NAME, "the one node grants");
            }
            Finding::ok(NAME, format!("{good} of {nodes} nodes grant; {needed} are needed"))
        }
        Some(wait) => {
            let left = span(round_up_to_seconds(wait));
            Finding::fail(
                NAME,
                format!(
                    "{good} of {nodes} nodes grant yet, and {needed} are needed: locks can be had \
                     in {left}, when the restart guard trusts them. Wait: nothing else is needed"
                ),
            )
        }
        None => Finding::fail(
            NAME,
            format!(
                "{} of {nodes} nodes grant, and {needed} are needed: no lock can be had",
                waits.len()
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use redlatch::NodeError;

    use super::super::examples::{NOW, node, using};
    use super::super::{all, no_quorum_answered};
    use super::*;

    fn nodes(count: usize) -> Vec<Subject> {
        (0..count).map(|index| node(&format!("n{index}"))).collect()
    }

    fn level(subjects: &[Subject], name: &str) -> Level {
        let found = all(subjects, &using());
        found.iter().find(|finding| finding.name == name).expect("it is always there").level
    }

    #[test]
    fn odd_number_of_nodes_is_ok() {
        use Level::{Note, Ok, Warn};
        for (count, expected) in [(1, Note), (2, Note), (3, Ok), (4, Warn), (5, Ok)] {
            assert_eq!(level(&nodes(count), "node-count"), expected, "{count}");
        }
    }

    #[test]
    fn one_node_is_told_what_it_gives_and_the_next_step() {
        let away = "1 node: while it is away no lock is granted";
        let next = "Next step: three masters, of which one may fail";
        let guarded = check_count(1, &using()).detail;
        let plain = format!("{away}. {next}");
        assert_eq!(
            guarded,
            format!("{away}, and for 61 s after it was restarted (restart guard). {next}")
        );
        assert_eq!(check_count(1, &Use { restart_guard: false, ..using() }).detail, plain);
        // A restart costs no quarantine there, if a client was connected before it.
        assert_eq!(check_count(1, &Use { persistent: true, ..using() }).detail, plain);
        let found = all(&nodes(1), &using());
        let of_list: Vec<_> = found[1..3].iter().map(|it| (it.level, it.detail.as_str())).collect();
        let alone = "there is no other address to compare it with";
        assert_eq!(of_list, [(Level::Ok, "the one node grants"), (Level::Ok, alone)]);
    }

    #[test]
    fn one_node_that_does_not_grant_is_a_failure() {
        let mut one = nodes(1);
        one[0].met.state = NodeState::Down(NodeError::Unreachable);
        assert_eq!(level(&one, "quorum"), Level::Fail);
        one[0].seen.identities.clear();
        assert_eq!(check_distinct(&one).level, Level::Warn, "its run_id is not known");
    }

    #[test]
    fn two_addresses_of_one_server_are_named() {
        let mut three = nodes(3);
        three[2].seen.identities = three[0].seen.identities.clone();
        let found = check_distinct(&three);
        assert_eq!(found.level, Level::Fail);
        assert!(found.detail.starts_with("n0 and n2 are one server"), "{found:?}");
        let mut three = nodes(3);
        three[1].seen.identities.clear();
        assert_eq!(check_distinct(&three).level, Level::Warn);
    }

    #[test]
    fn a_lock_can_be_had_of_a_majority_that_grants() {
        let mut three = nodes(3);
        three[0].met.state = NodeState::Down(NodeError::Unreachable);
        three[0].seen.answered = false;
        assert_eq!(level(&three, "quorum"), Level::Ok);
        let later = NOW.saturating_add(Duration::from_secs(9));
        three[1].met.state = NodeState::Quarantined(later);
        let found = can_lock(&three, &[], &using());
        assert_eq!(found.level, Level::Fail);
        assert!(found.detail.contains("can be had in 9 s"), "{found:?}");
        three[1].met.state = NodeState::Down(NodeError::Unreachable);
        assert_eq!(level(&three, "quorum"), Level::Fail);
        assert!(!no_quorum_answered(&three));
        three[1].seen.answered = false;
        assert!(no_quorum_answered(&three));
    }

    #[test]
    fn a_node_that_refuses_to_write_does_not_count() {
        use crate::doctor::trial::{Outcome, Trial};
        let mut three = nodes(3);
        for node in &mut three[..2] {
            // A node that may forget its keys after a crash can still grant now.
            node.seen.info.insert("aof_enabled".into(), "0".into());
        }
        let unguarded = Use { restart_guard: false, ..using() };
        let found = all(&three, &unguarded);
        assert!(found.iter().any(|finding| finding.level == Level::Fail));
        assert_eq!(found[1].level, Level::Ok, "{:?}", found[1]);
        for node in &mut three[..2] {
            let outcome = Outcome::Refused(NodeError::OutOfMemory, "OOM full".into());
            node.seen.trials.retain(|trial| trial.command != "SET");
            node.seen.trials.push(Trial { command: "SET", outcome });
        }
        assert_eq!(level(&three, "quorum"), Level::Fail);
    }
}
