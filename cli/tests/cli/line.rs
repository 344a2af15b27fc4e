//! Waiting in line, with the tool.

use super::*;
use crate::exec::events;

#[test]
fn exec_waits_in_line_and_gets_the_lock_when_it_is_released() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    let words = ["exec", "--json", "-v", "deploy", "-c", "echo mine"];
    let waiting = Running::start(&mut tool_on(&fleet, &words));
    eventually(LIMIT, "it stands in line", || {
        let count =
            |node: &Node| format!("{:?}", node.command(&["ZCARD", "redlatch:line:{deploy}"]));
        fleet.iter().all(|node| count(node).contains('1'))
    });
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    let ended = waiting.end(LIMIT).with_code(0);
    assert_eq!(ended.out, "mine\n");
    assert!(events(&ended).iter().any(|event| event["event"] == "waiting"), "{ended:?}");
    nothing_is_left(&fleet);
}

#[test]
fn status_shows_the_line_in_its_order() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    let mut waiting = Vec::new();
    for owner in ["web-1", "web-2"] {
        let words = ["exec", "--owner", owner, "deploy", "-c", "true"];
        waiting.push(Running::start(&mut tool_on(&fleet, &words)));
        let in_line = support::Value::Int(waiting.len() as i64);
        eventually(LIMIT, "it stands in line", || {
            fleet.iter().all(|node| node.command(&["ZCARD", "redlatch:line:{deploy}"]) == in_line)
        });
    }
    let text = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(text.out.ends_with("\n2 in line: web-1, web-2\n"), "{text:?}");
    let json = run_on(&fleet, &["status", "--json", "deploy"]).with_code(1).json();
    let line = json[0]["line"].as_array().unwrap();
    let owners: Vec<&Value> = line.iter().map(|it| &it["owner"]).collect();
    assert_eq!(owners, ["web-1", "web-2"]);
    assert!(line.iter().all(|it| it["nodes"] == 3 && it["token"].is_string()), "{json}");
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    for waiting in waiting {
        waiting.end(LIMIT).with_code(0);
    }
    let free = run_on(&fleet, &["status", "--json", "deploy"]).with_code(0).json();
    assert_eq!(free[0]["line"], Value::Array(Vec::new()), "{free}");
}
