//! `redlatch exec` in a namespace of process numbers, as in a container. Its session and group
//! belong to the outside and have no number inside. It may be process 1, and /proc may be that of
//! another namespace.

use super::exec::{Desk, background_job, events, exec};
use super::exec_lost::{RECORD, last_deadline, last_moment};
use super::*;

/// A CMD that never ends, with a descendant that ignores SIGTERM and has its own group.
fn endless(fleet: &Fleet, desk: &Desk, flags: &[&str]) -> Command {
    desk.write("below.sh", &format!("trap '' TERM; {RECORD} below; done"));
    let script = format!("echo up > cmd; {}; {RECORD} log; done", background_job("below.sh"));
    let flags = [&["-t", "2s", "--grace", "500ms", "--no-renew", "--json"], flags].concat();
    exec(fleet, desk, &flags, &script)
}

/// Runs redlatch in a namespace. Process 1 there is a shell that runs the script `first`, with the
/// command line of redlatch as its arguments.
fn contained(fleet: &Fleet, inner: &Command, first: &str, own_proc: bool) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--fork", "--kill-child"]).args(own_proc.then_some("--mount-proc"));
    outer.args(["sh", "-c", first, "sh"]).arg(inner.get_program()).args(inner.get_args());
    outer.env("REDLATCH_SERVERS", fleet.urls().join(","));
    outer.current_dir(inner.get_current_dir().expect("it was set"));
    outer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    outer
}

/// redlatch replaces the shell, so it is process 1.
const FIRST: &str = "exec \"$@\"";

/// redlatch is not process 1, which lives until the deadline has passed: when process 1 ends, the
/// kernel kills everything in its namespace.
const BESIDE: &str = "\"$@\"; code=$?; sleep 1; exit $code";

/// Runs the command, and checks that CMD is dead before the deadline.
#[track_caller]
fn assert_stopped_in_time(desk: &Desk, command: &mut Command) -> Ended {
    let ended = run(command).with_code(124);
    assert!(last_moment(desk, "log") < last_deadline(&events(&ended)), "{ended:?}");
    ended
}

#[test]
#[ignore = "needs unshare: root and apt-get install util-linux"]
fn exec_in_a_session_of_another_namespace_stops_all_of_cmd_in_time() {
    for flags in [&[][..], &["--foreground"]] {
        let (fleet, desk) = Desk::with_fleet(3);
        let redlatch = endless(&fleet, &desk, flags);
        let mut command = contained(&fleet, &redlatch, BESIDE, true);
        let ended = assert_stopped_in_time(&desk, &mut command);
        let last = last_moment(&desk, "below");
        assert!(last < last_deadline(&events(&ended)), "{flags:?}: {last}, {ended:?}");
    }
}

#[test]
#[ignore = "needs unshare: root and apt-get install util-linux"]
fn exec_as_process_1_returns_the_code_of_cmd_and_stops_it_in_time() {
    let (fleet, desk) = Desk::with_fleet(3);
    let short = exec(&fleet, &desk, &[], "exit 7");
    run(&mut contained(&fleet, &short, FIRST, true)).with_code(7);
    fleet.wait_empty();
    let redlatch = endless(&fleet, &desk, &[]);
    assert_stopped_in_time(&desk, &mut contained(&fleet, &redlatch, FIRST, true));
}

#[test]
#[ignore = "needs unshare: root and apt-get install util-linux"]
fn with_a_proc_of_another_namespace_exec_signals_no_stranger_and_reports_what_is_left() {
    for flags in [&[][..], &["--foreground"]] {
        let (fleet, desk) = Desk::with_fleet(3);
        let redlatch = endless(&fleet, &desk, flags);
        let mut command = contained(&fleet, &redlatch, BESIDE, false);
        let ended = assert_stopped_in_time(&desk, &mut command);
        for text in ["/proc, which is of another namespace", "is still alive"] {
            assert!(ended.errors.contains(text), "{flags:?}, {text}: {ended:?}");
        }
    }
}
