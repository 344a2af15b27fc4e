//! A contender that is the core of a client.

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeId, NodeSettings, Settings};
use redlatch::testing::net::Endpoint;
use redlatch::{Lock, Outcome};

use super::kind::Kind;
use super::program::{Program, Progress};
use super::world::{NODES, TTL};

/// Longer than a run, so that the commands of probes do not count as costs of locks.
const PROBES: Duration = Duration::from_secs(3600);

/// The numbers that the completions of a request and of a release carry.
const ASKED: u64 = 1;
const RELEASED: u64 = 2;

/// A client and the lock that it holds.
pub struct Client {
    kind: Kind,
    core: Coordinator,
    lock: Option<Lock>,
}

impl Client {
    pub fn new(kind: Kind, seed: [u8; 32], now: Instant) -> Client {
        let labels = (0..NODES).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.probe_interval = PROBES;
        let core = Coordinator::new(settings, seed, now).expect("good settings");
        Client { kind, core, lock: None }
    }
}

impl Program for Client {
    fn ask(&mut self, keys: Vec<String>, now: Instant) {
        let options = self.kind.options(TTL);
        self.core.acquire(keys, options, ASKED, now).expect("there is room");
    }

    fn release(&mut self, now: Instant) {
        let lock = self.lock.take().expect("it has the lock");
        self.core.release(lock, RELEASED, now);
    }

    fn progress(&mut self, now: Instant) -> Progress {
        let mut progress = Progress::default();
        while let Some(done) = self.core.poll_completion(now) {
            match done.result.expect("it waits for ever") {
                Outcome::Acquired(lock) => {
                    let numbers = if self.kind.fenced { self.kind.keys } else { 0 };
                    assert_eq!(lock.fences().len(), numbers);
                    (progress.won, self.lock) = (true, Some(lock));
                }
                _ => progress.released = true,
            }
        }
        progress
    }
}

impl Endpoint for Client {
    fn poll_action(&mut self) -> Option<Action> {
        self.core.poll_action()
    }

    fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.core.handle_connected(node, now);
    }

    fn handle_disconnected(&mut self, _: NodeId, words: &str, _: Instant) {
        panic!("no connection ends: {words}");
    }

    fn output(&self, node: NodeId) -> &[u8] {
        self.core.output(node)
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.core.handle_sent(node, count, now);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        self.core.handle_bytes(node, bytes, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        self.core.has_completions()
    }
}
