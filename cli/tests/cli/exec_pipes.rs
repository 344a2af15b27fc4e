//! `redlatch exec` whose output has no reader: it renews and releases the lock all the same.

use super::exec::{Desk, exec};
use super::pipes::{broken_pipe, full_pipe};
use super::*;

#[test]
fn exec_ends_and_releases_with_a_full_pipe() {
    let (fleet, desk) = Desk::with_fleet(3);
    let (unread, full, _) = full_pipe();
    let script = "echo up > up; until [ -e go ]; do sleep 0.01; done; exit 3";
    let mut command = exec(&fleet, &desk, &["--json", "-t", "3s"], script);
    let cmd = Running::start(command.stderr(full));
    drop(command);
    desk.wait_for("up");
    // A node to which the tool connects late gets the key with the first renewal.
    eventually(LIMIT, "the first node holds it", || fleet[0].get("key").is_some());
    let token = fleet[0].get("key");
    // A renewal after the first line that could not be written shows that the loop goes on.
    let mut left = fleet[0].pttl("key");
    eventually(LIMIT, "the lock is renewed", || {
        let before = std::mem::replace(&mut left, fleet[0].pttl("key"));
        left > before
    });
    assert_eq!(fleet[0].get("key"), token);
    desk.put("go");
    cmd.end(LIMIT).with_code(3);
    fleet.wait_empty();
    drop(unread);
}

#[test]
fn exec_ends_and_releases_with_closed_outputs() {
    let (fleet, desk) = Desk::with_fleet(3);
    // Stderr has no reader. CMD does not notice that.
    run(exec(&fleet, &desk, &["--json"], "exit 5").stderr(broken_pipe())).with_code(5);
    fleet.wait_empty();
    // Stdout has no reader, which ends CMD.
    let by_pipe = 128 + Signal::PIPE.as_raw();
    run(exec(&fleet, &desk, &[], "exec yes").stdout(broken_pipe())).with_code(by_pipe);
    fleet.wait_empty();
    // All three files are closed.
    let script = format!(
        "exec {} exec --json --no-restart-guard key -- sh -c 'exit 6' <&- >&- 2>&-",
        env!("CARGO_BIN_EXE_redlatch")
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("REDLATCH_SERVERS", fleet.urls().join(","));
    assert_eq!(shell.status().expect("there is a shell").code(), Some(6));
    fleet.wait_empty();
}
