//! `--fenced`: the number that the tool prints, and that CMD gets.

use super::*;
use crate::exec::events;

/// Starts a fleet and vouches for its nodes, because with the restart guard on they would not grant
/// yet.
fn vouched() -> Fleet {
    let fleet = Fleet::start(3);
    run(&mut on(&fleet, &["init", "--yes"])).with_code(0);
    fleet
}

fn on(fleet: &Fleet, arguments: &[&str]) -> Command {
    tool_at(&fleet.urls(), &[], arguments)
}

#[test]
fn fenced_acquire_prints_the_number_after_the_token() {
    let fleet = vouched();
    let first = run(&mut on(&fleet, &["acquire", "--fenced", "deploy"])).with_code(0);
    let (token, fence) = first.out.trim().split_once(' ').expect("two words");
    let fence: u64 = fence.parse().expect("a number");
    run(&mut on(&fleet, &["release", "deploy", token])).with_code(0);
    let next = run(&mut on(&fleet, &["acquire", "--fenced", "--json", "deploy"])).with_code(0);
    // This is usually the next number, but a greater one if the counters of two nodes began in
    // different seconds.
    assert!(next.json()["fence"].as_u64().expect("a number") > fence, "{next:?}");
    let other = run(&mut on(&fleet, &["acquire", "--json", "other"])).with_code(0);
    assert!(other.json().get("fence").is_none(), "{other:?}");
}

#[test]
fn fenced_exec_gives_its_number_to_cmd_and_not_that_of_an_exec_around_it() {
    let fleet = vouched();
    let show = "echo \"<${REDLATCH_FENCE-none}>\"";
    let fenced = ["exec", "--fenced", "--json", "-v", "deploy", "-c", show];
    let ended = run(&mut on(&fleet, &fenced)).with_code(0);
    let number = ended.out.trim().trim_matches(['<', '>']);
    let fence: u64 = number.parse().expect("a number");
    let acquired = events(&ended).into_iter().find(|event| event["event"] == "acquired");
    assert_eq!(acquired.expect("it was acquired")["fence"], fence);
    let mut plain = on(&fleet, &["exec", "deploy", "-c", show]);
    let ended = run(plain.env("REDLATCH_FENCE", "5")).with_code(0);
    assert_eq!(ended.out, "<none>\n");
    // The flag has a variable, as every flag has.
    let mut by_variable = on(&fleet, &["exec", "deploy", "-c", show]);
    let ended = run(by_variable.env("REDLATCH_FENCED", "true")).with_code(0);
    let next: u64 = ended.out.trim().trim_matches(['<', '>']).parse().expect("a number");
    assert!(next > fence, "{next} after {fence}");
}

#[test]
fn fenced_set_has_a_number_for_each_key_in_the_order_of_the_command_line() {
    let fleet = vouched();
    let first = run(&mut on(&fleet, &["acquire", "--fenced", "a"])).with_code(0);
    let (token, _) = first.out.trim().split_once(' ').expect("two words");
    run(&mut on(&fleet, &["release", "a", token])).with_code(0);
    // Makes the numbers of `a` greater than those of `b`, whose counter begins with the time of its
    // first use.
    for node in fleet.iter().filter(|node| node.get("redlatch:fence:{a}").is_some()) {
        node.command(&["INCRBY", "redlatch:fence:{a}", "1000000000000"]);
    }
    let arguments = ["acquire", "--fenced", "b", "a", "b"];
    let taken = run(&mut on(&fleet, &arguments)).with_code(0);
    let words: Vec<&str> = taken.out.split_whitespace().collect();
    let [token, b, a] = words[..] else { panic!("a token and two numbers: {taken:?}") };
    let counted = |key: &str| {
        let counter = format!("redlatch:fence:{{{key}}}");
        let stored = fleet.iter().filter_map(|node| node.get(&counter));
        stored.map(|digits| String::from_utf8(digits).unwrap()).max().expect("it counts")
    };
    assert_eq!((a, b), (&counted("a")[..], &counted("b")[..]));
    assert_ne!(a, b);
    run(&mut on(&fleet, &["release", "a", "b", token])).with_code(0);
    let json = run(&mut on(&fleet, &["acquire", "--fenced", "--json", "b", "a"])).with_code(0);
    let json = json.json();
    assert_eq!(json["fence"], json["fences"]["b"], "{json}");
    assert_eq!(json["fences"]["a"], counted("a").parse::<u64>().unwrap(), "{json}");
    let token = json["token"].as_str().expect("a token");
    run(&mut on(&fleet, &["release", "a", "b", token])).with_code(0);
    let show = "echo \"$REDLATCH_FENCE $REDLATCH_FENCES\"";
    let exec = ["exec", "--fenced", "--json", "-v", "--also", "a", "b", "-c", show];
    let ended = run(&mut on(&fleet, &exec)).with_code(0);
    let (fence, fences) = ended.out.trim().split_once(' ').expect("two words");
    let fences: serde_json::Value = serde_json::from_str(fences).expect("an object");
    assert_eq!(fences["b"].to_string(), fence);
    assert_eq!(fences.as_object().map(|it| it.len()), Some(2));
    let acquired = events(&ended).into_iter().find(|event| event["event"] == "acquired");
    assert_eq!(acquired.expect("it was acquired")["fences"], fences);
    // An exec does not pass on the numbers of an outer exec.
    let mut plain = on(&fleet, &["exec", "c", "-c", "echo \"<${REDLATCH_FENCES-none}>\""]);
    let ended = run(plain.env("REDLATCH_FENCES", "{}")).with_code(0);
    assert_eq!(ended.out, "<none>\n");
}

#[test]
fn fenced_hold_prints_the_number_after_the_token() {
    let fleet = vouched();
    let ended = run(&mut on(&fleet, &["hold", "--fenced", "--max-hold", "4s", "deploy"]));
    let words: Vec<&str> = ended.out.split_whitespace().collect();
    assert_eq!(words.len(), 2, "{ended:?}");
    assert!(words[1].parse::<u64>().is_ok(), "{ended:?}");
}

#[test]
fn fenced_without_the_restart_guard_is_refused() {
    let fleet = Fleet::start(3);
    let ended = run_on(&fleet, &["acquire", "--fenced", "deploy"]).with_code(125);
    assert!(ended.errors.contains("the restart guard is off"), "{ended:?}");
    assert!(ended.out.is_empty());
}
