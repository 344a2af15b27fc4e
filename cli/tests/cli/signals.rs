//! A tool that gets a signal while it waits: it ends immediately, and leaves no key on any node.

use super::scripts::has_been_asked_by_a_waiter;
use super::*;
use crate::support::{Cut, Proxy};

#[test]
fn a_signal_ends_a_wait_at_once_and_leaves_nothing() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let waiter = Running::start(&mut tool_on(&fleet, &["acquire", "deploy"]));
        has_been_asked_by_a_waiter(&fleet);
        waiter.signal(signal);
        let ended = waiter.end(LIMIT).with_code(code);
        println!("{signal:?}: gone in {:?}", ended.took);
        assert!(ended.took < LIMIT / 2 && ended.out.is_empty(), "{ended:?}");
        assert_eq!(values(&fleet, "deploy"), vec![Some(token.clone()); 3]);
    }
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    nothing_is_left(&fleet);
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    let own = tool_on(&fleet, &["acquire", "deploy"]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(own.get_program());
    command.args(own.get_args()).env("REDLATCH_SERVERS", fleet.urls().join(","));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiter = Running::start(&mut command);
    has_been_asked_by_a_waiter(&fleet);
    waiter.signal(Signal::HUP);
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    let ended = waiter.end(LIMIT).with_code(0);
    assert_eq!(ended.out.find(':'), Some(40), "{ended:?}");
}

#[test]
fn signal_releases_on_frozen_nodes_too() {
    let (fleet, token) = fleet_with_lock(3, &["-t", "60s", "deploy"]);
    let waiter = Running::start(&mut tool_on(&fleet, &["acquire", "deploy"]));
    eventually(LIMIT, "it is connected to all", || {
        let is_its = |line: &String| line.contains("name=redlatch-cli");
        fleet.iter().all(|node| node.client_list().iter().any(is_its))
    });
    has_been_asked_by_a_waiter(&fleet);
    // The key is free on the first node, and the others are frozen. So the tool gets the key on the
    // first node, but has no quorum.
    fleet.on([1, 2], Node::stop);
    fleet[0].command(&["DEL", "deploy"]);
    eventually(LIMIT, "it has the key on one node", || fleet[0].get("deploy").is_some());
    waiter.signal(Signal::TERM);
    let ended = waiter.end(LIMIT).with_code(143);
    assert!(ended.took < LIMIT / 2, "{ended:?}");
    assert_eq!(fleet[0].get("deploy"), None);
    fleet.on([1, 2], Node::cont);
    // Each node now executes the tool's request, and then its release.
    let still = [None, Some(token.clone()), Some(token)];
    eventually(10 * SECOND, "nothing of it is left", || values(&fleet, "deploy") == still);
    // When a node has closed the tool's connections, it has read all their requests, so no other
    // request can follow.
    let gone = |node: &Node| !node.client_list().iter().any(|line| line.contains("redlatch-cli"));
    eventually(10 * SECOND, "its connections are read to their ends", || fleet.iter().all(gone));
    assert_eq!(values(&fleet, "deploy"), still);
}

#[test]
fn pending_releases_of_a_lost_connection_are_sent_before_the_end() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet[2].address());
    fleet.command(&["SET", "deploy", "x", "PX", "60000"]);
    let mut command = tool(&["acquire", "--no-restart-guard", "--node-timeout", "1s", "deploy"]);
    let urls = [fleet[0].url(), fleet[1].url(), proxy.url()];
    let waiter = Running::start(command.env("REDLATCH_SERVERS", urls.join(",")));
    eventually(LIMIT, "it is connected to all", || {
        let is_its = |line: &String| line.contains("name=redlatch-cli");
        fleet.iter().all(|node| node.client_list().iter().any(is_its))
    });
    has_been_asked_by_a_waiter(&fleet);
    // Only one node answers, so the tool's attempt stays undecided for a while.
    fleet.on([0, 1], Node::stop);
    fleet[2].command(&["DEL", "deploy"]);
    eventually(LIMIT, "it has the key on one node", || fleet[2].get("deploy").is_some());
    waiter.signal(Signal::STOP);
    eventually(LIMIT, "it stands still", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", waiter.id()));
        stat.expect("it is our child").rsplit_once(") ").expect("a name").1.starts_with('T')
    });
    proxy.cut(Cut::Reset);
    waiter.signal(Signal::TERM);
    waiter.signal(Signal::CONT);
    waiter.end(LIMIT).with_code(143);
    assert_eq!(fleet[2].get("deploy"), None, "its key stands in everybody's way");
}
