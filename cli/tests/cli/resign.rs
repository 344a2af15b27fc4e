//! `resign`: asks the leader to step down, and waits until it has.

use super::elections::*;
use super::*;

#[test]
fn resign_ends_cmd_and_another_candidate_leads() {
    let (fleet, desk) = vouched();
    let script = "trap 'echo stopped > stopped; exit 0' TERM; echo up > up-1; \
        while [ -e up-1 ]; do sleep 0.05; done";
    let first = CandidateProcess::start(&fleet, &desk, "web-1", &[], script);
    let term = first.terms(&desk, 1)[0];
    desk.wait_for("up-1");
    let second = CandidateProcess::start(&fleet, &desk, "web-2", &[], UNTIL_STOPPED);
    wait_in_line(&fleet, 1);
    let ended = run(&mut on(&fleet, &["resign", "--pause", "1h", "scheduler"])).with_code(0);
    let start = "scheduler: web-1@web-1:80 has stepped down; ";
    assert!(ended.out.starts_with(start) && ended.errors.is_empty(), "{ended:?}");
    assert_eq!(desk.lines("stopped"), ["stopped"]);
    assert!(second.terms(&desk, 1)[0] > term);
    leader_is(&fleet, "web-2 at web-2:80 leads");
    for event in ["asked_to_resign", "pausing"] {
        eventually(LIMIT, event, || !first.named(&desk, event).is_empty());
        assert_eq!(first.named(&desk, event)[0]["pause_ms"], 3_600_000, "{event}");
    }

    // It is no candidate meanwhile: nobody leads after the second has resigned, too.
    let json = run(&mut on(&fleet, &["resign", "--json", "--pause", "1h", "scheduler"]));
    let json = json.with_code(0).json();
    assert_eq!(fields(&json), ["key", "outcome", "resigned", "leader", "waited_ms"]);
    assert_eq!((&json["outcome"], &json["leader"]), (&"stepped_down".into(), &Value::Null));
    assert_eq!(json["resigned"], "web-2@web-2:80");
    let nobody = run(&mut on(&fleet, &["resign", "scheduler"])).with_code(1);
    assert_eq!((&*nobody.out, &*nobody.errors), ("scheduler: nobody leads\n", ""));
    let nobody = run(&mut on(&fleet, &["resign", "--json", "scheduler"])).with_code(1).json();
    assert_eq!((&nobody["outcome"], &nobody["resigned"]), (&"nobody".into(), &Value::Null));
    assert_eq!((first.terms(&desk, 1).len(), second.terms(&desk, 1).len()), (1, 1));
    // A signal ends a candidate that stays out.
    for candidate in [first, second] {
        candidate.running.signal(Signal::TERM);
        candidate.running.end(LIMIT).with_code(143);
    }
}

#[test]
fn resign_lets_the_only_candidate_lead_again_after_the_pause() {
    let (fleet, desk) = vouched();
    let leads = CandidateProcess::start(&fleet, &desk, "web-1", &[], UNTIL_STOPPED);
    leads.terms(&desk, 1);
    run(&mut on(&fleet, &["resign", "--pause", "1s", "scheduler"])).with_code(0);
    let terms = leads.terms(&desk, 2);
    assert!(terms[0] < terms[1], "{terms:?}");
}

#[test]
fn resign_ends_elect_once_with_the_code_of_cmd() {
    let (fleet, desk) = vouched();
    let script = "trap 'exit 9' TERM; echo up > up; while [ -e up ]; do sleep 0.05; done";
    let leads = CandidateProcess::start(&fleet, &desk, "web-1", &["--once"], script);
    desk.wait_for("up");
    run(&mut on(&fleet, &["resign", "scheduler"])).with_code(0);
    leads.running.end(LIMIT).with_code(9);
}

#[test]
fn resign_of_a_holder_that_does_not_listen_is_75() {
    let (fleet, _token) = fleet_with_lock(3, &["-t", "60s", "scheduler"]);
    for flags in [&["-w", "1s"][..], &["-n"]] {
        let words = [&["resign"], flags, &["scheduler"]].concat();
        let ended = run(&mut on(&fleet, &words)).with_code(75);
        assert!(ended.errors.ends_with(" still leads at the end of the wait\n"), "{ended:?}");
        assert!(ended.out.is_empty(), "{ended:?}");
    }
    let ended = run(&mut on(&fleet, &["resign", "--json", "-w", "1s", "scheduler"]));
    assert_eq!(ended.with_code(75).json()["error"], "contended");
}

#[test]
fn resign_without_a_quorum_is_69() {
    let (fleet, _token) = fleet_with_lock(3, &["-t", "60s", "scheduler"]);
    fleet.on([0, 1], Node::kill);
    let ended = run(&mut on(&fleet, &["resign", "-w", "1s", "scheduler"])).with_code(69);
    assert!(ended.errors.contains("it is not known who leads"), "{ended:?}");
}
