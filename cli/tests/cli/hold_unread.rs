//! `hold` whose token cannot be printed: it releases the lock.

use std::fs::File;
use std::io::{BufRead, BufReader};

use super::pipes::{broken_pipe, full_pipe};
use super::*;

/// The two ways to run `hold`: with text and with JSON as its output.
const WAYS: [&[&str]; 2] = [&["hold", "key"], &["hold", "--json", "key"]];

/// Much shorter than the ttl: a hold that ends within this has released its lock itself.
const SOON: Duration = Duration::from_secs(15);

#[track_caller]
fn assert_released(fleet: &Fleet, command: &mut Command, why: &str) {
    let ended = Running::start(command).end(SOON).with_code(125);
    let told = format!("redlatch: the standard output: {why}");
    assert!(ended.errors.starts_with(&told), "{ended:?}");
    assert!(ended.errors.contains("; the lock is released"), "{ended:?}");
    fleet.wait_empty();
}

#[test]
fn hold_whose_token_cannot_be_printed_gives_the_lock_back_and_is_125() {
    let fleet = Fleet::start(3);
    for way in WAYS {
        assert_released(&fleet, tool_on(&fleet, way).stdout(broken_pipe()), "broken pipe");
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        assert_released(&fleet, tool_on(&fleet, way).stdout(full), "no space left");
    }
    // Neither stdout nor stderr has a reader.
    let mut command = tool_on(&fleet, WAYS[0]);
    run(command.stdout(broken_pipe()).stderr(broken_pipe())).with_code(125);
    fleet.wait_empty();
}

#[test]
fn hold_without_a_stdout_asks_for_no_lock() {
    let fleet = Fleet::start(1);
    for way in WAYS {
        let own = tool_on(&fleet, way);
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(own.get_program()).args(own.get_args());
        shell.env("REDLATCH_SERVERS", fleet.urls().join(","));
        let monitor = fleet[0].monitor();
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = Running::start(&mut shell).end(SOON).with_code(125);
        assert!(ended.errors.contains("the standard output: it was closed"), "{ended:?}");
        assert!(!monitor.lines().iter().any(|line| line.contains("\"key\"")), "{ended:?}");
    }
}

#[test]
fn hold_whose_reader_leaves_a_full_pipe_gives_the_lock_back() {
    let fleet = Fleet::start(3);
    let (reader, writer, _) = full_pipe();
    let hold = Running::start(tool_on(&fleet, WAYS[0]).stdout(writer));
    let majority = || values(&fleet, "key").iter().flatten().count() >= 2;
    eventually(LIMIT, "the lock is held", majority);
    std::thread::sleep(Duration::from_millis(300));
    assert!(majority(), "the reader may read it still");
    drop(reader);
    let ended = hold.end(SOON).with_code(125);
    assert!(ended.errors.contains("broken pipe"), "{ended:?}");
    fleet.wait_empty();
}

#[test]
fn hold_goes_on_when_its_token_was_read_or_is_not_wanted() {
    let fleet = Fleet::start(3);
    let held = || values(&fleet, "key").iter().flatten().count() >= 2;
    let goes_on = |hold: Running| {
        std::thread::sleep(5 * SECOND);
        assert!(held(), "it was not renewed");
        hold.signal(Signal::TERM);
        hold.end(LIMIT).with_code(0);
        fleet.wait_empty();
    };
    // The lines after the first one have no reader.
    let mut command = tool_on(&fleet, &["hold", "--json", "-t", "4s", "key"]);
    let started = Instant::now();
    let mut child = in_own_group(&mut command).spawn().expect("the binary was built");
    let mut line = String::new();
    let out = child.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("text");
    assert!(line.contains("\"acquired\""), "{line}");
    let errors = child.stderr.take().map(reader);
    goes_on(Running { started, child, out: None, errors });
    let mut command = tool_on(&fleet, &["hold", "-q", "-t", "4s", "key"]);
    let quiet = Running::start(command.stdout(broken_pipe()));
    eventually(LIMIT, "the lock is held", held);
    goes_on(quiet);
}
