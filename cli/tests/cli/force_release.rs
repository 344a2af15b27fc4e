//! `force-release`: deletes exactly the values that it has shown, after it has asked.

use super::status::Asked;
use super::*;

fn set(node: &Node, value: &str) {
    assert!(node.command(&["SET", "key", value, "PX", "600000"]).is_ok());
}

#[test]
fn force_release_deletes_a_lock_of_any_client_and_says_which() {
    let (fleet, token) = fleet_with_lock(3, &["key"]);
    let ended = run_on(&fleet, &["force-release", "--yes", "key"]).with_code(0);
    let lines: Vec<String> =
        fleet.iter().map(|it| format!("deleted {token} on {}\n", label(it))).collect();
    assert_eq!((ended.out, ended.errors), (lines.concat(), String::new()));
    assert_eq!(fleet.keys_everywhere(), []);
    run_on(&fleet, &["release", "key", &token]).with_code(1);
    let free = run_on(&fleet, &["force-release", "--yes", "key"]).with_code(0);
    assert_eq!(free.out, "nothing to delete: the key is free\n");

    // Values of other programs: empty, with a line end, and very long.
    let long = "x".repeat(5000);
    for (node, value) in fleet.iter().zip(["", "a\r\nb", &long]) {
        set(node, value);
    }
    let json = run_on(&fleet, &["force-release", "--yes", "--json", "key"]).with_code(0).json();
    assert_eq!(fields(&json), ["key", "outcome", "nodes"]);
    assert_eq!(json["outcome"], "released");
    let token = |index: usize| json["nodes"][index]["token"].as_str().unwrap_or("none").to_owned();
    assert_eq!((token(0).as_str(), token(1).as_str()), ("", "a\\r\\nb"));
    for index in 0..3 {
        assert_eq!(fields(&json["nodes"][index]), ["node", "outcome", "token", "detail"]);
        assert_eq!(json["nodes"][index]["outcome"], "deleted", "{json}");
    }
    assert_eq!(fleet.keys_everywhere(), []);
    let json = run_on(&fleet, &["force-release", "-y", "--json", "key"]).with_code(0).json();
    assert_eq!(json["outcome"], "already_free");
}

#[test]
fn force_release_without_a_terminal_or_yes_sends_nothing() {
    let fleet = Fleet::start(1);
    set(&fleet[0], "x");
    let monitor = fleet[0].monitor();
    let ended = run_on(&fleet, &["force-release", "key"]).with_code(125);
    assert!(ended.errors.contains("stdin is no terminal"), "{ended:?}");
    assert!(ended.errors.contains("--yes if you know that the holder is gone"), "{ended:?}");
    let asked = monitor.lines();
    assert!(!asked.iter().any(|line| line.contains("HELLO")), "{asked:?}");
    assert_eq!(values(&fleet, "key"), [Some("x".to_owned())]);
}

/// `force-release` on a terminal, after it has asked its question.
#[track_caller]
fn ask(fleet: &Fleet, flags: &[&str]) -> Asked {
    let mut command = tool_on(fleet, &[&["force-release"], flags, &["key"]].concat());
    command.env("NO_COLOR", "1");
    Asked::start(command, "exactly what is shown:\r\n")
}

#[test]
fn force_release_shows_the_holder_and_asks() {
    let (fleet, token) = fleet_with_lock(3, &["key"]);
    for answer in ["\n", "no\n", "yes please\n", "\x04"] {
        let asked = ask(&fleet, &[]);
        assert!(asked.shown.starts_with("key: held by "), "{}", asked.shown);
        assert_eq!(asked.shown.matches(&token).count(), 3, "{}", asked.shown);
        let ended = asked.answer(answer, 1);
        assert!(ended.errors.contains("not confirmed; nothing was deleted"), "{ended:?}");
        is_held_everywhere(&fleet, "key", &token);
    }
    let ended = ask(&fleet, &[]).answer("yes\n", 0);
    assert_eq!(ended.out.matches(&token).count(), 3, "{ended:?}");
    assert_eq!(fleet.keys_everywhere(), []);
}

#[test]
fn force_release_does_not_delete_what_changed_during_the_question() {
    let fleet = Fleet::start(3);
    fleet.iter().for_each(|node| set(node, "the old holder"));
    let asked = ask(&fleet, &[]);
    // The lock changes hands on two nodes, and ends on the third.
    set(&fleet[0], "the new holder");
    set(&fleet[1], "the old holder, and more");
    assert!(fleet[2].command(&["DEL", "key"]) == support::Value::Int(1));
    let ended = asked.answer("yes\n", 1);
    assert_eq!(ended.out, "");
    assert_eq!(ended.errors.matches("holds something else by now").count(), 2, "{ended:?}");
    let left = ["the new holder", "the old holder, and more"];
    assert_eq!(values(&fleet, "key"), [Some(left[0].into()), Some(left[1].into()), None]);

    let asked = ask(&fleet, &["--json"]);
    set(&fleet[0], "the newest holder");
    let json = asked.answer("y\n", 1).json();
    assert_eq!(json["outcome"], "changed");
    let outcomes: Vec<&Value> = (0..3).map(|index| &json["nodes"][index]["outcome"]).collect();
    assert_eq!(outcomes, ["changed", "deleted", "free"]);
    assert_eq!(values(&fleet, "key"), [Some("the newest holder".into()), None, None]);
}

#[test]
fn force_release_names_nodes_that_it_did_not_reach_and_needs_a_quorum() {
    let fleet = Fleet::start(3);
    fleet.iter().for_each(|node| set(node, "x"));
    fleet[0].kill();
    let ended = run_on(&fleet, &["force-release", "-y", "key"]).with_code(0);
    assert_eq!(ended.out.lines().count(), 2, "{ended:?}");
    let told = format!("not deleted on {}: not connected", label(&fleet[0]));
    assert!(ended.errors.contains(&told), "{ended:?}");

    // A key of another type is not a lock, so it stays.
    assert!(fleet[1].command(&["RPUSH", "key", "x"]) == support::Value::Int(1));
    let ended = run_on(&fleet, &["force-release", "-y", "key"]).with_code(1);
    assert!(ended.errors.contains("holds a value that is not a lock"), "{ended:?}");
    fleet[1].kill();
    set(&fleet[2], "x");
    let ended = run_on(&fleet, &["force-release", "-y", "key"]).with_code(69);
    assert!(ended.errors.contains("no quorum"), "{ended:?}");
    assert_eq!(fleet[2].get("key").as_deref(), Some(&b"x"[..]), "a minority was written to");
}
