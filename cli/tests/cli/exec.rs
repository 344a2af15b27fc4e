//! `redlatch exec` with a lock that is not lost: exit codes, waiting for the lock, CMD's
//! environment, and the events.

use std::path::{Path, PathBuf};

use super::*;

/// A directory through whose files a test and a CMD communicate.
pub struct Desk(PathBuf);

impl Desk {
    pub fn on(fleet: &Fleet) -> Desk {
        let place = fleet[0].directory().join("desk");
        std::fs::create_dir(&place).expect("a fleet has one desk");
        Desk(place)
    }

    pub fn with_fleet(nodes: usize) -> (Fleet, Desk) {
        let fleet = Fleet::start(nodes);
        let desk = Desk::on(&fleet);
        (fleet, desk)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }

    pub fn put(&self, name: &str) {
        self.write(name, "");
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the desk can be written");
    }

    /// A file for the events of a tool, to be read as `lines`.
    pub fn log(&self, name: &str) -> std::fs::File {
        std::fs::File::create(self.path(name)).expect("the desk can be written")
    }

    #[track_caller]
    pub fn wait_for(&self, name: &str) {
        eventually(LIMIT, &format!("{name} is there"), || !self.lines(name).is_empty());
    }

    #[track_caller]
    pub fn wait_for_line(&self, name: &str, line: &str) {
        let what = format!("{line} is in {name}");
        eventually(LIMIT, &what, || self.lines(name).iter().any(|it| it == line));
    }

    /// Waits for the file, and returns the process number in it.
    #[track_caller]
    pub fn process(&self, name: &str) -> u32 {
        self.wait_for(name);
        self.lines(name)[0].parse().expect("a process number")
    }
}

/// The command that runs `redlatch exec` with a shell script, in the desk's directory.
pub fn exec(fleet: &Fleet, desk: &Desk, flags: &[&str], script: &str) -> Command {
    let rest = ["key", "--", "sh", "-c", script];
    let arguments = [&["exec"], flags, &rest].concat();
    let mut command = tool_on(fleet, &arguments);
    command.current_dir(&desk.0);
    command
}

/// Starts the tool as `exec` does, and waits until its CMD has written the file `up`.
#[track_caller]
pub fn started(fleet: &Fleet, desk: &Desk, flags: &[&str], script: &str) -> Running {
    let running = Running::start(&mut exec(fleet, desk, flags, script));
    desk.wait_for("up");
    running
}

/// A command line that starts a script of the desk as a background job in a process group of its
/// own. Uses bash, because dash has no job control without a terminal.
pub fn background_job(script: &str) -> String {
    format!("bash -c 'set -m; sh {script} > /dev/null 2>&1 &'")
}

/// The state of a process, as in ps; `None` if the process has ended, also if it has not been
/// reaped.
pub fn state_of(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
}

/// The parent of a process; `None` if the process has ended.
pub fn parent_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The tool's events on stderr. All other lines there are CMD's.
pub fn events(ended: &Ended) -> Vec<Value> {
    let ours = ended.errors.lines().filter(|line| line.starts_with('{'));
    ours.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

pub fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a name")).collect()
}

#[test]
fn exec_returns_the_code_of_cmd_or_128_and_its_signal() {
    let (fleet, desk) = Desk::with_fleet(3);
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)] {
        let ended = run(&mut exec(&fleet, &desk, &[], &format!("echo out; {script}")));
        let ended = ended.with_code(code);
        assert_eq!((ended.out.as_str(), ended.errors.as_str()), ("out\n", ""), "{script}");
        fleet.wait_empty();
    }
}

#[test]
fn a_cmd_that_is_not_there_or_cannot_be_run_is_found_before_anything_is_sent() {
    let (fleet, desk) = Desk::with_fleet(3);
    desk.put("plain");
    let script = desk.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("the desk can be written");
    make_executable(&script);
    // The kernel takes the CR of a Windows line end as a part of the interpreter's name.
    let foreign = desk.path("foreign");
    std::fs::write(&foreign, "#!/bin/sh\r\nexit 0\r\n").expect("the desk can be written");
    make_executable(&foreign);
    let foreign = foreign.to_str().expect("text");
    let (plain, script) = (desk.path("plain"), script);
    let (plain, script) = (plain.to_str().expect("text"), script.to_str().expect("text"));
    let monitors: Vec<_> = fleet.iter().map(|node| node.monitor()).collect();
    let cases = [
        ("no-such-command", 127),
        ("/no/such/command", 127),
        ("", 127),
        (plain, 126),
        ("/", 126),
        (script, 126),
        (foreign, 126),
    ];
    for (command, code) in cases {
        let ended = run_on(&fleet, &["exec", "key", "--", command]).with_code(code);
        assert!(ended.errors.contains(command), "{ended:?}");
        assert_eq!(ended.errors.lines().count(), 1, "{ended:?}");
    }
    let said: Vec<String> = monitors.iter().flat_map(|monitor| monitor.lines()).collect();
    assert_eq!(said, [""; 0]);
    // A run that does send something shows that the monitors would have seen it.
    run_on(&fleet, &["exec", "key", "--", "true"]).with_code(0);
    assert!(monitors[0].lines().iter().any(|line| line.contains("SET")));
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;

    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("it is ours");
}

#[test]
fn two_execs_of_one_key_run_their_commands_one_after_the_other() {
    let (fleet, desk) = Desk::with_fleet(3);
    let first = "echo first >> log; until [ -e go ]; do sleep 0.01; done; echo end >> log; exit 3";
    let first = Running::start(&mut exec(&fleet, &desk, &[], first));
    desk.wait_for("log");
    let second = exec(&fleet, &desk, &["--json"], "echo second >> log; exit 4");
    let mut second = second;
    let second = Running::start(&mut second);
    // Meanwhile clients that do not wait are refused.
    let refused = |flags: &[&str], code| {
        let ended = run(&mut exec(&fleet, &desk, flags, "echo third >> log")).with_code(code);
        assert!(ended.errors.contains("held"), "{ended:?}");
        ended
    };
    refused(&["-n"], 75);
    refused(&["-n", "-E", "9"], 9);
    refused(&["-w", "0", "--conflict-exit-code", "0", "-v"], 0);
    let refusal = refused(&["-w", "100ms", "--json"], 75);
    assert_eq!(names(&events(&refusal)[..1]), ["waiting"]);
    let refusal = events(&refusal).pop().expect("the last line");
    assert_eq!(refusal["error"], "contended", "{refusal}");
    assert_eq!(refusal["nodes"].as_array().map(Vec::len), Some(3), "{refusal}");
    desk.put("go");
    first.end(LIMIT).with_code(3);
    let second = second.end(LIMIT).with_code(4);
    assert_eq!(names(&events(&second)), ["waiting", "acquired", "child_exit", "released"]);
    assert_eq!(desk.lines("log"), ["first", "end", "second"]);
    fleet.wait_empty();
}

#[test]
fn exec_without_a_quorum_exits_69_and_leaves_nothing() {
    let (fleet, desk) = Desk::with_fleet(3);
    fleet.on([1, 2], Node::kill);
    for flags in [&["-n"][..], &["-w", "200ms"]] {
        let ended = run(&mut exec(&fleet, &desk, flags, "touch ran")).with_code(69);
        assert!(ended.errors.contains("no quorum"), "{ended:?}");
    }
    assert!(!desk.path("ran").exists());
    fleet.wait_empty();
}

#[test]
fn exec_settings_that_cannot_work_exit_125() {
    let cases: [&[&str]; 6] = [
        &["exec", "key", "--", "true"],
        &["exec", "-s", "nonsense", "key", "--", "true"],
        &["exec", "-s", "redis://127.0.0.1:1", "--grace", "16s", "key", "--", "true"],
        &["exec", "-s", "redis://127.0.0.1:1", "-t", "2m", "key", "--", "true"],
        &["exec", "-s", "redis://127.0.0.1:1", "--on-lost", "cry", "key", "--", "true"],
        &["exec", "-s", "redis://127.0.0.1:1", "key", "-c", "true", "true"],
    ];
    for arguments in cases {
        let ended = run(&mut tool(arguments)).with_code(125);
        assert!(ended.out.is_empty() && !ended.errors.is_empty(), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn cmd_may_follow_the_key_without_two_dashes() {
    let fleet = Fleet::start(3);
    let cases: [(&[&str], &str); 6] = [
        (&["key", "echo", "-n", "a", "--", "--json"], "a -- --json"),
        (&["key", "-t", "5s", "echo", "-t", "5s"], "-t 5s\n"),
        (&["key", "--", "echo", "--", "-q"], "-- -q\n"),
        (&["key", "-c", "echo $((1 + 1)); echo $0"], "2\n/bin/sh\n"),
        (&["-c", "echo a | tr a b", "key"], "b\n"),
        (&["--command=exec echo c", "key"], "c\n"),
    ];
    for (arguments, out) in cases {
        let ended = run_on(&fleet, &[&["exec"], arguments].concat()).with_code(0);
        assert_eq!((ended.out.as_str(), ended.errors.as_str()), (out, ""), "{arguments:?}");
    }
    run_on(&fleet, &["exec", "key", "-c", "exit 9"]).with_code(9);
}

#[test]
fn cmd_gets_its_lock_and_no_password_in_its_environment() {
    let fleet = Fleet::with(3, &["--requirepass", "hunter2"]);
    let desk = Desk::on(&fleet);
    let script = "redlatch=$PPID; tr '\\0' '\\n' < /proc/$$/environ > environ; \
        cat /proc/$$/cmdline /proc/$redlatch/cmdline > cmdlines; env | grep REDLATCH_; echo $$";
    let with_password = |url: String| url.replace("redis://", "redis://:hunter2@");
    let urls: Vec<String> = fleet.urls().into_iter().map(with_password).collect();
    for way in ["of the URLs", "of the environment"] {
        let mut command = exec(&fleet, &desk, &["--json", "-t", "20s"], script);
        match way {
            "of the URLs" => command.env("REDLATCH_SERVERS", urls.join(",")),
            _ => command.env("REDISCLI_AUTH", "hunter2"),
        };
        let ended = run(&mut command).with_code(0);
        let (key, token) = (variable(&ended, "KEY"), variable(&ended, "TOKEN"));
        assert_eq!((key, token.find(':')), ("key", Some(40)), "{token}");
        assert_eq!(variable(&ended, "TTL_MS"), "20000");
        let acquired = &events(&ended)[0];
        let granted = format!("{}/{}", acquired["granted"], acquired["nodes"]);
        assert_eq!(variable(&ended, "GRANTED"), granted);
        assert_eq!(acquired["token"], token);
        let deadline: u64 = variable(&ended, "DEADLINE_UNIX_MS").parse().expect("a number");
        assert!(deadline.abs_diff(acquired["deadline_unix_ms"].as_u64().expect("one")) < 10);
        let told = [ended.out, ended.errors].concat();
        let seen = [desk.lines("environ"), desk.lines("cmdlines")].concat().join("\n");
        assert!(seen.contains("REDLATCH_KEY=key") && seen.contains("exec"), "{seen}");
        for text in [told, seen] {
            assert!(
                !text.contains("hunter2") && !text.contains("REDLATCH_SERVERS"),
                "{way} {text}"
            );
        }
    }
}

fn variable<'a>(ended: &'a Ended, name: &str) -> &'a str {
    let start = format!("REDLATCH_{name}=");
    let found = ended.out.lines().find_map(|line| line.strip_prefix(start.as_str()));
    found.unwrap_or_else(|| panic!("no {name}: {ended:?}"))
}

#[test]
fn exec_renews_the_lock_of_a_long_cmd_and_reports_it() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "echo up > up; until [ -e go ]; do sleep 0.01; done";
    let mut command = exec(&fleet, &desk, &["-t", "9s", "--json"], script);
    let cmd = Running::start(command.stderr(desk.log("events")));
    desk.wait_for("up");
    let holder = held_by_majority(&fleet, "key");
    let renewals = || desk.lines("events").iter().filter(|l| l.contains("renewed")).count();
    // At the third renewal the first ttl is over.
    eventually(LIMIT, "it is renewed, and again", || renewals() >= 3);
    assert_eq!(held_by_majority(&fleet, "key"), holder);
    desk.put("go");
    cmd.end(LIMIT).with_code(0);
    let read = |line: &String| serde_json::from_str(line).expect("JSON");
    let events: Vec<Value> = desk.lines("events").iter().map(read).collect();
    let mut names = names(&events);
    names.dedup();
    assert_eq!(names, ["acquired", "renewed", "child_exit", "released"]);
    for event in &events {
        assert_eq!(event["key"], "key");
    }
    let fields: Vec<Vec<&str>> = [0, 1].iter().map(|&at| fields(&events[at])).collect();
    let held = ["event", "key", "token", "deadline_unix_ms", "remaining_ms"];
    assert_eq!(fields[0], [&held[..], &["granted", "nodes", "elapsed_us"]].concat());
    assert_eq!(fields[1], held);
    assert_eq!(events[0]["token"], holder.as_str());
    assert!(events[1]["deadline_unix_ms"].as_u64() > events[0]["deadline_unix_ms"].as_u64());
    let (last, before) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!((&before["code"], &before["exit_code"]), (&0.into(), &0.into()));
    assert_eq!(last["outcome"], "released");
}

#[test]
fn exec_prints_only_errors_without_verbose() {
    let (fleet, desk) = Desk::with_fleet(1);
    let verbose = run(&mut exec(&fleet, &desk, &["-v"], "exit 2")).with_code(2);
    let mut rest = verbose.errors.as_str();
    let told = ["is ready", "holds \"key\" on 1 of 1 nodes", "ended with 2", "released"];
    for words in told {
        let found = rest.split_once(words);
        rest = found.unwrap_or_else(|| panic!("{words:?} is missing: {verbose:?}")).1;
    }
    fleet[0].command(&["SET", "key", "another's"]);
    let refused = run(&mut exec(&fleet, &desk, &["-n"], "exit 2")).with_code(75);
    assert_eq!(refused.errors.lines().count(), 1, "{refused:?}");
    let quiet = run(&mut exec(&fleet, &desk, &["-q", "-w", "0.1"], "exit 2")).with_code(75);
    assert_eq!(quiet.errors, "");
}

#[test]
fn exec_in_a_crontab_is_silent_on_contention_and_loud_on_failure() {
    let (fleet, desk) = Desk::with_fleet(3);
    for node in 0..3 {
        fleet[node].command(&["SET", "key", "another's"]);
    }
    let loser = run(&mut exec(&fleet, &desk, &["-n", "-E", "0"], "exit 3")).with_code(0);
    assert_eq!(loser.errors, "", "cron would send mail");
    let verbose = run(&mut exec(&fleet, &desk, &["-n", "-E", "0", "-v"], "exit 3")).with_code(0);
    assert!(verbose.errors.contains("held by another"), "{}", verbose.errors);
    (0..2).for_each(|node| fleet[node].stop());
    let failed = run(&mut exec(&fleet, &desk, &["-n", "-E", "0"], "exit 3")).with_code(69);
    assert!(failed.errors.contains("no quorum"), "{}", failed.errors);
    (0..2).for_each(|node| fleet[node].cont());
}
