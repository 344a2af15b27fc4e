//! A holder is stopped past its ttl, another process takes the lock and writes, and the first one
//! goes on: the store refuses its late write. All of them are real processes.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod postgres_server;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use postgres_server::PostgresServer;
use redlatch_stores::open;
use support::{Fleet, SECOND, eventually};

/// A process that wants the lock, and writes when the test asks it to.
struct Holder {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(store: &str, value: &str, fleet: &Fleet) -> Holder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch-stores"));
        command.args([store, value]).args(fleet.urls());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it was built");
        let input = child.stdin.take().expect("it is piped");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Holder { child, input, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it says more").expect("it can be read")
    }

    /// Waits until it has the lock. Returns its number.
    fn fence(&mut self) -> u64 {
        let line = self.line();
        let number = line.strip_prefix("holding ").expect("it has the lock");
        number.parse().expect("a number")
    }

    /// Lets it write. Returns what it says of that.
    fn write(&mut self) -> String {
        self.input.write_all(b"\n").expect("it waits for that");
        self.line()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("it runs");
    }

    /// Returns when the kernel says that it is stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        eventually(5 * SECOND, "the holder is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
            let stat = stat.expect("it was not waited for");
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        });
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn late_write_is_refused(url: &str) {
    let fleet = Fleet::start(3);
    let mut paused = Holder::start(url, "of the paused holder", &fleet);
    let earlier = paused.fence();
    paused.stop();
    let mut next = Holder::start(url, "of the next holder", &fleet);
    let later = next.fence();
    assert!(later > earlier, "{later} after {earlier}");
    assert_eq!(next.write(), "written");
    paused.signal(Signal::CONT);
    assert_eq!(paused.write(), "refused: the store has a greater number");
    let mut store = open(url).expect("the store is there");
    assert_eq!(store.read(1).expect("it was written"), ("of the next holder".into(), later));
    // One number is good for one write: a holder that writes more often compares with `<=`.
    assert!(!store.save(1, "again", later).expect("the store answers"));
}

#[test]
fn sqlite_refuses_the_late_write_of_a_paused_holder() {
    let file = std::env::temp_dir().join(format!("redlatch-stores-{}.db", std::process::id()));
    late_write_is_refused(&format!("sqlite:{}", file.display()));
    std::fs::remove_file(file).expect("the test has made it");
}

#[test]
#[ignore = "needs PostgreSQL: apt-get install postgresql"]
fn postgresql_refuses_the_late_write_of_a_paused_holder() {
    let server = PostgresServer::start();
    late_write_is_refused(&server.url());
}
