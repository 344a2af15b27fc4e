//! A holder whose process is stopped until its locks are over: its first check afterwards reports
//! the loss.
//!
//! The holder is this test binary, started once more for that test alone.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::again;
use redlatch::{Guard, LostReason};

/// The line that the holder prints when it holds its locks.
const HOLDING: &str = "holding";

/// The line that the holder prints when it knows that it has lost its locks.
const BOTH_LOST: &str = "both are lost";

/// The ttl of the holder's locks: the holder keeps them even if the machine stalls for two seconds.
const SHORT: Duration = Duration::from_secs(4);

/// A child process, which is killed at the latest when the test ends.
struct Holder(Child);

impl Holder {
    fn start(test: &str, urls: &[String]) -> Holder {
        let mut command = again::command(module_path!(), test, urls);
        command.stdout(Stdio::piped());
        Holder(command.spawn().expect("it can be started again"))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("it runs");
    }

    /// Returns when the kernel reports that the process is stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        eventually(SOON, "the holder is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
            let stat = stat.expect("it was not waited for");
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        });
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn loss_is_returned_by_the_first_check_of_a_holder_stopped_past_its_ttl() {
    if let Some(urls) = again::nodes() {
        return the_holder(urls);
    }
    let fleet = Fleet::start(3);
    let test = "loss_is_returned_by_the_first_check_of_a_holder_stopped_past_its_ttl";
    let mut holder = Holder::start(test, &fleet.urls());
    let mut lines = BufReader::new(holder.0.stdout.take().expect("it is piped")).lines();
    let mut line = || lines.next().expect("it says more").expect("it can be read");
    while !line().ends_with(HOLDING) {}
    let client = client(&fleet);
    assert!(client.try_lock("kept", TTL).is_err() && client.try_lock("plain", TTL).is_err());
    client.drive(SHORT + SECOND).unwrap();
    assert!(client.try_lock("kept", TTL).is_err(), "it holds them for more than a ttl");
    holder.stop();
    let start = Instant::now();
    let ours = ["kept", "plain"].map(|key| client.lock(key, kept(TTL)).unwrap());
    println!("stopped: its locks are ours after {:?}", start.elapsed());
    // The holder stays stopped while this process has the locks.
    client.drive(SHORT).unwrap();
    holder.signal(Signal::CONT);
    let mut said = String::new();
    while said != BOTH_LOST {
        said = line();
        println!("{said}");
    }
    assert!(holder.0.wait().expect("it ends").success(), "the holder failed");
    client.drive(millis(50)).unwrap();
    for guard in &ours {
        let token = guard.token().to_string().into_bytes();
        let held = fleet.iter().filter_map(|node| node.get(guard.key()));
        assert!(held.filter(|held| *held == token).count() >= 2, "what it owes ended our lock");
        guard.check().unwrap();
    }
}

/// Runs in the other process: holds two locks until it finds that it was stopped.
fn the_holder(urls: Vec<String>) {
    let client = ready::client(plain(urls).node_timeout(SILENT));
    let renewed = client.lock("kept", kept(SHORT)).unwrap();
    let mut extended = client.try_lock("plain", SHORT).unwrap();
    println!("\n{HOLDING}");
    let mut before = clock::now();
    loop {
        let now = clock::now();
        if now.saturating_since(before) >= SHORT {
            return was_stopped(&client, &renewed, &extended);
        }
        before = now;
        renewed.check().expect("it runs, and keeps it");
        extended.check().expect("it runs, and extends it");
        // If the process was stopped just before this line, the extend reports the loss, too.
        let late = |before| clock::now().saturating_since(before) >= SHORT;
        assert!(extended.extend(SHORT).is_ok() || late(before));
        // The process is nearly always stopped in this call, so that the checks are its first calls
        // afterwards.
        client.drive(millis(20)).unwrap();
    }
}

fn was_stopped(client: &Client, renewed: &Guard<'_>, extended: &Guard<'_>) {
    // The check of the lock that is not renewed is local; the other check also reads the sockets.
    let (plain, kept) = (extended.check(), renewed.check());
    println!("{kept:?}\n{plain:?}");
    assert!(matches!(kept, Err(Error::Lost { reason: LostReason::Expired, .. })), "{kept:?}");
    assert!(matches!(plain, Err(Error::Lost { .. })), "{plain:?}");
    assert!(
        renewed.remaining().is_zero() && extended.deadline().is_none_or(|at| at < clock::now())
    );
    let lost = |update: &redlatch::LockUpdate| matches!(update.kind, LockUpdateKind::Lost(_));
    let losses = std::iter::from_fn(|| client.poll_lock_update()).filter(lost);
    let mut keys: Vec<_> = losses.map(|update| update.key().unwrap().to_vec()).collect();
    keys.sort();
    assert_eq!(keys, [&b"kept"[..], b"plain"], "each is reported once");
    println!("{BOTH_LOST}");
}
