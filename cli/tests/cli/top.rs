//! `top`: the nodes and the locks, drawn again and again.

use std::io::{BufRead, BufReader};

use super::status::{printed, terminal};
use super::*;

fn top(fleet: &Fleet, flags: &[&str]) -> Command {
    tool_on(fleet, &[&["top", "--every", "100ms"], flags].concat())
}

/// A tool whose output is a pipe, and the lines that it prints.
fn lines(running: &mut Running) -> impl Iterator<Item = String> + use<> {
    let out = running.child.stdout.take().expect("it is piped");
    BufReader::new(out).lines().map(|line| line.expect("it is text"))
}

pub fn started(mut command: Command) -> (Running, impl Iterator<Item = String>) {
    let child = in_own_group(&mut command).spawn().expect("the binary was built");
    let started = Instant::now();
    let mut running = Running { started, child, out: None, errors: None };
    let lines = lines(&mut running);
    running.errors = running.child.stderr.take().map(reader);
    (running, lines)
}

#[test]
fn top_shows_the_nodes_and_then_the_locks_as_they_come_and_go() {
    let fleet = Fleet::start(3);
    let (running, mut lines) = started(top(&fleet, &[]));
    let mut until = |wanted: &str| {
        let seen: Vec<String> = lines.by_ref().take(2_000).collect_until(wanted);
        assert!(seen.last().is_some_and(|line| line.contains(wanted)), "{wanted}: {seen:#?}");
        seen
    };
    let first = until("no lock is held");
    assert!(first[0].starts_with("3 of 3 nodes can grant, 2 are needed"), "{first:?}");
    let token = super::list::owned(&fleet, "web-1", &["-t", "60s", "deploy"]);
    let held = until("deploy");
    assert!(held.last().unwrap().contains("web-1"), "{held:?}");
    run_on(&fleet, &["release", "deploy", &token]).with_code(0);
    until("no lock is held");
    fleet[0].kill();
    until("2 of 3 nodes can grant");
    until("its keys are not listed: ");
    running.signal(Signal::INT);
    // A thread goes on reading, so that the tool can write its last picture.
    std::thread::spawn(move || lines.for_each(drop));
    let ended = running.end(LIMIT).with_code(0);
    assert_eq!(ended.errors, "");
}

/// Takes lines up to the first one with a text.
pub trait CollectUntil: Iterator<Item = String> + Sized {
    fn collect_until(self, wanted: &str) -> Vec<String> {
        let mut seen = Vec::new();
        for line in self {
            let found = line.contains(wanted);
            seen.push(line);
            if found {
                break;
            }
        }
        seen
    }
}

impl<I: Iterator<Item = String>> CollectUntil for I {}

#[test]
fn top_in_json_is_an_object_a_line() {
    let fleet = Fleet::start(3);
    acquired(&fleet, &["-t", "60s", "deploy"]);
    let (running, lines) = started(top(&fleet, &["--json"]));
    for line in lines.take(3) {
        let picture: Value = serde_json::from_str(&line).expect("a line is an object");
        assert_eq!(fields(&picture), ["nodes", "locks"]);
        assert_eq!(picture["nodes"]["per_node"].as_array().map(Vec::len), Some(3), "{line}");
        assert_eq!(picture["locks"][0]["key"], "deploy", "{line}");
    }
    // The reader closes the pipe.
    running.end(LIMIT).with_code(0);
}

#[test]
fn top_leaves_the_terminal_as_it_was() {
    let fleet = Fleet::start(3);
    for n in 0..40 {
        let token = format!("{}:web-{n}", foreign_token());
        fleet.command(&["SET", &format!("k{n:02}"), &token]);
    }
    let (master, terminal) = terminal();
    rustix::termios::tcsetwinsize(
        &terminal,
        rustix::termios::Winsize { ws_row: 12, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 },
    )
    .expect("it is a terminal");
    let mut command = top(&fleet, &[]);
    command.stdout(terminal).env("TERM", "xterm").env("NO_COLOR", "1");
    let running = Running::start(&mut command);
    drop(command);
    let mut screen = String::new();
    eventually(LIMIT, "locks are shown", || {
        let mut part = [0; 4096];
        let count = rustix::io::read(&master, &mut part).unwrap_or(0);
        screen.push_str(&String::from_utf8_lossy(&part[..count]));
        screen.contains("k03") && screen.contains("more")
    });
    running.signal(Signal::TERM);
    let end = running.end(LIMIT).with_code(0);
    assert_eq!(end.errors, "");
    screen.push_str(&printed(master));
    assert!(screen.starts_with("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H3 of 3 nodes can grant"));
    assert!(screen.ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l"), "{screen:?}");
    for picture in screen.split("\x1b[H").skip(1) {
        assert!(picture.matches('\n').count() < 12, "it scrolls: {picture:?}");
    }
}

#[test]
fn top_refuses_an_interval_that_is_too_short_to_read() {
    let fleet = Fleet::start(1);
    let ended = run_on(&fleet, &["top", "--every", "10ms"]).with_code(125);
    assert!(ended.errors.contains("give 100ms at least"), "{ended:?}");
}
