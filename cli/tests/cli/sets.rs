//! Locks over several keys: `acquire KEY KEY...`, `exec --also KEY`, and their output.

use serde_json::json;

use super::*;
use crate::exec::events;

fn keys(fleet: &Fleet) -> Vec<String> {
    let text = |(_, key): (usize, Vec<u8>)| String::from_utf8_lossy(&key).into_owned();
    let mut keys: Vec<String> = fleet.keys_everywhere().into_iter().map(text).collect();
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn several_keys_are_acquired_extended_and_released_under_one_token() {
    let fleet = Fleet::start(3);
    let taken = run_on(&fleet, &["acquire", "--json", "b", "a", "b"]).with_code(0).json();
    assert_eq!((&taken["key"], &taken["keys"]), (&json!("b"), &json!(["a", "b"])), "{taken}");
    let token = taken["token"].as_str().expect("a token").to_owned();
    assert_eq!(keys(&fleet), ["a", "b"]);
    let refused = run_on(&fleet, &["acquire", "-n", "--json", "b", "c"]).with_code(75).json();
    assert_eq!(refused["error"], "contended", "{refused}");
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("for \"b\", one of 2 keys"), "{message}");
    assert_eq!(refused["holder"], token, "{refused}");
    assert_eq!(keys(&fleet), ["a", "b"]);
    let longer = run_on(&fleet, &["extend", "-t", "50s", "--json", "a", "b", &token]);
    assert_eq!(longer.with_code(0).json()["keys"], json!(["a", "b"]));
    let is_longer = |node: &&Node| node.pttl("a") > 40_000 && node.pttl("b") > 40_000;
    assert!(fleet.iter().filter(is_longer).count() >= 2);
    // A node that lost one of the keys extends none of them.
    let lost = || fleet.iter().take(2);
    lost().for_each(|node| drop(node.command(&["DEL", "b"])));
    let refused = run_on(&fleet, &["extend", "-t", "60s", "a", "b", &token]).with_code(1);
    assert!(refused.errors.contains("for \"b\", one of 2 keys"), "{refused:?}");
    assert!(lost().all(|node| node.pttl("a") <= 50_000), "a part of the keys was prolonged");
    let set = ["SET", "b", &token, "PX", "50000"];
    lost().for_each(|node| drop(node.command(&set)));
    let gone = run_on(&fleet, &["release", "--json", "a", "b", &token]).with_code(0).json();
    assert_eq!((&gone["outcome"], &gone["keys"]), (&json!("released"), &json!(["a", "b"])));
    fleet.wait_empty();
    let one = run_on(&fleet, &["acquire", "--json", "a"]).with_code(0).json();
    assert!(one.get("keys").is_none(), "{one}");
}

#[test]
fn exec_locks_also_the_other_keys() {
    let fleet = Fleet::start(3);
    let shown = "echo \"$REDLATCH_KEY\"";
    let arguments = ["exec", "--also", "c", "--also", "a", "--json", "-v", "b", "-c", shown];
    let ended = run_on(&fleet, &arguments).with_code(0);
    assert_eq!(ended.out, "b\n");
    let acquired = events(&ended).into_iter().find(|event| event["event"] == "acquired");
    let acquired = acquired.expect("it was acquired");
    assert_eq!((&acquired["key"], &acquired["keys"]), (&json!("b"), &json!(["a", "b", "c"])));
    fleet.wait_empty();
    let token = run_on(&fleet, &["acquire", "a"]).with_code(0).out.trim().to_owned();
    let ended = run_on(&fleet, &["exec", "-n", "--also", "a", "b", "true"]).with_code(75);
    assert!(ended.errors.contains("for \"a\", one of 2 keys"), "{ended:?}");
    assert_eq!(keys(&fleet), ["a"]);
    run_on(&fleet, &["release", "a", &token]).with_code(0);
    let ended = run_on(&fleet, &["exec", "-v", "--also", "a", "b", "true"]).with_code(0);
    // A node to which the tool connects late gets the key with the first renewal.
    let held =
        |nodes| ended.errors.contains(&format!("holds \"b\" and 1 more key on {nodes} of 3"));
    assert!(held(2) || held(3), "{ended:?}");
}

#[test]
fn hold_locks_also_the_other_keys() {
    let fleet = Fleet::start(3);
    let arguments = ["hold", "--also", "a", "--max-hold", "1s", "--json", "-v", "b"];
    let ended = run_on(&fleet, &arguments);
    let acquired = ended.out.lines().find(|line| line.contains("\"acquired\"")).expect("it held");
    let acquired: serde_json::Value = serde_json::from_str(acquired).expect("an object");
    assert_eq!((&acquired["key"], &acquired["keys"]), (&json!("b"), &json!(["a", "b"])));
    // hold releases the keys at its end, long before their ttl of 30 s is over.
    let taken = run_on(&fleet, &["acquire", "a"]).with_code(0);
    assert!(taken.ran < LIMIT / 2, "{taken:?}");
    let token = taken.out.trim().to_owned();
    let ended = run_on(&fleet, &["hold", "-n", "--also", "a", "b"]).with_code(75);
    assert!(ended.errors.contains("for \"a\", one of 2 keys"), "{ended:?}");
    run_on(&fleet, &["release", "a", &token]).with_code(0);
    fleet.wait_empty();
}

#[test]
fn too_many_keys_and_none_are_refused() {
    let fleet = Fleet::start(3);
    let names: Vec<String> = (0..65).map(|number| format!("k{number}")).collect();
    let mut arguments = vec!["acquire"];
    arguments.extend(names.iter().map(String::as_str));
    let ended = run_on(&fleet, &arguments).with_code(125);
    assert!(ended.errors.contains("keys: 65 different keys are given"), "{ended:?}");
    let ended = run_on(&fleet, &["acquire"]).with_code(125);
    assert!(ended.errors.contains("<KEY>"), "{ended:?}");
    assert!(keys(&fleet).is_empty());
}
