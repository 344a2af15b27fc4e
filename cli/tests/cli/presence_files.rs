//! Which files the tool replaces by the ready file and the file of metrics, and which it refuses.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::exec::{Desk, exec};
use super::*;

const FLAGS: [&str; 2] = ["--ready-file", "--metrics-file"];

/// Checks that the tool ends with 125 before it requests the lock, and leaves the file as it was.
#[track_caller]
fn assert_refused(fleet: &Fleet, desk: &Desk, flag: &str, place: &str, why: &str) {
    let about = |what: &str| {
        let there = std::fs::symlink_metadata(desk.path(place)).expect(what);
        (there.ino(), there.mode(), there.len(), there.mtime_nsec())
    };
    let monitor = fleet[0].monitor();
    let before = about("the test put it there");
    let ended = run(&mut exec(fleet, desk, &[flag, place], "echo ran")).with_code(125);
    assert_eq!(about("it is still there"), before, "{flag} {place}");
    assert!(ended.out.is_empty(), "{ended:?}");
    assert!(ended.errors.starts_with(&format!("redlatch: {flag} {place}: {why}")), "{ended:?}");
    let asked = monitor.lines();
    assert!(!asked.iter().any(|line| line.contains("SET")), "{asked:?}");
}

#[test]
fn presence_refuses_foreign_files_links_and_fifos_and_leaves_them_unchanged() {
    let (fleet, desk) = Desk::with_fleet(1);
    let fifo = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, desk.path("fifo"), FileType::Fifo, fifo, 0).expect("it can be made");
    desk.write("target", "precious\n");
    symlink("target", desk.path("link")).expect("it can be made");
    symlink("nothing", desk.path("dangling")).expect("it can be made");
    let _socket = UnixDatagram::bind(desk.path("socket")).expect("it can be made");
    std::fs::create_dir(desk.path("folder")).expect("it can be made");
    for flag in FLAGS {
        assert_refused(&fleet, &desk, flag, "fifo", "a FIFO is there");
        assert_refused(&fleet, &desk, flag, "link", "a symbolic link is there");
        assert_refused(&fleet, &desk, flag, "dangling", "a symbolic link is there");
        assert_refused(&fleet, &desk, flag, "socket", "a socket is there");
        assert_refused(&fleet, &desk, flag, "folder", "a directory is there");
    }
    assert_refused(&fleet, &desk, "--ready-file", "target", "a file of another program is there");
    assert_refused(&fleet, &desk, "--metrics-file", "target", "no metrics of redlatch are there");
    assert_eq!(desk.lines("target"), ["precious"]);
    desk.put("empty");
    assert_refused(&fleet, &desk, "--ready-file", "empty", "a file of another program is there");
    let both = ["--metrics-file", "both", "--ready-file", "./both"];
    run(&mut exec(&fleet, &desk, &both, "echo ran")).with_code(125);
    assert!(!desk.path("nothing").exists());
}

#[test]
#[ignore = "needs root: run as root, it makes a device"]
fn presence_refuses_devices_and_leaves_them_unchanged() {
    let (fleet, desk) = Desk::with_fleet(1);
    // A device like /dev/null.
    let (mode, null) = (Mode::RUSR | Mode::WUSR, makedev(1, 3));
    mknodat(CWD, desk.path("null"), FileType::CharacterDevice, mode, null).expect("we are root");
    for flag in FLAGS {
        assert_refused(&fleet, &desk, flag, "null", "a device is there");
    }
    let null = std::fs::symlink_metadata(desk.path("null")).expect("it is there");
    assert!(null.file_type().is_char_device());
}

#[test]
fn metrics_replace_an_empty_file_and_metrics_and_nothing_that_comes_later() {
    let (fleet, desk) = Desk::with_fleet(3);
    let flags = ["--metrics-file", "redlatch.prom"];
    desk.put("redlatch.prom");
    for _ in 0..2 {
        run(&mut exec(&fleet, &desk, &flags, "exit 3")).with_code(3);
        let code = "redlatch_exit_code{key=\"key\",file=\"redlatch.prom\"} 3";
        assert!(desk.lines("redlatch.prom").iter().any(|line| line == code));
    }
    // CMD replaces the file while it runs, and its file stays.
    let script = "echo precious > target; ln -s target new; mv -T new redlatch.prom";
    let ended = run(&mut exec(&fleet, &desk, &flags, script)).with_code(0);
    assert_eq!(desk.lines("target"), ["precious"], "{ended:?}");
    assert!(desk.path("redlatch.prom").is_symlink(), "{ended:?}");
}

/// Starts `exec` with a CMD that runs until the file `go` exists.
fn exec_until_file(fleet: &Fleet, desk: &Desk, key: &str, ready: &str, go: &str) -> Running {
    let script = format!("until [ -e {go} ]; do sleep 0.01; done");
    let arguments = ["exec", "--ready-file", ready, key, "--", "sh", "-c", &script];
    Running::start(tool_on(fleet, &arguments).current_dir(desk.path("")))
}

#[test]
fn ready_file_of_another_redlatch_is_left_alone() {
    let (fleet, desk) = Desk::with_fleet(3);
    let first = exec_until_file(&fleet, &desk, "key", "ready", "go");
    assert_eq!(desk.process("ready"), first.id());
    let is_first = || assert_eq!(desk.process("ready"), first.id());
    // A second redlatch gets no lock.
    run(&mut exec(&fleet, &desk, &["-n", "--ready-file", "ready"], "echo ran")).with_code(75);
    is_first();
    // A second redlatch gets another lock.
    let arguments = ["exec", "--ready-file", "ready", "other", "echo", "ran"];
    let ended = run(tool_on(&fleet, &arguments).current_dir(desk.path(""))).with_code(125);
    assert!(ended.out.is_empty(), "{ended:?}");
    let told = format!("--ready-file ready: process {} holds a lock with it", first.id());
    assert!(ended.errors.contains(&told), "{ended:?}");
    eventually(LIMIT, "its lock is released", || {
        values(&fleet, "other").iter().all(Option::is_none)
    });
    is_first();
    // A second redlatch waits for the lock, and gets it in the end.
    let second = exec_until_file(&fleet, &desk, "key", "ready", "never");
    std::thread::sleep(Duration::from_millis(300));
    is_first();
    desk.put("go");
    first.end(LIMIT).with_code(0);
    eventually(LIMIT, "the file is the second one's", || {
        desk.lines("ready").first() == Some(&second.id().to_string())
    });
    // A file that a killed process left is removed, even while its key is still held.
    second.signal(Signal::KILL);
    second.end(LIMIT).with_code(137);
    assert!(desk.path("ready").exists(), "nobody is left to remove it");
    run(&mut exec(&fleet, &desk, &["-n", "--ready-file", "ready"], "echo ran")).with_code(75);
    assert!(!desk.path("ready").exists(), "it says that a lock is held");
}

#[test]
fn ready_file_that_was_replaced_is_not_removed_at_the_end() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "rm ready; echo 4711 > ready";
    run(&mut exec(&fleet, &desk, &["--ready-file", "ready"], script)).with_code(0);
    assert_eq!(desk.process("ready"), 4711);
}

#[test]
fn cmd_does_not_inherit_the_files_of_its_lock() {
    let (fleet, desk) = Desk::with_fleet(3);
    let tool = env!("CARGO_BIN_EXE_redlatch");
    let nested = format!(
        "env | grep -E 'READY|METRICS'; cat ready; \
         REDLATCH_SERVERS={} {tool} exec --no-restart-guard other true; cat ready",
        fleet.urls().join(",")
    );
    let mut command = exec(&fleet, &desk, &[], &nested);
    command.env("REDLATCH_READY_FILE", desk.path("ready"));
    command.env("REDLATCH_METRICS_FILE", desk.path("redlatch.prom"));
    let outer = Running::start(&mut command);
    let id = outer.id();
    let ended = outer.end(LIMIT).with_code(0);
    assert_eq!(ended.out, format!("{id}\n{id}\n"), "{ended:?}");
    let key = |line: &String| line.contains("{key=\"other\"}");
    assert!(!desk.lines("redlatch.prom").iter().any(key), "the nested one wrote the metrics");
}
