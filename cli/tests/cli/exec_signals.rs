//! Signals to `redlatch exec` without a terminal: while it waits, while CMD runs, SIGKILL, and
//! SIGSTOP.

use std::io::Write;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::exec::{Desk, background_job, exec, parent_of, started, state_of};
use super::*;

/// A script that runs until the file `go` exists, and starts a new `sleep` all the time.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.01; done";

/// Waits until this process is stopped.
#[track_caller]
fn is_stopped(process: u32) {
    eventually(LIMIT, "the process is stopped", || state_of(process) == Some('T'));
}

#[test]
fn signal_while_exec_waits_ends_it_at_once_and_leaves_nothing() {
    let (fleet, desk) = Desk::with_fleet(3);
    // Another client holds the key on a majority, so the tool has to release the third node's
    // grant.
    for node in 0..2 {
        fleet[node].command(&["SET", "key", "another's"]);
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let log = std::fs::File::create(desk.path("log")).expect("the desk can be written");
        let mut command = exec(&fleet, &desk, &["--json"], "touch ran");
        let redlatch = Running::start(command.stderr(log));
        eventually(LIMIT, "it waits", || desk.lines("log").iter().any(|l| l.contains("waiting")));
        redlatch.signal(signal);
        let ended = redlatch.end(LIMIT);
        assert!(ended.took < LIMIT / 2, "it is not at once: {ended:?}");
        assert_eq!(ended.status.code(), Some(128 + signal.as_raw()));
        eventually(SOON, "the third node is released", || fleet[2].keys().is_empty());
    }
    assert!(!desk.path("ran").exists());
}

#[test]
fn exec_passes_signals_to_the_group_of_cmd_and_returns_its_code() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "sh -c \"trap 'echo grandchild >> log; exit' USR1; echo up > below; \
            while [ -e below ]; do sleep 0.01; done\" &
        for signal in HUP INT QUIT USR2 WINCH CONT; do trap \"echo $signal >> log\" $signal; done
        trap ':' USR1; trap 'echo TERM >> log; exit 9' TERM
        until [ -e below ]; do sleep 0.01; done
        echo up > up; while :; do sleep 0.01; done";
    let cmd = started(&fleet, &desk, &[], script);
    let sent = [
        (Signal::USR1, "grandchild"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::CONT, "CONT"),
        (Signal::TERM, "TERM"),
    ];
    for (signal, name) in sent {
        cmd.signal(signal);
        desk.wait_for_line("log", name);
    }
    cmd.end(LIMIT).with_code(9);
    assert_eq!(desk.lines("log"), sent.map(|(_, name)| name), "each once, in this order");
    fleet.wait_empty();
}

#[test]
fn cmd_does_not_outlive_a_redlatch_that_is_killed() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap '' HUP TERM; echo $$ > cmd; while [ -e cmd ]; do :; done";
    let mut redlatch = Running::start(&mut exec(&fleet, &desk, &["-t", "4s"], script));
    let cmd = desk.process("cmd");
    assert!(state_of(cmd).is_some());
    redlatch.signal(Signal::KILL);
    let start = Instant::now();
    eventually(SOON, "CMD is dead", || state_of(cmd).is_none());
    println!("CMD was dead after {:?}", start.elapsed());
    eventually(LIMIT, "redlatch is dead", || redlatch.try_reap());
    eventually(LIMIT, "the key dies with its ttl", || fleet.keys_everywhere().is_empty());
}

#[test]
fn exec_passes_ignored_signals_to_cmd() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = format!("trap 'echo WINCH > log' WINCH; echo up > up; {UNTIL_GO}; exit 4");
    let inner = exec(&fleet, &desk, &[], &script);
    // nohup ignores SIGHUP, and some parents ignore SIGCHLD.
    let mut outer = Command::new("env");
    outer.args(["--ignore-signal=HUP", "--ignore-signal=CHLD"]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.env("REDLATCH_SERVERS", fleet.urls().join(","));
    outer.current_dir(inner.get_current_dir().expect("it was set"));
    let redlatch = Running::start(&mut outer);
    desk.wait_for("up");
    redlatch.signal(Signal::HUP);
    // If redlatch had passed on SIGHUP, CMD would have got it before WINCH.
    redlatch.signal(Signal::WINCH);
    desk.wait_for_line("log", "WINCH");
    desk.put("go");
    assert_eq!(redlatch.end(LIMIT).code(), 4);
}

#[test]
fn cmd_stops_and_goes_on_together_with_redlatch() {
    let (fleet, desk) = Desk::with_fleet(3);
    // CMD waits in `read`, because /proc would not show a shell as stopped while it starts a
    // process.
    let script = "echo $$ > cmd; read line; exit 4";
    let mut command = exec(&fleet, &desk, &[], script);
    let mut redlatch = Running::start(command.stdin(Stdio::piped()));
    let cmd = desk.process("cmd");
    redlatch.signal(Signal::TSTP);
    is_stopped(redlatch.id());
    is_stopped(cmd);
    redlatch.signal(Signal::CONT);
    eventually(LIMIT, "CMD goes on", || state_of(cmd) != Some('T'));
    drop(redlatch.child.stdin.take());
    redlatch.end(LIMIT).with_code(4);
    fleet.wait_empty();
}

#[test]
fn cmd_that_was_stopped_for_too_long_never_goes_on() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap 'echo went on > log' CONT; echo $$ > cmd; read line";
    let mut command = exec(&fleet, &desk, &["-t", "4s"], script);
    let mut redlatch = Running::start(command.stdin(Stdio::piped()));
    let input = redlatch.child.stdin.take();
    let cmd = desk.process("cmd");
    redlatch.signal(Signal::TSTP);
    is_stopped(redlatch.id());
    is_stopped(cmd);
    eventually(LIMIT, "the lock is over", || fleet.keys_everywhere().is_empty());
    redlatch.signal(Signal::CONT);
    let ended = redlatch.end(LIMIT).with_code(124);
    assert!(ended.errors.contains("is lost"), "{ended:?}");
    assert_eq!(desk.lines("log"), [""; 0]);
    assert_eq!(state_of(cmd), None);
    drop(input);
}

#[test]
fn exec_stops_and_continues_children_of_cmd_with_redlatch() {
    let (fleet, desk) = Desk::with_fleet(3);
    // Each shell waits in `read` for a named pipe. A shell in a loop of `sleep` may be in vfork()
    // while its new child is stopped before its exec: then /proc never shows the shell as stopped.
    desk.write("apart.sh", "echo $$ > apart; read line < go; echo > went");
    let script = format!("echo $$ > cmd; {}; read line < went; exit 4", background_job("apart.sh"));
    for flags in [&[][..], &["--foreground"]] {
        let flags = [&["-t", "60s"], flags].concat();
        for name in ["go", "went"] {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, desk.path(name), FileType::Fifo, mode, 0).expect("the desk is ours");
        }
        let redlatch = Running::start(&mut exec(&fleet, &desk, &flags, &script));
        let all = [desk.process("cmd"), desk.process("apart"), redlatch.id()];
        // Waits until the shell that started the group has ended. If it ended while the group is
        // stopped, the kernel would send SIGHUP to the group.
        eventually(LIMIT, "that shell has ended", || parent_of(all[1]) == Some(redlatch.id()));
        redlatch.signal(Signal::TSTP);
        all.into_iter().for_each(is_stopped);
        redlatch.signal(Signal::CONT);
        // Opens the pipe for both directions, so that the open does not wait for ever if the reader
        // has ended.
        let go = std::fs::OpenOptions::new().read(true).write(true).open(desk.path("go"));
        go.as_ref().expect("it is there").write_all(b"\n").expect("a pipe takes a byte");
        redlatch.end(LIMIT).with_code(4);
        for name in ["cmd", "apart", "go", "went"] {
            std::fs::remove_file(desk.path(name)).expect("it was there");
        }
    }
}
