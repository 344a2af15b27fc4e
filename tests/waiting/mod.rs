//! Waiting for a key that another client holds, on real servers and between processes: which waiter
//! gets it next, when, and what is left of waiters that gave up.

mod barging;
mod cancelled;
mod crowd;
mod death;
mod hand_over;
mod inside;
mod line;
mod line_commands;
mod line_faults;
mod line_order;
mod odd_nodes;
mod process;
mod strangers;
mod uncontended;

use std::time::{Duration, Instant};

use crate::engine_loop::Loop;
use crate::ready;
use crate::support::{Dice, Fleet, Node, PlainTimer, Proxy, SECOND, SOON};
use crate::support::{despite_stalls, eventually, millis, number};
use redlatch::{Config, Lock, LockOptions, NodeId, Op, Outcome, ReleaseOutcome, RestartGuard};

/// No test waits for the end of such a lock: a waiter gets it by a notification or by a poll.
const TTL: Duration = Duration::from_secs(30);

/// A waiter without notifications has polled by then: ten times its longest pause between polls.
const POLLED_BY: Duration = Duration::from_secs(5);

/// The guard is off because these servers are seconds old. They granted no lock before.
fn config(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Config {
    Config::new(urls).expect("good addresses").restart_guard(RestartGuard::Off)
}

fn waiting() -> LockOptions {
    LockOptions::new(TTL).wait(60 * SECOND)
}

/// The present moment of the clock of deadlines, which is the same in all processes.
fn now() -> u64 {
    redlatch::clock::now().as_nanos()
}

/// Lets time pass, in tests that are about just that.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

fn wait_until_nothing_is_left<'a>(nodes: impl IntoIterator<Item = &'a Node>) {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    eventually(SOON, "no key is left", || nodes.iter().all(|node| node.keys().is_empty()));
}

/// What these tests do with an engine in its loop.
trait Waits {
    fn lock(&mut self, key: &str) -> Lock;
    fn locked(&mut self, op: Op) -> Lock;
    fn comes_to_rest(&mut self);
}

impl Waits for Loop {
    /// Acquires a lock, and waits until it is granted.
    #[track_caller]
    fn lock(&mut self, key: &str) -> Lock {
        let op = self.engine.acquire(key, waiting(), 0).expect("there is room");
        self.locked(op)
    }

    #[track_caller]
    fn locked(&mut self, op: Op) -> Lock {
        let mut ended = None;
        self.turn_until("it has the lock", |engine| {
            while let Some(done) = engine.poll_completion() {
                if done.op == op {
                    ended = Some(done.result);
                }
            }
            ended.is_some()
        });
        match ended {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    /// Waits until no request, pending release or wait is left.
    #[track_caller]
    fn comes_to_rest(&mut self) {
        self.turn_until("nothing is open", |engine| {
            while engine.poll_completion().is_some() {}
            let core = engine.coordinator();
            let nodes = (0..core.settings().nodes.len()).map(NodeId::new);
            let owed: usize = nodes.map(|node| core.pending_releases(node)).sum();
            owed == 0 && core.open_records() == 0 && core.open_ops() == 0
        });
    }
}
