//! Readers that close the pipe or do not read: the tool does not panic, and leaves no lock whose
//! token no process knows.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

/// A pipe whose ends child processes do not inherit.
fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).expect("there are pipes")
}

/// A full pipe, which takes no bytes until it is read: its two ends, and how many bytes are in it.
pub fn full_pipe() -> (File, OwnedFd, usize) {
    let (reader, writer) = pipe();
    // Makes the pipe non-blocking only while it is filled, because all its owners share that flag.
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("it can be set");
    let mut filling = File::from(writer.try_clone().expect("an end can be cloned"));
    let mut filled = 0;
    while let Ok(count) = filling.write(&[b'.'; 4096]) {
        filled += count;
    }
    while let Ok(count) = filling.write(b".") {
        filled += count;
    }
    fcntl_setfl(&writer, OFlags::empty()).expect("it can be set");
    (File::from(reader), writer, filled)
}

/// The writing end of a pipe whose reading end is closed.
pub fn broken_pipe() -> OwnedFd {
    let (reader, writer) = pipe();
    drop(reader);
    writer
}

#[test]
fn a_token_that_nobody_reads_is_released() {
    let fleet = Fleet::start(3);
    for json in [&["acquire", "deploy"][..], &["acquire", "--json", "deploy"]] {
        let mut command = tool_on(&fleet, json);
        let ended = run(command.stdout(broken_pipe())).with_code(125);
        assert!(ended.errors.contains("the lock is released"), "{ended:?}");
        fleet.wait_empty();
        // Neither stdout nor stderr has a reader.
        run(command.stdout(broken_pipe()).stderr(broken_pipe())).with_code(125);
        fleet.wait_empty();
    }
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let ended = run(tool_on(&fleet, &["acquire", "deploy"]).stdout(full)).with_code(125);
    assert!(ended.errors.contains("No space left"), "{ended:?}");
    fleet.wait_empty();
}

#[test]
fn a_token_is_released_where_there_is_no_output_for_it() {
    let fleet = Fleet::start(3);
    let redirected = |to: &str| {
        let own = tool_on(&fleet, &["acquire", "deploy"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("\"$@\" {to}"), "sh"]).arg(own.get_program());
        shell.args(own.get_args()).env("REDLATCH_SERVERS", fleet.urls().join(","));
        run(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let ended = redirected(">&-").with_code(125);
    assert!(ended.errors.contains("closed from the start"), "{ended:?}");
    redirected(">&- 2>&-").with_code(125);
    fleet.wait_empty();
    // A caller that sends the token to /dev/null wants the lock, so it is not released.
    redirected("> /dev/null").with_code(0);
    // A node to which the tool connects late may lack the key.
    assert!(fleet.keys_everywhere().len() >= 2);
    run_on(&fleet, &["status", "deploy"]).with_code(1);
}

#[test]
fn tool_with_a_full_pipe_waits_for_the_reader_but_can_end() {
    let fleet = Fleet::start(3);
    // A node to which the tool connects late may lack the key.
    let held = |fleet: &Fleet| values(fleet, "deploy").into_iter().flatten().collect::<Vec<_>>();
    let by_majority = |fleet: &Fleet| held(fleet).len() >= 2;
    // First case: a signal asks the tool to end.
    let (reader, writer, _) = full_pipe();
    let tool = Running::start(tool_on(&fleet, &["acquire", "deploy"]).stdout(writer));
    eventually(LIMIT, "it has the lock", || by_majority(&fleet));
    tool.signal(Signal::TERM);
    tool.end(LIMIT).with_code(143);
    fleet.wait_empty();
    drop(reader);
    // Second case: the reader does not read before the lock is over.
    let (reader, writer, _) = full_pipe();
    let mut command = tool_on(&fleet, &["acquire", "-t", "500ms", "deploy"]);
    let ended = run(command.stdout(writer)).with_code(125);
    assert!(ended.errors.contains("before the token was read"), "{ended:?}");
    nothing_is_left(&fleet);
    drop(reader);
    // Third case: the reader reads in time.
    let (mut reader, writer, filled) = full_pipe();
    let tool = Running::start(tool_on(&fleet, &["acquire", "deploy"]).stdout(writer));
    eventually(LIMIT, "it has the lock", || by_majority(&fleet));
    let mut filling = vec![0; filled];
    reader.read_exact(&mut filling).expect("what it was filled with");
    let mut token = String::new();
    reader.read_to_string(&mut token).expect("text");
    tool.end(LIMIT).with_code(0);
    assert!(by_majority(&fleet) && held(&fleet).iter().all(|it| it == token.trim()), "{token}");
}

#[test]
fn closed_outputs_do_not_stop_the_other_verbs() {
    let fleet = Fleet::start(3);
    let unread = |arguments: &[&str], code| {
        let mut command = tool_on(&fleet, arguments);
        run(command.stdout(broken_pipe()).stderr(broken_pipe())).with_code(code);
        // The tool is started with closed outputs.
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$@\" >&- 2>&-", "sh"]).arg(command.get_program());
        shell.args(command.get_args()).env("REDLATCH_SERVERS", fleet.urls().join(","));
        run(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let token = acquired(&fleet, &["deploy"]);
    unread(&["status", "deploy"], 1).with_code(1);
    unread(&["status", "--json", "deploy"], 1).with_code(1);
    unread(&["extend", "deploy", &token], 0).with_code(0);
    unread(&["acquire", "-n", "deploy"], 75).with_code(75);
    // Each verb runs twice. The second release finds no lock.
    unread(&["release", "deploy", &token], 0).with_code(1);
    nothing_is_left(&fleet);
    for (arguments, code) in
        [(&["nonsense"][..], 125), (&["--help"], 0), (&["man"], 0), (&["completions", "bash"], 0)]
    {
        let mut command = tool(arguments);
        run(command.stdout(broken_pipe()).stderr(broken_pipe())).with_code(code);
    }
}
