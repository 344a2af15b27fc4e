//! `elect`: a CMD that runs where its candidate leads.

use super::elections::*;
use super::exec::{events, names, state_of};
use super::*;

#[test]
fn elect_once_leads_once_and_ends_with_the_code_of_cmd() {
    let (fleet, desk) = vouched();
    let script = "echo \"$REDLATCH_TERM $REDLATCH_FENCE $REDLATCH_TOKEN\"; exit 7";
    let mut once = elect(&fleet, &desk, "web-1", &["--once"], script);
    let ended = run(once.env("REDLATCH_TERM", "5")).with_code(7);
    let words: Vec<&str> = ended.out.split_whitespace().collect();
    let events = events(&ended);
    let term = events.iter().find(|it| it["event"] == "leading").expect("it led")["term"].clone();
    assert_eq!((words[0], words[1]), (&*term.to_string(), &*term.to_string()));
    assert!(words[2].ends_with(":web-1@web-1:80"), "{}", words[2]);
    let ours = ["leading", "acquired", "child_exit", "released"];
    assert!(ours.iter().all(|name| names(&events).contains(name)), "{events:?}");
    assert_eq!(values(&fleet, "scheduler"), [None, None, None]);
    for (script, code) in [("kill -9 $$", 137), ("exit 0", 0)] {
        run(&mut elect(&fleet, &desk, "web-1", &["--once"], script)).with_code(code);
    }
    // A CMD that exec starts has no term.
    let mut plain = on(&fleet, &["exec", "other", "-c", "echo \"<${REDLATCH_TERM-none}>\""]);
    assert_eq!(run(plain.env("REDLATCH_TERM", "5")).with_code(0).out, "<none>\n");
}

#[test]
fn elect_finds_a_cmd_that_cannot_be_run_before_it_campaigns() {
    let (fleet, _desk) = vouched();
    for (cmd, code) in [("no-such-command", 127), ("/", 126)] {
        let ended = run(&mut on(&fleet, &["elect", "scheduler", "--", cmd])).with_code(code);
        assert!(ended.errors.contains(cmd), "{ended:?}");
    }
    assert_eq!(values(&fleet, "scheduler"), [None, None, None]);
}

#[test]
fn elect_campaigns_again_when_cmd_has_ended_until_a_signal_comes() {
    let (fleet, desk) = vouched();
    let script = "echo $REDLATCH_TERM >> terms; [ -e go ] || exit 0; \
        trap 'exit 9' TERM; trap 'rm up' HUP; echo up > up; \
        while [ -e up ]; do sleep 0.05; done; exit 0";
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &[], script);
    candidate.terms(&desk, 3);
    desk.put("go");
    desk.wait_for("up");
    let led = desk.lines("terms").len();
    // To many programs SIGHUP does not mean that they are to end.
    candidate.running.signal(Signal::HUP);
    eventually(LIMIT, "it leads again", || desk.lines("terms").len() > led);
    desk.wait_for("up");
    let terms: Vec<u64> = desk.lines("terms").iter().map(|it| it.parse().unwrap()).collect();
    assert!(terms.windows(2).all(|two| two[0] < two[1]), "{terms:?}");
    assert!(candidate.named(&desk, "pausing").is_empty(), "no CMD failed");
    candidate.running.signal(Signal::TERM);
    candidate.running.end(LIMIT).with_code(9);
    assert_eq!(desk.lines("terms").len(), terms.len(), "it led after SIGTERM");
    assert_eq!(values(&fleet, "scheduler"), [None, None, None]);
}

#[test]
fn elect_pauses_before_it_campaigns_again_when_cmd_has_failed() {
    let (fleet, desk) = vouched();
    let script = "echo run >> runs; exit 3";
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &[], script);
    candidate.terms(&desk, 2);
    eventually(LIMIT, "it fails twice", || candidate.named(&desk, "pausing").len() == 2);
    let pauses = candidate.named(&desk, "pausing");
    let pauses: Vec<_> = pauses.iter().map(|event| event["pause_ms"].as_u64()).collect();
    assert_eq!(pauses, [Some(5_000), Some(10_000)]);
    // Meanwhile another candidate leads.
    let other = CandidateProcess::start(&fleet, &desk, "web-2", &[], UNTIL_STOPPED);
    other.terms(&desk, 1);
    assert_eq!(desk.lines("runs").len(), 2);
    candidate.running.signal(Signal::INT);
    candidate.running.end(LIMIT).with_code(130);
}

#[test]
fn elect_shows_in_each_term_that_it_leads() {
    let (fleet, desk) = vouched();
    let script = "cat ready >> seen; [ -e go ] || { touch go; exit 1; }; \
        echo up > up; while [ -e up ]; do sleep 0.05; done";
    let flags = ["--ready-file", "ready", "--metrics-file", "x.prom"];
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &flags, script);
    let metrics = |name: &str, value: &str| {
        let start = format!("redlatch_{name}{{");
        let is_it = |line: &String| line.starts_with(&start) && line.ends_with(value);
        eventually(LIMIT, &format!("{name} is{value}"), || desk.lines("x.prom").iter().any(is_it));
    };
    eventually(LIMIT, "it pauses", || !candidate.named(&desk, "pausing").is_empty());
    metrics("lock_held", " 0");
    metrics("leader", " 0");
    assert!(!desk.path("ready").exists(), "it does not lead");
    desk.wait_for("up");
    metrics("lock_held", " 1");
    metrics("leader", "election=\"scheduler\"} 1");
    let id = candidate.running.id().to_string();
    assert_eq!(desk.lines("seen"), [&*id, &*id], "its number is in the ready file in both terms");
}

#[test]
fn elect_waits_for_the_leader_and_ends_by_a_signal() {
    let (fleet, desk) = vouched();
    let first = CandidateProcess::start(&fleet, &desk, "web-1", &[], UNTIL_STOPPED);
    first.terms(&desk, 1);
    let second = CandidateProcess::start(&fleet, &desk, "web-2", &[], "echo led >> led");
    eventually(LIMIT, "it follows", || {
        second.named(&desk, "following").iter().any(|event| event["name"] == "web-1")
    });
    wait_in_line(&fleet, 1);
    second.running.signal(Signal::TERM);
    second.running.end(LIMIT).with_code(143);
    wait_in_line(&fleet, 0);
    assert!(!desk.path("led").exists());
}

#[test]
fn elect_leads_after_a_leader_that_was_killed() {
    let (fleet, desk) = vouched();
    let first = CandidateProcess::start(&fleet, &desk, "web-1", &["-t", "3s"], UNTIL_STOPPED);
    let term = first.terms(&desk, 1)[0];
    let cmd = desk.process("up");
    let second = CandidateProcess::start(&fleet, &desk, "web-2", &["-t", "3s"], "sleep 60");
    wait_in_line(&fleet, 1);
    first.running.signal(Signal::KILL);
    assert!(second.terms(&desk, 1)[0] > term);
    assert_eq!(state_of(cmd), None, "the kernel kills the CMD of a killed leader");
    leader_is(&fleet, "web-2 at web-2:80 leads");
}

/// Takes the lock away from its holder, as if every node had given it to another client.
fn take_away(fleet: &Fleet) {
    fleet.command(&["SET", "scheduler", "another's", "PX", "2000"]);
}

#[test]
fn elect_stops_cmd_when_the_lock_is_lost_and_campaigns_again() {
    let (fleet, desk) = vouched();
    let script = "echo $$ >> up; while [ -e up ]; do sleep 0.05; done";
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &["-t", "3s"], script);
    candidate.terms(&desk, 1);
    let cmd = desk.process("up");
    take_away(&fleet);
    let terms = candidate.terms(&desk, 2);
    assert!(terms[0] < terms[1], "{terms:?}");
    assert_eq!(state_of(cmd), None);
    assert_eq!(candidate.named(&desk, "lost")[0]["reason"], "gone");
    assert!(candidate.named(&desk, "pausing").is_empty(), "CMD did not fail");
}

#[test]
fn elect_once_that_loses_the_lock_is_124() {
    let (fleet, desk) = vouched();
    let flags = ["-t", "3s", "--once"];
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &flags, UNTIL_STOPPED);
    desk.wait_for("up");
    take_away(&fleet);
    candidate.running.end(LIMIT).with_code(124);
}

#[test]
fn elect_goes_on_when_a_quorum_of_nodes_is_there_again() {
    let (fleet, desk) = vouched();
    (0..2).for_each(|node| fleet[node].stop());
    let flags = ["--no-quorum-wait", "300ms"];
    let candidate = CandidateProcess::start(&fleet, &desk, "web-1", &flags, UNTIL_STOPPED);
    eventually(LIMIT, "it says so", || {
        candidate.named(&desk, "waiting").iter().any(|event| event["error"] == "no_quorum")
    });
    (0..2).for_each(|node| fleet[node].cont());
    candidate.terms(&desk, 1);
}

#[test]
fn elect_prints_who_leads() {
    let (fleet, desk) = vouched();
    let first = CandidateProcess::start(&fleet, &desk, "web-1", &[], UNTIL_STOPPED);
    let term = first.terms(&desk, 1)[0];
    let text = |name: &str, script: &str| {
        let words = ["elect", "--name", name, "--once", "scheduler", "-c", script];
        on(&fleet, &words)
    };
    let second = Running::start(&mut text("web-2", "true"));
    wait_in_line(&fleet, 1);
    // The term is known once the leader has written it.
    leader_is(&fleet, &format!("term {term}"));
    first.running.signal(Signal::TERM);
    let ended = second.end(LIMIT).with_code(0);
    let lines: Vec<&str> = ended.errors.lines().collect();
    assert!(lines[0].starts_with("redlatch: \"scheduler\": web-1 at web-1:80 leads"), "{lines:?}");
    let last = lines.last().expect("a line");
    let number = last.strip_prefix("redlatch: \"scheduler\": web-2 leads, term ");
    assert!(number.is_some_and(|it| it.parse::<u64>().is_ok_and(|it| it > term)), "{lines:?}");
    let quiet = run(text("web-2", "true").arg("-q"));
    assert_eq!(quiet.code(), 0);
}
