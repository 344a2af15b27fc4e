//! `--fair`: the line, as a script meets it.

use super::*;
use crate::exec::events;

#[test]
fn fair_exec_waits_in_line_and_gets_the_lock_when_it_is_released() {
    let fleet = Fleet::start(3);
    let token = acquired(&fleet, &["--fair", "deploy"]);
    let fair = ["exec", "--fair", "--json", "-v", "deploy", "-c", "echo mine"];
    let waiting = Running::start(&mut tool_on(&fleet, &fair));
    eventually(LIMIT, "it stands in line", || {
        let count = |node: &Node| format!("{:?}", node.command(&["ZCARD", "deploy:line"]));
        fleet.iter().all(|node| count(node).contains('1'))
    });
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    let ended = waiting.end(LIMIT).with_code(0);
    assert_eq!(ended.out, "mine\n");
    assert!(events(&ended).iter().any(|event| event["event"] == "waiting"), "{ended:?}");
    nothing_is_left(&fleet);
}

#[test]
fn fair_by_variable_is_the_same() {
    let fleet = Fleet::start(3);
    let mut command = tool_on(&fleet, &["exec", "deploy", "-c", "true"]);
    run(command.env("REDLATCH_FAIR", "true")).with_code(0);
    nothing_is_left(&fleet);
}
