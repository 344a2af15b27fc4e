//! `init`: fresh nodes grant from then on, for every client, and the tool vouches for no node by
//! mistake.

use std::io::Write;

use super::status::Asked;
use super::*;

/// The tool on this fleet with the restart guard on.
fn guarded(fleet: &Fleet, arguments: &[&str]) -> Command {
    tool_at(&fleet.urls(), &["--node-timeout", "500ms"], arguments)
}

const WAY_OUT: &str = "redlatch init: on masters that are new, and that no client has used yet, it \
    makes their grants count at once\n";

/// The end of the line before the tip. Only this line is printed if a lock may be live.
const WAIT: &str = " s: nothing else is needed\n";

/// The node marker of every node.
fn markers(fleet: &Fleet) -> Vec<String> {
    values(fleet, "redlatch:node").into_iter().map(Option::unwrap_or_default).collect()
}

/// Runs the tool until new nodes refuse it and it prints the tip. On a busy machine a node may be
/// connected late. Then the tool knows of too few nodes in quarantine, and reports another cause.
#[track_caller]
fn refused_with_way_out(fleet: &Fleet, words: &[&str]) -> Ended {
    let mut refused = None;
    eventually(LIMIT, "it names the way out", || {
        forget_markers(fleet);
        let ended = run(&mut guarded(fleet, words)).with_code(69);
        let named = ended.errors.ends_with(&format!("{WAIT}{WAY_OUT}"));
        refused = Some(ended);
        named
    });
    refused.expect("it ran")
}

/// Deletes the node markers, as if no client had ever used these nodes.
fn forget_markers(fleet: &Fleet) {
    fleet.command(&["DEL", "redlatch:node"]);
}

/// After a clean restart of masters that keep their keys, the first client sees the restart. Later
/// clients see only that the marker was written lately. None of them may take these masters for
/// new, because the lock of another client may be live.
#[test]
fn init_is_not_named_after_a_restart_and_the_first_hint_is_to_wait() {
    let fleet = Fleet::with(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    run(&mut guarded(&fleet, &["init", "--yes"])).with_code(0);
    let token = run(&mut guarded(&fleet, &["acquire", "-t", "60s", "deploy"])).with_code(0).out;
    fleet.iter().for_each(Node::restart);
    // Waits, so that it is not the nodes' uptime that keeps them from granting.
    let is_up = |node: &Node| node.info("uptime_in_seconds").parse::<u64>().is_ok_and(|s| s >= 4);
    eventually(LIMIT, "they have been up for a while", || fleet.iter().all(is_up));
    let status = || run(&mut guarded(&fleet, &["status"])).with_code(69);
    let (first, later) = (status(), status());
    assert_eq!(first.out.matches(": it was restarted ").count(), 3, "{first:?}");
    // The output wraps each of the three texts.
    for part in [
        ": its node marker was written a short ",
        "  time ago: it was restarted or promoted, is new, or lost its keys\n",
    ] {
        assert_eq!(later.out.matches(part).count(), 3, "{later:?}");
    }
    let refused = run(&mut guarded(&fleet, &["exec", "-n", "other", "true"])).with_code(69);
    for text in [&first.out, &later.out, &refused.errors] {
        assert!(text.ends_with(WAIT) && text.contains("wait 6"), "{text}");
        assert!(!text.contains("init") && !text.contains("--no-restart-guard"), "{text}");
        assert!(!text.contains("Config::") && !text.contains("vouch"), "{text}");
    }
    assert!(values(&fleet, "deploy").iter().flatten().all(|held| *held == token.trim_end()));
}

#[test]
fn fresh_nodes_grant_after_init_and_not_before() {
    let fleet = Fleet::start(3);
    let refused = refused_with_way_out(&fleet, &["acquire", "-n", "deploy"]);
    assert!(refused.errors.contains("restart guard: "), "{refused:?}");
    assert!(refused.errors.contains("; its grants count in 60."), "{refused:?}");
    assert!(refused.errors.contains("; wait 61 s: nothing else is needed\n"), "{refused:?}");
    refused_with_way_out(&fleet, &["exec", "-n", "deploy", "--", "true"]);
    let quiet = run(&mut guarded(&fleet, &["acquire", "-nq", "deploy"])).with_code(69);
    assert_eq!(quiet.errors, "");
    let extended = ["extend", "deploy", &foreign_token()];
    assert!(!run(&mut guarded(&fleet, &extended)).errors.contains(WAY_OUT), "a lock may be live");
    let status = run(&mut guarded(&fleet, &["status"])).with_code(69);
    assert!(status.out.ends_with(WAIT), "another client has met them: {status:?}");
    forget_markers(&fleet);
    let status = run(&mut guarded(&fleet, &["status"])).with_code(69);
    assert!(status.out.ends_with(&format!("{WAIT}{WAY_OUT}")), "{status:?}");

    let vouched = run(&mut guarded(&fleet, &["init", "--yes"])).with_code(0);
    let lines: Vec<String> =
        fleet.iter().map(|it| format!("vouched for {}\n", label(it))).collect();
    assert_eq!((vouched.out, vouched.errors), (lines.concat(), String::new()));
    assert!(markers(&fleet).iter().all(|marker| marker.ends_with(" vouched")));
    run(&mut guarded(&fleet, &["acquire", "-n", "deploy"])).with_code(0);
    let status = run(&mut guarded(&fleet, &["status"])).with_code(0);
    assert!(status.out.starts_with("3 of 3 nodes can grant"), "{status:?}");
    assert!(!status.out.contains("redlatch init"), "{status:?}");

    let again = run(&mut guarded(&fleet, &["init", "-y", "--json"])).with_code(0).json();
    assert_eq!(fields(&again), ["vouched", "nodes"]);
    let labels: Vec<String> = fleet.iter().map(label).collect();
    assert_eq!(again["vouched"], serde_json::json!(labels));
    for (node, label) in again["nodes"].as_array().expect("a list").iter().zip(&labels) {
        let expected = serde_json::json!({"node": label, "outcome": "vouched", "detail": null});
        assert_eq!(*node, expected);
    }
    let quiet = run(&mut guarded(&fleet, &["init", "-yq"])).with_code(0);
    assert_eq!((quiet.out, quiet.errors), (String::new(), String::new()));
}

#[test]
fn init_without_a_terminal_or_yes_sends_nothing() {
    let fleet = Fleet::start(1);
    let monitor = fleet[0].monitor();
    let ended = run(&mut guarded(&fleet, &["init"])).with_code(125);
    assert!(ended.errors.contains("stdin is not a terminal"), "{ended:?}");
    assert!(ended.errors.contains("--yes if you vouch that no client believes in"), "{ended:?}");
    assert_eq!(ended.out, "");
    let asked = monitor.lines();
    assert!(!asked.iter().any(|line| line.contains("HELLO") || line.contains("INFO")), "{asked:?}");
}

#[test]
fn init_names_nodes_that_do_not_take_the_marker_and_needs_a_quorum() {
    let fleet = Fleet::start(5);
    fleet[0].kill();
    assert!(fleet[1].command(&["SET", "redlatch:node", "mine"]).is_ok());
    let ended = run(&mut guarded(&fleet, &["init", "--yes"])).with_code(0);
    assert_eq!(ended.out.lines().count(), 3, "{ended:?}");
    let [down, foreign] = [label(&fleet[0]), label(&fleet[1])];
    let told = format!("redlatch: not vouched for {down} (not connected: Connection refused), ");
    assert!(ended.errors.starts_with(&told), "{ended:?}");
    let told = format!("{foreign} (its marker key belongs to another program)");
    assert!(ended.errors.contains(&told), "{ended:?}");
    assert_eq!(fleet[1].get("redlatch:node").as_deref(), Some(&b"mine"[..]));
    let json = run(&mut guarded(&fleet, &["init", "--yes", "--json"])).with_code(0).json();
    assert_eq!(json["vouched"].as_array().map(Vec::len), Some(3), "{json}");
    assert_eq!(json["nodes"][0]["outcome"], "unreachable", "{json}");
    assert_eq!(json["nodes"][1]["outcome"], "wrong_type", "{json}");

    let rules = ["on", ">opensesame", "~*", "+@all", "-eval"];
    for node in fleet.iter().skip(2) {
        assert!(node.command(&[&["ACL", "SETUSER", "u"][..], &rules].concat()).is_ok());
        assert!(node.command(&["ACL", "SETUSER", "u", "resetkeys", "~lock:*", "+eval"]).is_ok());
    }
    let urls: Vec<String> =
        fleet.iter().map(|it| format!("redis://u:opensesame@{}", label(it))).collect();
    let mut command = guarded(&fleet, &["init", "--yes"]);
    let ended = run(command.env("REDLATCH_SERVERS", urls[2..].join(","))).with_code(69);
    let told = "redlatch: init: fewer than 2 of 3 nodes took it: ";
    assert!(ended.errors.starts_with(told), "{ended:?}");
    assert_eq!(ended.errors.matches("(its marker may not be written").count(), 3, "{ended:?}");
    assert_eq!(ended.out, "");

    fleet[2].kill();
    let before = fleet[3].get("redlatch:node");
    fleet[4].kill();
    let ended = run(&mut guarded(&fleet, &["init", "--yes"])).with_code(69);
    assert!(ended.errors.starts_with("redlatch: no quorum"), "{ended:?}");
    assert_eq!(fleet[3].get("redlatch:node"), before, "a minority was written to");
}

/// Runs `init` until its question is about every node. The question leaves out a
/// node to which `init` connects late.
fn ask_about_all(fleet: &Fleet) -> Asked {
    loop {
        let (asked, nodes) = ask_once(fleet);
        if nodes == fleet.len() {
            return asked;
        }
        asked.answer("no\n", 1);
    }
}

/// Runs `init` once up to its question, and returns how many nodes the question is about.
fn ask_once(fleet: &Fleet) -> (Asked, usize) {
    let asked = Asked::start(guarded(fleet, &["init"]), "for every client:\r\n");
    let text = &asked.shown;
    assert!(text.contains("does not grant for "), "{text}");
    assert!(text.contains("You vouch that no client believes in a lock on these"), "{text}");
    let nodes = text.matches("does not grant for ").count();
    (asked, nodes)
}

#[test]
fn init_on_a_terminal_accepts_only_yes() {
    let fleet = Fleet::start(3);
    for answer in ["\n", "no\n", "yes please\n", "\x04"] {
        let ended = ask_about_all(&fleet).answer(answer, 1);
        assert!(ended.errors.contains("not confirmed; nothing was written"), "{ended:?}");
        assert!(markers(&fleet).iter().all(|marker| !marker.contains("vouched")));
    }
    let ended = ask_about_all(&fleet).answer("yes\n", 0);
    assert_eq!(ended.out.lines().count(), 3, "{ended:?}");
    assert!(markers(&fleet).iter().all(|marker| marker.ends_with(" vouched")));
}

#[test]
fn a_node_that_forgets_during_the_question_is_not_vouched_for() {
    let fleet = Fleet::start(3);
    let asked = ask_about_all(&fleet);
    assert!(fleet[1].command(&["FLUSHALL"]).is_ok());
    // When the node has answered PING, it has notified the tool of the flush.
    let _ = fleet[1].command(&["PING"]);
    let ended = asked.answer("yes\n", 125);
    let told = format!("{} changed while you were asked: it was flushed", label(&fleet[1]));
    assert!(ended.errors.contains(&told), "{ended:?}");
    assert!(markers(&fleet).iter().all(|marker| !marker.contains("vouched")));
    // If a node restarts, the tool notices that, or the node does not accept the marker.
    let mut asked = ask_about_all(&fleet);
    fleet[2].restart();
    asked.screen.write_all(b"yes\n").expect("the terminal is open");
    let code = asked.tool.end(LIMIT).code();
    assert!(matches!(code, 0 | 125), "{code}");
    assert!(!markers(&fleet)[2].contains("vouched"));
}

#[test]
fn persistent_nodes_that_restart_with_their_marker_grant_at_once() {
    let fleet = Fleet::with(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    const LONG: [&str; 4] = ["--max-ttl", "20s", "-t", "15s"];
    run(guarded(&fleet, &["init", "--yes"]).args(LONG)).with_code(0);
    for (node, marker) in fleet.iter().zip(markers(&fleet)) {
        // Makes the marker seem older: the age of a node counts from when its marker was first
        // written, also over a restart.
        let mut words: Vec<&str> = marker.split(' ').collect();
        words[3] = "1000000";
        assert!(node.command(&["SET", "redlatch:node", &words.join(" ")]).is_ok());
    }
    // A client that knew the nodes before their restart confirms the markers.
    let watch =
        ["exec", "--max-ttl", "20s", "-t", "15s", "--persistent-nodes", "watch", "sleep", "60"];
    let mut watch = guarded(&fleet, &watch).spawn().expect("the binary was built with this test");
    eventually(LIMIT, "it holds the lock", || {
        values(&fleet, "watch").iter().filter(|value| value.is_some()).count() >= 2
    });
    for node in &fleet {
        node.restart();
        eventually(LIMIT, "its file is read", || node.info("loading") == "0");
    }
    eventually(LIMIT, "the markers name the new processes", || {
        let named = |(node, marker): (&Node, &String)| marker.contains(&node.info("run_id"));
        fleet.iter().zip(&markers(&fleet)).filter(|&it| named(it)).count() >= 2
    });
    let declared = ["acquire", "-n", "--persistent-nodes", "deploy"];
    run(guarded(&fleet, &declared).args(LONG)).with_code(0);
    run(guarded(&fleet, &["acquire", "-n", "other"]).args(LONG)).with_code(69);
    watch.kill().expect("it is our child");
    watch.wait().expect("it is our child");
    // Without such a client no process knows whether the marker is the node's own.
    fleet.iter().for_each(Node::restart);
    let late = ["acquire", "-n", "--persistent-nodes", "late"];
    eventually(LIMIT, "it says why, and to wait", || {
        let refused = run(&mut guarded(&fleet, &[&late[..], &LONG].concat())).with_code(69);
        assert!(!refused.errors.contains("redlatch init"), "a lock may be live: {refused:?}");
        refused.errors.contains("started a short time ago") && refused.errors.ends_with(WAIT)
    });
    let both = ["status", "--persistent-nodes", "--no-restart-guard"];
    run(&mut guarded(&fleet, &both)).with_code(125);
}
