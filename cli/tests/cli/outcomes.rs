//! The exit codes of `release`, `exec` and `hold` if the lock was lost before its release.

use super::exec::{Desk, exec, state_of};
use super::*;

/// Gives the key to another client on all nodes but the first.
fn take_from_majority(fleet: &Fleet, key: &str) {
    for node in fleet.iter().skip(1) {
        assert!(node.command(&["SET", key, "another's", "PX", "60000"]).is_ok());
    }
}

fn free(fleet: &Fleet, key: &str) {
    fleet.command(&["DEL", key]);
}

#[test]
fn release_of_a_lock_that_a_majority_lost_is_1_whichever_node_answers_first() {
    let fleet = Fleet::start(3);
    for round in 0..12 {
        let token = acquired(&fleet, &["deploy"]);
        // In each round a different node still holds the lock.
        for node in (0..3).filter(|node| node % 3 != round % 3) {
            let taken = round % 2 == 0;
            let change = ["SET", "deploy", "another's", "PX", "60000"];
            let words = if taken { &change[..] } else { &["DEL", "deploy"] };
            drop(fleet[node].command(words));
        }
        // The tool waits for a node to which it connects late.
        let patient = ["release", "--node-timeout", "9s", "--connect-timeout", "9s"];
        let ended = run_on(&fleet, &[&patient[..], &["deploy", &token]].concat()).with_code(1);
        let text = if round % 2 == 0 { "taken by other" } else { "already expired" };
        assert!(ended.out.is_empty() && ended.errors.contains(text), "{ended:?}");
        free(&fleet, "deploy");
    }
}

/// Runs the tool, and takes its lock away while the tool is stopped, so that its command ends, or a
/// signal asks it to end, before it can notice the loss. Returns its end and its last event. On a
/// busy machine the nodes may answer after the tool's last wait: then this tries again.
#[track_caller]
fn lost_at_the_end(
    fleet: &Fleet,
    tool: &mut Command,
    has_begun: impl Fn() -> bool,
    tell: impl Fn(&Running),
) -> (Ended, Value) {
    for _ in 0..20 {
        let running = Running::start(tool.stdin(Stdio::piped()));
        eventually(LIMIT, "the lock is held by a majority, and used", || {
            values(fleet, "key").iter().flatten().count() >= 2 && has_begun()
        });
        running.signal(Signal::STOP);
        eventually(LIMIT, "the tool is stopped", || state_of(running.id()) == Some('T'));
        take_from_majority(fleet, "key");
        tell(&running);
        running.signal(Signal::CONT);
        let ended = running.end(LIMIT);
        free(fleet, "key");
        let printed = [ended.out.lines(), ended.errors.lines()].into_iter().flatten().last();
        let last: Value = serde_json::from_str(printed.expect("events")).expect("JSON");
        if last["outcome"] != "unconfirmed" {
            return (ended, last);
        }
    }
    panic!("no release was decided in time");
}

#[test]
fn exec_whose_lock_was_lost_when_its_command_had_ended_is_124() {
    let (fleet, desk) = Desk::with_fleet(3);
    for (flags, cmd, code) in [
        (&["--json"][..], 0, 124),
        (&["--json", "--on-lost", "kill"], 7, 124),
        (&["--json", "--on-lost", "warn"], 7, 7),
    ] {
        let script = format!(
            "rm -f go; echo $$ > cmd; until [ -e go ]; do sleep 0.01; done; rm cmd; exit {cmd}"
        );
        let has_begun = || !desk.lines("cmd").is_empty();
        let mut tool = exec(&fleet, &desk, flags, &script);
        let (ended, released) = lost_at_the_end(&fleet, &mut tool, has_begun, |_| {
            let command = desk.process("cmd");
            desk.put("go");
            eventually(LIMIT, "CMD has ended", || state_of(command).is_none());
        });
        assert_eq!(released["outcome"], "taken_by_other", "{ended:?}");
        ended.with_code(code);
    }
}

#[test]
fn hold_whose_lock_was_lost_when_it_is_told_to_end_is_124() {
    let fleet = Fleet::start(3);
    let mut hold = tool_on(&fleet, &["hold", "--json", "key"]);
    let told = |tool: &Running| tool.signal(Signal::TERM);
    let (ended, last) = lost_at_the_end(&fleet, &mut hold, || true, told);
    // The tool may notice the loss before the signal.
    assert!(last["outcome"] == "taken_by_other" || last["event"] == "lost", "{ended:?}");
    ended.with_code(124);
}
