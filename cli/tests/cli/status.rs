//! `status`: what each node holds and whether that makes a lock, as text and as JSON.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

#[test]
fn status_exits_0_for_free_and_1_for_held_and_changes_nothing() {
    let fleet = Fleet::start(3);
    let free = run_on(&fleet, &["status", "deploy"]).with_code(0);
    assert!(free.out.starts_with("deploy: free\n"), "{free:?}");
    let token = acquired(&fleet, &["-t", "20s", "deploy"]);
    let held = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(
        held.out.starts_with("deploy: held by ") && held.out.contains(" on 3 of 3 nodes, 1"),
        "{held:?}"
    );
    let rows: Vec<&str> = held.out.lines().skip(2).collect();
    assert_eq!(rows.len(), 3);
    for (row, node) in rows.iter().zip(&fleet) {
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..2], [label(node).as_str(), "held"], "{row}");
        assert_eq!(*cells.last().unwrap(), token, "{row}");
    }
    let both = run_on(&fleet, &["status", "other", "deploy"]).with_code(1);
    assert!(both.out.starts_with("other: free\n") && both.out.contains("\n\ndeploy: held"));
    let quiet = run_on(&fleet, &["status", "-q", "deploy"]).with_code(1);
    assert!(quiet.out.is_empty() && quiet.errors.is_empty(), "{quiet:?}");
    assert_eq!(values(&fleet, "deploy"), vec![Some(token); 3]);
    assert_eq!(fleet.keys_everywhere().len(), 3, "to look was to write");
}

#[test]
fn status_prints_a_split_key_as_split() {
    let fleet = Fleet::start(3);
    for (node, value) in [(0, "x"), (1, "y")] {
        assert!(fleet[node].command(&["SET", "deploy", value]).is_ok());
    }
    let split = run_on(&fleet, &["status", "deploy"]).with_code(0);
    assert!(split.out.starts_with("deploy: split: no client has 2 of 3 nodes"), "{split:?}");
    assert!(fleet[1].command(&["SET", "deploy", "x"]).is_ok());
    let for_ever = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(for_ever.out.starts_with("deploy: held on 2 of 3 nodes, for ever"), "{for_ever:?}");
    assert!(fleet[2].command(&["RPUSH", "deploy", "z"]) == support::Value::Int(1));
    let list = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(list.out.contains("holds a value that is not a lock"), "{list:?}");
    fleet[0].kill();
    fleet[1].stop();
    let unknown = run_on(&fleet, &["status", "deploy", "other"]).with_code(69);
    assert!(unknown.out.starts_with("deploy: not known: fewer than 2 of 3"), "{unknown:?}");
    assert!(unknown.out.contains("Connection refused"), "{unknown:?}");
}

#[test]
fn status_is_unknown_if_a_node_that_is_down_decides() {
    let fleet = Fleet::start(3);
    assert!(fleet[2].command(&["SET", "deploy", "x"]).is_ok());
    let token = run_on(&fleet, &["acquire", "-t", "30s", "deploy"]).with_code(0).out;
    fleet[2].command(&["DEL", "deploy"]);
    fleet[1].kill();
    let unknown = run_on(&fleet, &["status", "deploy"]).with_code(69);
    let why = format!("deploy: not known: it depends on {}, which", label(&fleet[1]));
    assert!(unknown.out.starts_with(&why), "{unknown:?}");
    assert!(unknown.out.contains(token.trim()), "{unknown:?}");
    let json = run_on(&fleet, &["status", "--json", "deploy"]).with_code(69).json();
    assert_eq!(json[0]["held"], Value::Null, "{json}");
    run_on(&fleet, &["acquire", "-n", "deploy"]).with_code(75);
}

#[test]
fn status_shows_a_list_at_the_key_as_a_list() {
    let fleet = Fleet::start(3);
    fleet.command(&["RPUSH", "deploy", "z"]);
    let list = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(list.out.starts_with("deploy: not a lock: another program"), "{list:?}");
    let json = run_on(&fleet, &["status", "--json", "deploy"]).with_code(1).json();
    assert_eq!((&json[0]["held"], &json[0]["holder"]), (&true.into(), &Value::Null), "{json}");
    run_on(&fleet, &["acquire", "-n", "deploy"]).with_code(75);
}

#[test]
fn json_has_the_fields_of_the_interface() {
    let (fleet, token) = fleet_with_lock(3, &["-t", "20s", "deploy"]);
    fleet[2].kill();
    let seen = run_on(&fleet, &["status", "--json", "deploy", "other"]).with_code(1).json();
    let [held, free] = &seen.as_array().unwrap()[..] else { panic!("{seen}") };
    let wanted = [
        "key",
        "held",
        "holder",
        "owner",
        "granted",
        "quorum",
        "nodes",
        "remaining_ms",
        "line",
        "per_node",
    ];
    assert_eq!((fields(held), fields(free)), (wanted.to_vec(), wanted.to_vec()));
    assert_eq!((&held["key"], &held["held"]), (&"deploy".into(), &true.into()));
    assert_eq!((&held["holder"], &held["granted"]), (&token.as_str().into(), &2.into()));
    assert_eq!((&held["quorum"], &held["nodes"]), (&2.into(), &3.into()));
    assert!((10_000..=20_000).contains(&held["remaining_ms"].as_u64().unwrap()), "{held}");
    assert_eq!((&free["held"], &free["holder"]), (&false.into(), &Value::Null));
    assert_eq!((&free["granted"], &free["remaining_ms"]), (&0.into(), &Value::Null));
    for (seen, state) in [(held, "held"), (free, "free")] {
        for (index, node) in seen["per_node"].as_array().unwrap().iter().enumerate() {
            assert_eq!(fields(node), ["node", "state", "token", "ttl_ms", "rtt_us"]);
            assert_eq!(node["node"], label(&fleet[index]));
            let state = if index == 2 { "unreachable" } else { state };
            assert_eq!(node["state"], state);
            assert_eq!(node["token"].as_str(), (state == "held").then_some(token.as_str()));
            assert_eq!(node["ttl_ms"].is_u64(), state == "held", "{node}");
            assert_eq!(node["rtt_us"].is_u64(), index != 2, "{node}");
        }
    }
    fleet[1].kill();
    let seen = run_on(&fleet, &["status", "--json", "deploy"]).with_code(69).json();
    assert_eq!(seen[0]["held"], Value::Null, "neither yes nor no: {seen}");
}

#[test]
fn status_without_a_key_prints_the_nodes() {
    let fleet = Fleet::start(3);
    let ready = run_on(&fleet, &["status"]).with_code(0);
    assert!(ready.out.starts_with("3 of 3 nodes can grant, 2 are needed\n"), "{ready:?}");
    assert_eq!(ready.out.matches(" ready ").count(), 3, "{ready:?}");
    let mut guarded = tool_at(&fleet.urls(), &["--node-timeout", NODE_TIMEOUT], &["status"]);
    let young = run(&mut guarded).with_code(69);
    assert!(young.out.starts_with("0 of 3 nodes can grant"), "{young:?}");
    // The output wraps the text of each node.
    for part in
        [": its node marker is missing, so it is ", "\n                   new or lost its keys\n"]
    {
        assert_eq!(young.out.matches(part).count(), 3, "{young:?}");
    }
    let table = young.out.lines().skip(1).take(7);
    assert!(table.into_iter().all(|line| line.chars().count() <= 98), "{young:?}");
    let json = run(guarded.arg("--json")).with_code(69).json();
    assert_eq!(json[0]["per_node"][0]["state"], "quarantined", "{json}");
    fleet[0].kill();
    assert!(fleet[1].command(&["CONFIG", "SET", "requirepass", "hunter2"]).is_ok());
    let gone = run_on(&fleet, &["status"]).with_code(69);
    assert!(gone.out.starts_with("1 of 3 nodes can grant"), "{gone:?}");
    assert!(gone.out.contains("not connected (Connection refused)"), "{gone:?}");
    assert!(gone.out.contains("requires a password"), "{gone:?}");
    let json = run_on(&fleet, &["status", "--json"]).with_code(69).json();
    let state = |index: usize| json[0]["per_node"][index]["state"].as_str().unwrap().to_string();
    assert_eq!([state(0), state(1), state(2)], ["unreachable", "no_auth", "ready"]);
}

/// A script that restarts one master after the other waits for this exit code.
#[test]
fn status_of_all_nodes_is_0_only_while_every_node_can_grant() {
    let fleet = Fleet::start(3);
    let short = ["--max-ttl", "3s", "-t", "1s", "--node-timeout", NODE_TIMEOUT];
    let guarded = |arguments: &[&str]| run(&mut tool_at(&fleet.urls(), &short, arguments));
    guarded(&["init", "--yes"]).with_code(0);
    guarded(&["status", "-q", "--all-nodes"]).with_code(0);
    for node in &fleet {
        node.restart();
        // A client that had its answers late believes in the quarantine of the node before for some
        // milliseconds more.
        eventually(LIMIT, "only the restarted node waits", || {
            let waits = guarded(&["status", "--all-nodes"]).with_code(1);
            waits.out.starts_with("2 of 3 nodes can grant, 2 are needed\n")
        });
        guarded(&["status", "-q"]).with_code(0);
        guarded(&["exec", "-n", "key", "true"]).with_code(0);
        eventually(LIMIT, "the next one may be restarted", || {
            guarded(&["status", "-q", "--all-nodes"]).code() == 0
        });
    }
    fleet[0].kill();
    guarded(&["status", "-q", "--all-nodes"]).with_code(1);
    fleet[1].kill();
    guarded(&["status", "-q", "--all-nodes"]).with_code(69);
    let both = guarded(&["status", "--all-nodes", "key"]).with_code(125);
    assert!(both.errors.contains("--all-nodes"), "{both:?}");
}

/// A new terminal: the user's end, and the programs' end.
pub fn terminal() -> (OwnedFd, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).expect("there are terminals");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let path = name.to_str().expect("its name is text");
    let terminal = File::options().read(true).write(true).open(path).expect("it is ours");
    (master, terminal)
}

/// All that was printed to a terminal whose programs' end is closed.
///
/// A read may return only a part, so it is repeated until the error that follows the last part.
pub fn printed(master: impl AsFd) -> String {
    let (mut screen, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = rustix::io::read(&master, &mut part) {
        screen.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&screen).into_owned()
}

/// A running tool on a terminal that has asked its question.
pub struct Asked {
    pub screen: File,
    /// What it has shown, up to the end of the question.
    pub shown: String,
    pub tool: Running,
}

impl Asked {
    /// Starts the tool, and waits until it has shown a text that ends so.
    #[track_caller]
    pub fn start(mut command: Command, end: &str) -> Asked {
        let (ours, theirs) = terminal();
        command.stdin(theirs.try_clone().expect("it can be cloned")).stderr(theirs);
        let tool = Running::start(&mut command);
        // Closes the test's copy of the tool's end of the terminal, which `command` holds.
        drop(command);
        let (mut screen, mut seen, mut byte) = (File::from(ours), Vec::new(), [0]);
        while !seen.ends_with(end.as_bytes()) {
            screen.read_exact(&mut byte).expect("the terminal is open");
            seen.extend(byte);
        }
        Asked { screen, shown: String::from_utf8(seen).expect("text"), tool }
    }

    /// Answers the question, and waits until the tool has ended.
    #[track_caller]
    pub fn answer(mut self, line: &str, code: i32) -> Ended {
        self.screen.write_all(line.as_bytes()).expect("the terminal is open");
        let mut ended = self.tool.end(LIMIT).with_code(code);
        ended.errors = printed(&self.screen);
        ended
    }
}

#[test]
fn colours_are_for_terminals_and_never_with_no_color() {
    let fleet = Fleet::start(1);
    let on_a_terminal = |no_color: &str| {
        let (master, terminal) = terminal();
        let mut command = tool_on(&fleet, &["status", "deploy"]);
        command.stdout(terminal).env("TERM", "xterm").env("NO_COLOR", no_color);
        let tool = Running::start(&mut command);
        // The output is shorter than the buffer of a terminal.
        tool.end(LIMIT).with_code(0);
        // Closes the test's copy of the programs' end of the terminal, which `command` holds.
        drop(command);
        printed(master)
    };
    let bright = on_a_terminal("");
    assert!(bright.contains("\x1b[32mfree\x1b[0m"), "{bright:?}");
    let plain = on_a_terminal("1");
    assert!(plain.contains("deploy: free") && !plain.contains('\x1b'), "{plain:?}");
    let piped = run(tool_on(&fleet, &["status", "deploy"]).env("TERM", "xterm")).with_code(0);
    assert!(!piped.out.contains('\x1b'), "{piped:?}");
}
