//! The verbs for scripts: one process acquires a lock, and others extend and release it by its
//! token. Also each exit code of these verbs.

use super::*;
use crate::support::{Cut, Proxy, Way};

/// The exit codes, by their names in `cli/src/exit.rs`.
const DONE: i32 = 0;
const NO: i32 = 1;
const NO_QUORUM: i32 = 69;
const CONTENDED: i32 = 75;
const INTERNAL: i32 = 125;

#[test]
fn a_lock_is_taken_in_one_process_and_extended_and_released_in_others() {
    let (fleet, token) = fleet_with_lock(3, &["-t", "20s", "deploy"]);
    let extended = run_on(&fleet, &["extend", "-t", "50s", "deploy", &token]).with_code(DONE);
    assert!(extended.out.starts_with("extended: 4"), "{extended:?}");
    let left: Vec<i64> = fleet.iter().map(|node| node.pttl("deploy")).collect();
    assert!(left.iter().all(|left| (21_000..=50_000).contains(left)), "{left:?}");
    let released = run_on(&fleet, &["release", "deploy", &token]).with_code(DONE);
    assert_eq!((released.out.as_str(), released.errors.as_str()), ("released\n", ""));
    nothing_is_left(&fleet);
    // The token does not hold the key any more.
    let again = run_on(&fleet, &["release", "deploy", &token]).with_code(NO);
    assert!(again.out.is_empty() && again.errors.contains("already expired"), "{again:?}");
    let late = run_on(&fleet, &["extend", "deploy", &token]).with_code(NO);
    assert!(late.out.is_empty() && late.errors.contains("the lock is lost"), "{late:?}");
    nothing_is_left(&fleet);
}

#[test]
fn a_foreign_token_changes_nothing_and_gives_1() {
    let (fleet, token) = fleet_with_lock(3, &["-t", "20s", "deploy"]);
    let foreign = foreign_token();
    let extended = run_on(&fleet, &["extend", "-t", "50s", "deploy", &foreign]).with_code(NO);
    assert!(extended.errors.contains("held"), "{extended:?}");
    let released = run_on(&fleet, &["release", "deploy", &foreign]).with_code(NO);
    assert!(released.errors.contains("taken by other"), "{released:?}");
    assert_eq!(values(&fleet, "deploy"), vec![Some(token.clone()); 3]);
    let left: Vec<i64> = fleet.iter().map(|node| node.pttl("deploy")).collect();
    assert!(left.iter().all(|left| (1..=20_000).contains(left)), "it was prolonged: {left:?}");
    run_on(&fleet, &["release", "deploy", &token]).with_code(DONE);
    // A key without a holder does not belong to the token either.
    run_on(&fleet, &["extend", "deploy", &foreign]).with_code(NO);
    run_on(&fleet, &["release", "deploy", &foreign]).with_code(NO);
    nothing_is_left(&fleet);
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_released_and_without_a_wait_75_is_returned() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    let refused = run_on(&fleet, &["acquire", "-n", "deploy"]).with_code(CONTENDED);
    assert!(refused.out.is_empty() && refused.errors.contains("held by another"), "{refused:?}");
    run_on(&fleet, &["acquire", "--wait", "0", "deploy"]).with_code(CONTENDED);
    let waited = run_on(&fleet, &["acquire", "-w", "300ms", "deploy"]).with_code(CONTENDED);
    assert!(waited.ran >= Duration::from_millis(300), "{waited:?}");
    // Without --wait, the tool waits for ever.
    let mut waiter = Running::start(&mut tool_on(&fleet, &["acquire", "deploy"]));
    has_been_asked_by_a_waiter(&fleet);
    assert!(!waiter.try_reap());
    run_on(&fleet, &["release", "deploy", &token]).with_code(DONE);
    let had = waiter.end(LIMIT).with_code(DONE);
    assert_ne!(had.out.trim(), token);
    // The third node may have refused the waiter before it got the release.
    let has = |value: &Option<String>| value.as_deref() == Some(had.out.trim());
    let values = values(&fleet, "deploy");
    assert!(values.iter().filter(|value| has(value)).count() >= 2, "{values:?}");
    assert!(values.iter().all(|value| has(value) || value.is_none()), "{values:?}");
}

/// Waits until a tool waits for a key, which shows in that it has registered for notifications.
#[track_caller]
pub fn has_been_asked_by_a_waiter(fleet: &Fleet) {
    let waits = |node: &Node| {
        let list = node.client_list();
        list.iter().any(|line| line.contains("name=redlatch-cli") && line.contains("cmd=pttl"))
    };
    eventually(LIMIT, "a process waits for the key", || fleet.iter().any(waits));
}

#[test]
fn release_is_repeated_after_its_connection_is_lost() {
    let (fleet, token) = fleet_with_lock(3, &["-t", "60s", "deploy"]);
    let proxy = Proxy::start(fleet[2].address());
    proxy.delay(Way::ToNode, Duration::from_millis(100));
    let mut command = tool(&["release", "--node-timeout", "2s", "deploy", &token]);
    let urls = [fleet[0].url(), fleet[1].url(), proxy.url()];
    let releasing = Running::start(command.env("REDLATCH_SERVERS", urls.join(",")));
    eventually(LIMIT, "it is released on the near ones", || {
        fleet[0].get("deploy").is_none() && fleet[1].get("deploy").is_none()
    });
    proxy.cut(Cut::Reset);
    proxy.delay(Way::ToNode, Duration::ZERO);
    releasing.end(LIMIT).with_code(DONE);
    assert_eq!(fleet[2].get("deploy"), None, "it stands in everybody's way for its ttl");
}

#[test]
fn a_node_that_is_much_slower_than_the_quorum_is_not_waited_for() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet[2].address());
    // The handshake of this node takes a few such delays.
    proxy.delay(Way::ToClient, 5 * SECOND);
    let mut command = tool(&["acquire", "--json", "--no-restart-guard", "--node-timeout", "5s"]);
    command.args(["--connect-timeout", "20s"]);
    let urls = [fleet[0].url(), fleet[1].url(), proxy.url()];
    let ended = run(command.arg("deploy").env("REDLATCH_SERVERS", urls.join(","))).with_code(DONE);
    assert_eq!(ended.json()["granted"], 2, "{ended:?}");
    assert!(ended.ran < 5 * SECOND, "{ended:?}");
}

#[test]
fn no_quorum_is_69_for_each_verb() {
    let (fleet, token) = fleet_with_lock(3, &["deploy"]);
    fleet[0].kill();
    fleet[1].stop();
    let verbs: [&[&str]; 5] = [
        &["acquire", "-n", "other"],
        &["acquire", "-w", "200ms", "other"],
        &["extend", "deploy", &token],
        &["release", "deploy", &token],
        &["status", "deploy"],
    ];
    for verb in verbs {
        let ended = run_on(&fleet, verb).with_code(NO_QUORUM);
        println!("{verb:?}: {ended:?}");
        let said = format!("{}{}", ended.out, ended.errors);
        assert!(said.contains(&fleet[0].port().to_string()), "no word of the node: {said}");
    }
    fleet[1].cont();
    // The node, which was frozen, executes the tool's request when it goes on, and then its
    // release.
    eventually(10 * SECOND, "no attempt is left", || {
        fleet[1].get("other").is_none() && fleet[2].get("other").is_none()
    });
}

#[test]
fn settings_that_cannot_work_exit_125() {
    let fleet = Fleet::with(3, &["--requirepass", "hunter2"]);
    let urls = fleet.urls();
    // The last node is needed for a quorum, and connects only after the tool has found out that two
    // addresses lead to one server.
    let slow = Proxy::start(fleet[1].address());
    slow.delay(Way::ToClient, SECOND);
    let second = urls[0].replace("127.0.0.1", "localhost");
    let twice = [urls[0].as_str(), &second, &slow.url()].join(",");
    let cases: [(&[&str], &str); 7] = [
        (&["acquire", "key"], "requires a password"),
        (&["extend", "key", &foreign_token()], "requires a password"),
        (&["release", "key", &foreign_token()], "requires a password"),
        (&["acquire", "-t", "61s", "key"], "60s"),
        (&["acquire", "-t", "2ms", "key"], "2ms"),
        (&["acquire", "--node-timeout", "0", "key"], "node_timeout"),
        (&["acquire", "-s", "http://h", "key"], "its scheme"),
    ];
    for (arguments, told) in cases {
        let mut command = tool(arguments);
        let ended = run(command.env("REDLATCH_SERVERS", urls.join(","))).with_code(INTERNAL);
        assert!(ended.out.is_empty() && ended.errors.contains(told), "{arguments:?}: {ended:?}");
        // This error is printed with --quiet, too, because an operator has to correct it.
        let quiet = run(command.arg("-q")).with_code(INTERNAL);
        assert_eq!(quiet.errors.lines().count(), 1, "{quiet:?}");
    }
    let mut command = tool(&["acquire", "--no-restart-guard", "key"]);
    command.env("REDISCLI_AUTH", "hunter2").env("REDLATCH_SERVERS", twice);
    let ended = run(&mut command).with_code(INTERNAL);
    assert!(ended.errors.contains("is the same server as another address"), "{ended:?}");
}

#[test]
fn a_node_that_was_just_started_does_not_grant_unless_the_guard_is_off() {
    let fleet = Fleet::start(3);
    let mut guarded = tool(&["acquire", "-n", "--node-timeout", NODE_TIMEOUT, "key"]);
    let ended = run(guarded.env("REDLATCH_SERVERS", fleet.urls().join(","))).with_code(NO_QUORUM);
    assert!(ended.errors.contains("restart guard"), "{ended:?}");
    nothing_is_left(&fleet);
    let mut short = tool(&["acquire", "-w", "20s", "-t", "1s", "--max-ttl", "1s", "key"]);
    let ended = run(short.env("REDLATCH_SERVERS", fleet.urls().join(","))).with_code(DONE);
    assert_eq!(ended.out.find(':'), Some(40), "it waits until they do: {ended:?}");
}

#[test]
fn json_has_the_fields_of_the_interface() {
    let fleet = Fleet::start(3);
    // The timeouts are long, so that the last node votes, too, however busy this machine is.
    let patient = ["acquire", "--json", "--node-timeout", "5s", "-t", "20s", "deploy"];
    let held = run_on(&fleet, &patient).with_code(DONE).json();
    let wanted =
        ["key", "token", "deadline_unix_ms", "remaining_ms", "granted", "nodes", "elapsed_us"];
    assert_eq!(fields(&held), wanted);
    assert_eq!((&held["key"], &held["nodes"]), (&"deploy".into(), &3.into()));
    assert_eq!(held["granted"], 3, "one that answered was not counted: {held}");
    let left = held["remaining_ms"].as_u64().unwrap();
    assert!((10_000..20_000).contains(&left), "{held}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let until = held["deadline_unix_ms"].as_u64().unwrap() - now.as_millis() as u64;
    // A millisecond more is allowed, because the time left and both clocks are rounded down.
    assert!(until <= left + 1 && until + 10_000 > left, "{held}");
    assert!(held["elapsed_us"].as_u64().unwrap() > 0);
    let token = held["token"].as_str().unwrap();
    is_held_everywhere(&fleet, "deploy", token);

    let refused = run_on(&fleet, &["acquire", "--json", "-n", "deploy"]).with_code(CONTENDED);
    assert!(refused.errors.is_empty(), "{refused:?}");
    let refused = refused.json();
    let plain = ["error", "message", "nodes"];
    assert_eq!(fields(&refused), [&plain[..], &["holder", "owner", "remaining_ms"]].concat());
    assert_eq!(refused["error"], "contended");
    for node in refused["nodes"].as_array().unwrap() {
        assert_eq!(fields(node), ["node", "outcome", "detail"]);
    }
    let words = |value: &Value| -> Vec<String> {
        let nodes = value["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["outcome"].as_str().unwrap().to_string()).collect()
    };
    // A node to which the tool connects late does not vote.
    let verdict = words(&refused);
    assert!(verdict.contains(&"held".into()) && !verdict.contains(&"granted".into()), "{refused}");

    let extended = run_on(&fleet, &["extend", "--json", "deploy", token]).with_code(DONE).json();
    let wanted = ["key", "token", "deadline_unix_ms", "remaining_ms", "elapsed_us"];
    assert_eq!(fields(&extended), wanted);
    let foreign = foreign_token();
    let lost = run_on(&fleet, &["extend", "--json", "deploy", &foreign]).with_code(NO).json();
    assert_eq!((fields(&lost), &lost["error"]), (plain.to_vec(), &"lost".into()));

    for (token, code, outcome, word) in [
        (foreign.as_str(), NO, "taken_by_other", "held"),
        (token, DONE, "released", "free"),
        (token, NO, "already_expired", "free"),
    ] {
        let ended = run_on(&fleet, &["release", "--json", "deploy", token]).with_code(code);
        let released = ended.json();
        let wanted = ["key", "outcome", "nodes", "unconfirmed", "unconfirmed_until_unix_ms"];
        assert_eq!(fields(&released), wanted);
        assert_eq!(released["outcome"], outcome);
        assert_eq!(words(&released), [word; 3]);
    }
    fleet.on([0, 1], Node::kill);
    let ended = run_on(&fleet, &["release", "--json", "deploy", token]).with_code(NO_QUORUM);
    assert_eq!(ended.json()["outcome"], "unconfirmed");
    assert_eq!(words(&ended.json()), ["unreachable", "unreachable", "free"]);
    let ended = run_on(&fleet, &["acquire", "--json", "-n", "deploy"]).with_code(NO_QUORUM);
    assert_eq!(ended.json()["error"], "no_quorum");
    let ended = run(&mut tool(&["acquire", "--json", "deploy"])).with_code(INTERNAL);
    assert_eq!(ended.json()["error"], "config");
}

#[test]
fn quiet_says_nothing_and_verbose_says_more_on_stderr() {
    let fleet = Fleet::start(3);
    let patient = ["acquire", "-v", "--node-timeout", "5s", "deploy"];
    let ended = run_on(&fleet, &patient).with_code(DONE);
    assert!(ended.errors.contains("\"deploy\" is held: 3 of 3 nodes"), "{ended:?}");
    assert!(ended.errors.contains(&format!("127.0.0.1:{} is ready", fleet[2].port())), "{ended:?}");
    let token = ended.out.trim();
    for arguments in [&["status", "-v", "x"][..], &["extend", "-v", "x", token]] {
        let ended = run_on(&fleet, arguments);
        assert!(ended.errors.contains("a quorum of nodes is ready"), "{ended:?}");
    }
    let silent = |arguments: &[&str], code| {
        let ended = run_on(&fleet, arguments).with_code(code);
        assert_eq!((ended.out.as_str(), ended.errors.as_str()), ("", ""), "{arguments:?}");
    };
    silent(&["acquire", "-q", "-n", "deploy"], CONTENDED);
    silent(&["extend", "-q", "deploy", token], DONE);
    silent(&["release", "-q", "deploy", token], DONE);
    silent(&["release", "-q", "deploy", token], NO);
    // The token is the result, so --quiet prints it, too.
    acquired(&fleet, &["-q", "deploy"]);
}
