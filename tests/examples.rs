//! The examples: each is run as a reader runs it, and its output is checked.
//!
//! Cargo builds them together with the tests, into a folder next to theirs.

use std::path::PathBuf;
use std::process::Command;

use redlatch::testing::tcp::Masters;

/// Runs an example to its end, with these arguments, and returns what it printed.
#[track_caller]
fn run(name: &str, arguments: &[String]) -> String {
    // This binary is `.../target/debug/deps/examples-0123`, and the example is
    // `.../target/debug/examples/NAME`.
    let this = std::env::current_exe().expect("a test binary has a path");
    let profile = this.parent().and_then(|deps| deps.parent()).expect("it is in a folder of two");
    let program: PathBuf = profile.join("examples").join(name);
    assert!(program.exists(), "first: cargo build --all-features --examples");
    let output = Command::new(&program).args(arguments).output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{said}\n{errors}", output.status);
    assert_eq!(errors, "", "{name}");
    said
}

/// Checks that lines of the output contain these pieces, in this order. Other lines may come
/// between.
#[track_caller]
fn says(said: &str, pieces: &[&str]) {
    let mut lines = said.lines();
    for piece in pieces {
        let found = lines.by_ref().any(|line| line.contains(piece));
        assert!(found, "no line says {piece:?} where it should:\n{said}");
    }
}

/// Runs an example with masters that it starts itself, and then with masters of the test.
#[track_caller]
fn run_twice(name: &str, pieces: &[&str]) {
    says(&run(name, &[]), pieces);
    let masters = Masters::start(5).expect("there are ports");
    // The masters report an uptime of a day. An example with addresses has the restart guard on,
    // and would not be granted a lock by new masters.
    masters.iter().for_each(|master| master.set_uptime(86_400));
    says(&run(name, &masters.urls()), pieces);
    assert!(masters.iter().all(|master| master.keys().is_empty()), "{name} left something");
}

#[test]
fn blocking() {
    run_twice("blocking", &["held for 9.", "page 3", "given back: Released", "may be left: 0"]);
}

#[test]
fn mio() {
    run_twice("mio", &["held for 9.", "16 bytes for you", "given back: Released"]);
}

#[test]
fn epoll() {
    run_twice("epoll", &["held for 9.", "16 bytes for you", "given back: Released"]);
}

#[test]
fn game_loop() {
    run_twice("game_loop", &["the door is closed", "is mine", "is open", "given back: Released"]);
}

#[test]
fn shared() {
    let last = ["the report says 12", "may be left: 0"];
    run_twice("shared", &[&["writes page 3", "given back:"], &last[..]].concat());
}

#[test]
fn leader() {
    let pieces =
        ["leads in term ", ": step 3", "leads in term ", ": step 3", "None leads at the end"];
    says(&run("leader", &[]), &pieces);
    let masters = Masters::start(5).expect("there are ports");
    masters.iter().for_each(|master| master.set_uptime(86_400));
    says(&run("leader", &masters.urls()), &pieces);
}

#[test]
fn transfer() {
    run_twice("transfer", &["account:7: 900", "account:9: 1100", "may be left: 0"]);
}

#[cfg(feature = "tokio")]
#[test]
fn tokio() {
    let pieces = ["held for 9.", "page 3", "no other task", "given back:", "be left: 0"];
    run_twice("tokio", &pieces);
}

#[test]
fn smol() {
    let pieces = ["writes", "given back:", "the report is written", "may be left: 0"];
    run_twice("smol", &pieces);
}
