//! A contender that is the core of a client.

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeId, NodeSettings, Settings};
use redlatch::{Lock, Outcome};

use super::kind::Kind;
use super::program::{Program, Progress};
use super::world::{NODES, TTL};

/// Longer than a run: the commands of probes are no costs of locks.
const PROBES: Duration = Duration::from_secs(3600);

/// The numbers of a request and of a release in their completions.
const ASKED: u64 = 1;
const RELEASED: u64 = 2;

/// A client with its lock.
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

    fn on_connected(&mut self, node: usize, now: Instant) {
        self.core.handle_connected(NodeId::new(node), now);
    }

    fn hear(&mut self, node: usize, bytes: &[u8], now: Instant) {
        self.core.handle_bytes(NodeId::new(node), bytes, now);
    }

    fn on_timer(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    fn progress(&mut self, now: Instant) -> Progress {
        let mut progress = Progress::default();
        while let Some(action) = self.core.poll_action() {
            let Action::Connect(node) = action else { panic!("{action:?}") };
            progress.connects.push(node.index());
        }
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

    fn take_output(&mut self, node: usize, now: Instant) -> Vec<u8> {
        let node = NodeId::new(node);
        let bytes = self.core.output(node).to_vec();
        self.core.handle_sent(node, bytes.len(), now);
        bytes
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.next_timeout()
    }
}
