//! `hold`: the lock is held and renewed until a signal comes or stdin closes.

use std::io::{BufRead, BufReader};

use super::exec_terminal::Terminal;
use super::status::terminal;
use super::*;

/// A `hold` that holds its lock, with a pipe on stdin that stays open.
pub struct Holding {
    pub tool: Running,
    pub token: String,
    pub stdin: Option<std::process::ChildStdin>,
    rest: BufReader<std::process::ChildStdout>,
}

impl Holding {
    #[track_caller]
    pub fn start(command: &mut Command) -> Holding {
        command.stdin(Stdio::piped());
        let started = Instant::now();
        let mut child = in_own_group(command).spawn().expect("the binary was built");
        let stdin = child.stdin.take();
        let mut rest = BufReader::new(child.stdout.take().expect("it is piped"));
        let errors = child.stderr.take().map(reader);
        let tool = Running { started, child, out: None, errors };
        let mut line = String::new();
        rest.read_line(&mut line).expect("text");
        Holding { tool, token: line.trim_end().to_owned(), stdin, rest }
    }
}

#[test]
fn hold_renews_the_lock_until_stdin_closes() {
    let fleet = Fleet::start(3);
    let mut holding = Holding::start(&mut tool_on(&fleet, &["hold", "-t", "4s", "key"]));
    assert_eq!(holding.token.find(':'), Some(40), "one line, the token: {:?}", holding.token);
    std::thread::sleep(5 * SECOND);
    is_held_everywhere(&fleet, "key", &holding.token);
    run_on(&fleet, &["acquire", "-n", "key"]).with_code(75);
    drop(holding.stdin.take());
    let ended = holding.tool.end(LIMIT).with_code(0);
    assert!(ended.took < LIMIT / 2 && ended.errors.is_empty(), "{ended:?}");
    let mut rest = String::new();
    holding.rest.read_line(&mut rest).expect("text");
    assert_eq!(rest, "");
    fleet.wait_empty();
}

#[test]
fn hold_releases_at_a_signal_and_says_so_as_json() {
    let fleet = Fleet::start(3);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut command = tool_on(&fleet, &["hold", "--json", "key"]);
        let mut holding = Holding::start(&mut command);
        let acquired: Value = serde_json::from_str(&holding.token).expect("JSON");
        let wanted = ["event", "key", "token", "deadline_unix_ms", "remaining_ms"];
        assert_eq!(fields(&acquired)[..5], wanted);
        assert_eq!(acquired["event"], "acquired");
        holding.tool.signal(signal);
        holding.tool.end(LIMIT).with_code(0);
        let mut line = String::new();
        holding.rest.read_line(&mut line).expect("text");
        let released: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&released["event"], &released["outcome"]),
            (&"released".into(), &"released".into())
        );
        fleet.wait_empty();
    }
}

#[test]
fn hold_without_an_open_stdin_ends_by_signal_alone() {
    let fleet = Fleet::start(3);
    // /dev/null is at its end from the beginning, so hold ignores it.
    let holding = Running::start(&mut tool_on(&fleet, &["hold", "key"]));
    eventually(LIMIT, "the lock is held", || values(&fleet, "key").iter().all(Option::is_some));
    std::thread::sleep(Duration::from_millis(300));
    assert!(values(&fleet, "key").iter().all(Option::is_some), "it was released");
    holding.signal(Signal::TERM);
    let out = holding.end(LIMIT).with_code(0).out;
    assert_eq!(out.lines().count(), 1, "the token: {out:?}");
}

#[test]
fn hold_that_loses_its_lock_ends_with_124_in_time() {
    let fleet = Fleet::start(3);
    let holding = Holding::start(&mut tool_on(&fleet, &["hold", "-t", "2s", "key"]));
    fleet.command(&["SET", "key", "another's"]);
    let ended = holding.tool.end(LIMIT).with_code(124);
    assert!(ended.errors.contains("the lock is lost"), "{ended:?}");
    fleet.command(&["DEL", "key"]);

    // If no majority answers, the lock is not renewed, and hold ends before its deadline.
    let holding = Holding::start(&mut tool_on(&fleet, &["hold", "-t", "2s", "key"]));
    let (frozen, timer) = (Instant::now(), PlainTimer::start());
    fleet.on([0, 1], Node::stop);
    let ended = holding.tool.end(LIMIT).with_code(124);
    // The ttl counts from before the freeze, and hold ends a twelfth of the ttl before the
    // deadline.
    let limit = timer.limit(Duration::from_millis(1950));
    assert!(frozen.elapsed() < limit, "{:?}", frozen.elapsed());
    assert!(ended.errors.contains("ends in"), "it warned: {ended:?}");
}

#[test]
fn hold_that_waits_ends_at_a_signal_at_closed_stdin_and_at_its_wait() {
    let fleet = Fleet::start(3);
    fleet.command(&["SET", "key", "another's", "PX", "600000"]);
    run_on(&fleet, &["hold", "-n", "key"]).with_code(75);
    run_on(&fleet, &["hold", "-n", "-E", "9", "key"]).with_code(9);
    let waiting = Running::start(&mut tool_on(&fleet, &["hold", "key"]));
    std::thread::sleep(Duration::from_millis(300));
    waiting.signal(Signal::TERM);
    waiting.end(LIMIT).with_code(143);
    let mut waiting = Running::start(tool_on(&fleet, &["hold", "key"]).stdin(Stdio::piped()));
    std::thread::sleep(Duration::from_millis(300));
    drop(waiting.child.stdin.take());
    let ended = waiting.end(LIMIT).with_code(75);
    assert!(ended.errors.contains("stdin was closed"), "{ended:?}");
    assert!(ended.out.is_empty());
    assert!(values(&fleet, "key").iter().all(|it| it.as_deref() == Some("another's")));
}

#[test]
fn hold_on_a_terminal_ends_at_the_end_of_input() {
    let fleet = Fleet::start(1);
    let (mut screen, holding) = Terminal::start(&mut tool_on(&fleet, &["hold", "key"]));
    eventually(LIMIT, "the lock is held", || values(&fleet, "key")[0].is_some());
    screen.type_in(b"what is typed is ignored\n");
    std::thread::sleep(Duration::from_millis(300));
    assert!(values(&fleet, "key")[0].is_some(), "it was released");
    screen.type_in(b"\x04");
    holding.end(LIMIT).with_code(0);
    fleet.wait_empty();
}

#[test]
fn hold_in_the_background_does_not_read_its_terminal() {
    let fleet = Fleet::start(1);
    let (screen, theirs) = terminal();
    let mut command = tool_on(&fleet, &["hold", "key"]);
    // The terminal belongs to no session, so hold is not in its foreground and does not read it.
    let holding = Running::start(command.stdin(theirs));
    eventually(LIMIT, "the lock is held", || values(&fleet, "key")[0].is_some());
    rustix::io::write(&screen, b"\x04").expect("the terminal is open");
    std::thread::sleep(Duration::from_millis(300));
    assert!(values(&fleet, "key")[0].is_some(), "a background process read its terminal");
    holding.signal(Signal::TERM);
    holding.end(LIMIT).with_code(0);
}
