//! The engine as a contender, on a poller of the bench's own, as a program with its own loop would
//! use it.

use std::time::{Duration, Instant};

use mio::Registry;
use redlatch::{Config, Engine, LockOptions, Outcome, RestartGuard};

use super::delete::Delete;
use super::engine_loop::Loop;
use super::open_loop::{Done, Steps};
use super::support::{Node, SECOND};
use super::tally::Tally;
use super::{Contender, TTL};

/// The settings of a client. The timeouts are long: the bench measures the time of a pair, and on a
/// busy machine no node may look silent. The floor has no timeout.
fn config(nodes: &[&Node], delete: Delete) -> Config {
    let config = Config::new(delete.urls(nodes)).expect("the urls of the fleet");
    config.restart_guard(RestartGuard::Off).node_timeout(Duration::from_secs(1))
}

/// An engine and its keys.
pub struct Ours {
    locks: Loop,
    keys: Vec<String>,
    asked: Vec<Instant>,
    options: LockOptions,
}

impl Ours {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Ours {
        let locks = Loop::ready(config(nodes, delete));
        Ours::on(locks, LockOptions::once(TTL), name, most)
    }

    /// A client with fenced locks. The restart guard has to be on, so the bench vouches for the
    /// nodes, which are fresh.
    pub fn connect_fenced(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Ours {
        let config = config(nodes, delete).restart_guard(RestartGuard::On);
        let mut locks = Loop::ready(config);
        locks.engine.vouch(0).expect("there is room");
        locks.completion();
        Ours::on(locks, LockOptions::once(TTL).fenced(), name, most)
    }

    /// This many keys, for an engine whose nodes are ready.
    fn on(locks: Loop, options: LockOptions, name: &str, most: usize) -> Ours {
        let keys = (0..most).map(|slot| format!("{name}:{slot:04}")).collect();
        Ours { locks, keys, asked: vec![Instant::now(); most], options }
    }

    fn begin(&mut self, slot: usize, now: Instant) {
        self.asked[slot] = now;
        let key = &self.keys[slot];
        let asked = self.locks.engine.acquire(key, self.options, slot as u64);
        asked.expect("there is room");
    }

    /// The next lock that was acquired or released. The release of one that was acquired is asked
    /// for after `acquired`.
    fn next(&mut self, acquired: impl FnOnce(Instant)) -> Option<Done> {
        let engine = &mut self.locks.engine;
        let done = engine.poll_completion()?;
        let slot = done.data as usize;
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                acquired(self.asked[slot]);
                engine.release(lock, done.data);
                Some(Done::Acquired(slot))
            }
            Ok(Outcome::Released(_)) => Some(Done::Released(slot)),
            other => panic!("a free key came to {other:?}"),
        }
    }

    /// Waits for the answers after the majority. Late ones are those of frozen nodes only: the
    /// others have sent theirs.
    fn wait_for_late(&mut self) {
        let late = |engine: &Engine| {
            let core = engine.coordinator();
            core.ready().iter().any(|node| core.unanswered(node) > 0)
        };
        while late(&self.locks.engine) {
            self.turn();
        }
    }
}

impl Drop for Ours {
    /// Prints how many fences took a second round trip.
    fn drop(&mut self) {
        let stats = self.locks.engine.coordinator().stats();
        if stats.fenced > 0 {
            eprintln!("{} fences, {} written back", stats.fenced, stats.written_back);
        }
    }
}

impl Contender for Ours {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.begin(slot, Instant::now());
        }
        let mut open = in_flight;
        while open > 0 {
            while let Some(done) = self.next(|asked| tally.acquired(asked)) {
                let Done::Released(slot) = done else { continue };
                match tally.released() {
                    Some(now) => self.begin(slot, now),
                    None => open -= 1,
                }
            }
            if open > 0 {
                self.turn();
            }
        }
        self.wait_for_late();
    }
}

impl Steps for Ours {
    fn registry(&self) -> &Registry {
        self.locks.registry()
    }

    fn acquire(&mut self, slot: usize) {
        self.begin(slot, Instant::now());
    }

    fn turn(&mut self) {
        // The timer of the open loop does not belong to the engine.
        self.locks.turn_beside(SECOND, |_| {});
    }

    fn next_done(&mut self) -> Option<Done> {
        self.next(|_| {})
    }

    fn settle(&mut self) {
        self.wait_for_late();
    }
}
