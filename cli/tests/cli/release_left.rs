//! `release` names the nodes that did not confirm it, and says for how long a key may stay there.

use super::exec_lost::now_ms;
use super::*;

/// Runs `release` with long timeouts, for nodes that are connected late.
#[track_caller]
fn release(fleet: &Fleet, flags: &[&str], token: &str) -> Ended {
    let patient = ["release", "--node-timeout", "3s", "--connect-timeout", "3s"];
    run_on(fleet, &[&patient, flags, &["deploy", token]].concat())
}

/// Releases the lock of the token, and returns what was printed on stderr.
#[track_caller]
fn released(fleet: &Fleet, flags: &[&str], token: &str) -> String {
    let ended = release(fleet, flags, token).with_code(0);
    assert_eq!(ended.out, "released\n");
    ended.errors
}

#[test]
fn release_names_the_nodes_that_did_not_confirm_it_and_how_long_their_key_may_stay() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    fleet[2].stop();
    let (frozen, others) = (label(&fleet[2]), [0, 1].map(|node| label(&fleet[node])));
    let stays = "the key may stay there for 60s at most (--max-ttl)";
    let told = released(&fleet, &[], &token);
    assert_eq!(told, format!("redlatch: no confirmation of {frozen}: {stays}\n"));
    fleet[2].cont();
    assert_eq!(fleet[2].get("deploy").map(String::from_utf8), Some(Ok(token)), "it was frozen");
    fleet[2].command(&["DEL", "deploy"]);

    // --max-ttl bounds the time, also if the lock was lost.
    let token = acquired(&fleet, &["deploy"]);
    fleet[2].stop();
    let told = released(&fleet, &["--max-ttl", "90s"], &token);
    assert!(told.contains("may stay there for 90s at most"), "{told}");
    let again = release(&fleet, &[], &token).with_code(1);
    assert!(again.errors.contains("already expired"), "{again:?}");
    assert!(again.errors.contains(&format!("no confirmation of {frozen}")), "{again:?}");
    let quiet = release(&fleet, &["-q"], &token).with_code(1);
    assert_eq!((quiet.out.as_str(), quiet.errors.as_str()), ("", ""));
    fleet[2].cont();
    fleet[2].command(&["DEL", "deploy"]);

    // Too few nodes confirmed the release.
    let token = acquired(&fleet, &["deploy"]);
    [0, 1].iter().for_each(|&node| fleet[node].stop());
    let ended = release(&fleet, &[], &token).with_code(69);
    let told = format!("no confirmation of {}: {stays}", others.join(", "));
    assert!(ended.errors.contains(&told) && ended.out.is_empty(), "{ended:?}");
    [0, 1].iter().for_each(|&node| fleet[node].cont());
}

#[test]
fn release_in_json_names_the_nodes_that_did_not_confirm_it() {
    let fleet = Fleet::start(3);
    let as_json =
        |fleet: &Fleet, token: &str| release(fleet, &["--json"], token).with_code(0).json();
    let token = acquired(&fleet, &["deploy"]);
    let whole = as_json(&fleet, &token);
    assert_eq!(whole["unconfirmed"], serde_json::json!([]), "{whole}");
    assert_eq!(whole["unconfirmed_until_unix_ms"], Value::Null, "{whole}");
    let token = acquired(&fleet, &["deploy"]);
    fleet[1].kill();
    let before = now_ms();
    let part = as_json(&fleet, &token);
    assert_eq!(part["unconfirmed"], serde_json::json!([label(&fleet[1])]), "{part}");
    let until = part["unconfirmed_until_unix_ms"].as_u64().expect("a moment");
    assert!((before + 60_000..=now_ms() + 61_000).contains(&until), "{until} at {before}");
    assert_eq!(part["outcome"], "released");
}

#[test]
fn release_that_every_node_confirms_says_no_more() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    assert_eq!(released(&fleet, &[], &token), "");
    nothing_is_left(&fleet);
}
