//! `elect` through faults of a leader's process and of the masters: another candidate leads, and
//! never two at once.

use super::elections::*;
use super::*;
use support::Node;

/// Runs while its candidate leads, and complains if another CMD runs at the same time.
const ALONE: &str = "exec 9> one; flock -n 9 || echo two >> overlap; \
                     echo up >> began; exec sleep 1000";

/// `elect` with a short ttl and quarantine, as `web-0`, `web-1` and so on.
fn candidates(fleet: &Fleet, desk: &exec::Desk, count: usize) -> Vec<CandidateProcess> {
    const NAMES: [&str; 8] =
        ["web-0", "web-1", "web-2", "web-3", "web-4", "web-5", "web-6", "web-7"];
    let flags = ["-t", "2s", "--max-ttl", "2s"];
    let started = NAMES[..count].iter().map(|name| {
        let candidate = CandidateProcess::start(fleet, desk, name, &flags, ALONE);
        if *name == NAMES[0] {
            candidate.terms(desk, 1);
        }
        candidate
    });
    let started = started.collect();
    wait_in_line(fleet, count as i64 - 1);
    started
}

/// Waits until one of these candidates leads in a term after this one, and returns its index and
/// its term.
#[track_caller]
fn next_leader(candidates: &[CandidateProcess], desk: &exec::Desk, after: u64) -> (usize, u64) {
    let mut found = None;
    eventually(LIMIT, "another term begins", || {
        found = candidates.iter().enumerate().find_map(|(index, candidate)| {
            let terms =
                candidate.named(desk, "leading").into_iter().filter_map(|it| it["term"].as_u64());
            terms.max().filter(|&term| term > after).map(|term| (index, term))
        });
        found.is_some()
    });
    found.expect("it was found")
}

/// Waits until so many CMDs have begun, and fails if two ran at once.
#[track_caller]
fn one_after_the_other(desk: &exec::Desk, count: usize) {
    eventually(LIMIT, "each CMD has begun", || desk.lines("began").len() >= count);
    assert!(!desk.path("overlap").exists(), "two leaders ran their CMD at once");
}

#[test]
fn elect_that_was_stopped_stops_its_cmd_and_follows_the_new_leader_once_it_goes_on() {
    let (fleet, desk) = vouched();
    let all = candidates(&fleet, &desk, 3);
    let first_term = all[0].terms(&desk, 1)[0];
    all[0].running.signal(Signal::STOP);
    let (leader, term) = next_leader(&all[1..], &desk, first_term);
    all[0].running.signal(Signal::CONT);
    eventually(LIMIT, "the first leader follows the second", || {
        let follows = all[0].named(&desk, "following");
        follows.iter().any(|event| event["name"] == format!("web-{}", leader + 1))
    });
    let events: Vec<_> = all[0].events(&desk);
    let names: Vec<_> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    let place = |name| names.iter().rposition(|it| *it == name);
    assert!(place("leading") < place("lost") && place("lost") < place("following"), "{names:?}");
    assert_eq!(all[0].terms(&desk, 1), [first_term], "it does not lead again before its turn");
    assert!(term > first_term);
}

#[test]
fn elect_goes_on_while_a_minority_of_the_masters_is_frozen() {
    let (fleet, desk) = vouched();
    let all = candidates(&fleet, &desk, 3);
    let term = all[0].terms(&desk, 1)[0];
    one_after_the_other(&desk, 1);
    fleet[1].stop();
    all[0].running.signal(Signal::KILL);
    let (leader, term) = next_leader(&all[1..], &desk, term);
    one_after_the_other(&desk, 2);
    all[leader + 1].running.signal(Signal::TERM);
    let (last, _) = next_leader(&all[1..], &desk, term);
    assert_ne!(last, leader);
    fleet[1].cont();
    one_after_the_other(&desk, 3);
}

#[test]
fn elect_has_one_leader_again_after_all_masters_lost_everything() {
    let (fleet, desk) = vouched();
    let all = candidates(&fleet, &desk, 8);
    let term = all[0].terms(&desk, 1)[0];
    one_after_the_other(&desk, 1);
    let start = Instant::now();
    fleet.iter().for_each(Node::restart);
    let restarted = start.elapsed();
    let (_, next) = next_leader(&all, &desk, term);
    eprintln!("masters restarted after {restarted:?}, a leader after {:?}", start.elapsed());
    assert!(next > term, "{next} {term}");
    let lost = all[0].named(&desk, "lost");
    assert_eq!(lost.len(), 1, "the leader before stopped its CMD: {lost:?}");
    one_after_the_other(&desk, 2);
}
