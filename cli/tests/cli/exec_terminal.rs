//! `redlatch exec` on a terminal: signals of the keyboard reach CMD exactly once, and a shell's job
//! control sees one job. Also tests the process group of CMD.
#![expect(unsafe_code, reason = "a child takes the terminal before it becomes another program")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::exec::{Desk, exec, state_of};
use super::exec_lost::{
    LastWords, RECORD, assert_dead_before_the_deadline, continue_masters, last_moment, now_ms,
    stop_majority,
};
use super::*;

const CTRL_C: &[u8] = b"\x03";
const CTRL_BACKSLASH: &[u8] = b"\x1c";
const CTRL_Z: &[u8] = b"\x1a";

/// The user's end of a terminal.
pub struct Terminal(File);

impl Terminal {
    /// Starts a command on a terminal of its own, as the first process of a session.
    pub fn start(command: &mut Command) -> (Terminal, Running) {
        // The descriptor is close-on-exec, because the command must not inherit the test's end.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(name, flags, Mode::empty()).expect("it is there");
        let clone = || -> OwnedFd { theirs.try_clone().expect("it can be cloned") };
        command.stdin(clone()).stdout(clone()).stderr(clone());
        let take_terminal = || {
            setsid()?;
            ioctl_tiocsctty(std::io::stdin())?;
            Ok(())
        };
        // SAFETY: between fork and exec these are two system calls; nothing is allocated or locked.
        unsafe { command.pre_exec(take_terminal) };
        // The command does not get a group of its own, because the leader of a group cannot begin a
        // session.
        let running = Running::spawn(with_default_signals(command));
        // The test does not read this output, which fits into the terminal's buffer.
        (Terminal(File::from(ours)), running)
    }

    /// Reads until this text was printed or echoed.
    fn wait_for(&mut self, printed: &[u8]) {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !seen.ends_with(printed) {
            self.0.read_exact(&mut byte).expect("the terminal is open");
            seen.extend(byte);
        }
    }

    pub fn type_in(&mut self, keys: &[u8]) {
        self.0.write_all(keys).expect("the terminal is open");
    }
}

/// The process group of a process.
fn group_of(process: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(')').expect("the name ends");
    rest.split_whitespace().nth(2).and_then(|group| group.parse().ok()).expect("a group")
}

#[test]
fn exec_typed_signal_reaches_cmd_once() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "for signal in INT QUIT USR1; do trap \"echo $signal >> log\" $signal; done
        trap 'exit 9' TERM; read line; echo \"$line\" > line; echo $$ > cmd
        while :; do sleep 0.01; done";
    let (mut terminal, redlatch) = Terminal::start(&mut exec(&fleet, &desk, &[], script));
    // CMD reads the terminal, so it is in the terminal's foreground group, which is redlatch's.
    terminal.type_in(b"hello\n");
    desk.wait_for_line("line", "hello");
    assert_eq!(group_of(desk.process("cmd")), redlatch.id());
    let mut log = Vec::new();
    for (keys, name) in [(CTRL_C, "INT"), (CTRL_BACKSLASH, "QUIT"), (CTRL_C, "INT")] {
        terminal.type_in(keys);
        log.push(name);
        eventually(LIMIT, name, || desk.lines("log").len() == log.len());
        // If CMD had got the typed signal twice, the second one would arrive before USR1.
        redlatch.signal(Signal::USR1);
        log.push("USR1");
        eventually(LIMIT, name, || desk.lines("log").len() >= log.len());
        assert_eq!(desk.lines("log"), log);
    }
    // A signal to redlatch alone is passed on.
    redlatch.signal(Signal::INT);
    log.push("INT");
    eventually(LIMIT, "INT is passed on", || desk.lines("log") == log);
    redlatch.signal(Signal::TERM);
    assert_eq!(redlatch.end(LIMIT).code(), 9);
    fleet.wait_empty();
}

#[test]
fn exec_sends_no_signal_that_the_terminal_sends() {
    let (fleet, desk) = Desk::with_fleet(3);
    // A CMD that leaves the terminal gets typed signals only from redlatch.
    let script = "exec setsid sh -c 'for signal in INT QUIT USR1; do
        trap \"echo $signal >> log; exit 9\" $signal; done
        echo up > up; while :; do sleep 0.01; done'";
    let (mut terminal, redlatch) = Terminal::start(&mut exec(&fleet, &desk, &[], script));
    desk.wait_for("up");
    terminal.type_in(CTRL_C);
    terminal.type_in(CTRL_BACKSLASH);
    // When the terminal has echoed a typed signal, redlatch has got it, and handles it before USR1.
    terminal.wait_for(b"^\\");
    redlatch.signal(Signal::USR1);
    assert_eq!(redlatch.end(LIMIT).code(), 9);
    assert_eq!(desk.lines("log"), ["USR1"]);
}

#[test]
fn the_hang_up_of_a_terminal_reaches_cmd() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap 'echo HUP >> log; exit 9' HUP; echo up > up; while :; do sleep 0.01; done";
    let (terminal, redlatch) = Terminal::start(&mut exec(&fleet, &desk, &[], script));
    desk.wait_for("up");
    drop(terminal);
    assert_eq!(redlatch.end(LIMIT).code(), 9);
    assert_eq!(desk.lines("log"), ["HUP"]);
    fleet.wait_empty();
}

#[test]
fn exec_on_a_terminal_ends_children_before_the_deadline() {
    assert_dead_before_the_deadline(lose_on_a_terminal);
}

fn lose_on_a_terminal() -> Vec<LastWords> {
    let (fleet, desk) = Desk::with_fleet(3);
    // SIGTERM ends the shell, but not its child, which has a child in a group of its own, as with
    // job control.
    let script = format!(
        "echo $$ > cmd; sh -c \"trap '' TERM; echo \\$\\$ > below
        set -m; sh -c 'echo \\$\\$ > further; {RECORD} further-log; done' & set +m
        {RECORD} below-log; done\"; exit 3"
    );
    let mut command = exec(&fleet, &desk, &["-t", "3s", "--no-renew"], &script);
    let (_terminal, redlatch) = Terminal::start(&mut command);
    let started = ["cmd", "below", "further"].map(|name| desk.process(name));
    assert_ne!(group_of(started[2]), redlatch.id());
    desk.wait_for("further-log");
    // Nothing renews the lock, so the keys end at about the same time on all nodes that have them.
    let over = |node: &Node| Some(now_ms() + u64::try_from(node.pttl("key")).ok()?);
    let ends: Vec<u64> = fleet.iter().filter_map(over).collect();
    let deadline = *ends.iter().min().expect("a majority has the key");
    stop_majority(&fleet);
    assert_eq!(redlatch.end(LIMIT).code(), 124);
    assert_eq!(started.map(state_of), [None; 3]);
    let last_words = ["below-log", "further-log"].map(|log| LastWords {
        log: log.to_owned(),
        last: last_moment(&desk, log),
        deadline,
    });
    continue_masters(&fleet);
    last_words.into()
}

#[test]
fn shell_stops_and_continues_exec_and_cmd_as_one_job() {
    let (fleet, desk) = Desk::with_fleet(3);
    // CMD waits in `read`, because /proc would not show a shell as stopped while it starts a
    // process.
    let script = "echo $$ > cmd; read line; exit 4";
    let job = exec(&fleet, &desk, &[], script);
    let shell = "set -m; \"$0\" \"$@\"; echo stopped > shell; \
        until [ -e resume ]; do sleep 0.01; done; fg > shell-fg; echo $? > code";
    let mut command = Command::new("sh");
    command.args(["-c", shell]).arg(job.get_program()).args(job.get_args());
    command.env("REDLATCH_SERVERS", fleet.urls().join(","));
    command.current_dir(job.get_current_dir().expect("it was set"));
    let (mut terminal, shell) = Terminal::start(&mut command);
    let cmd = desk.process("cmd");
    terminal.type_in(CTRL_Z);
    desk.wait_for("shell");
    assert_eq!(state_of(cmd), Some('T'));
    desk.put("resume");
    eventually(LIMIT, "CMD goes on", || state_of(cmd) != Some('T'));
    terminal.type_in(b"go\n");
    desk.wait_for_line("code", "4");
    shell.end(LIMIT);
    fleet.wait_empty();
}

#[test]
fn without_a_terminal_cmd_has_a_group_of_its_own_unless_it_is_to_be_in_front() {
    let (fleet, desk) = Desk::with_fleet(3);
    for (flags, own) in [(&[][..], true), (&["--foreground"], false)] {
        let script = "echo $$ > cmd; until [ -e go ]; do sleep 0.01; done";
        let mut command = exec(&fleet, &desk, flags, script);
        let redlatch = Running::start(&mut command);
        let cmd = desk.process("cmd");
        let expected = if own { cmd } else { group_of(redlatch.id()) };
        assert_eq!(group_of(cmd), expected, "{flags:?}");
        redlatch.signal(Signal::TERM);
        redlatch.end(LIMIT).with_code(143);
        std::fs::remove_file(desk.path("cmd")).expect("it was there");
    }
}
