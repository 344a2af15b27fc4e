//! The engine on io_uring, in a loop of its own.

use std::time::{Duration, Instant};

use redlatch::{Config, LockOptions, Outcome, RestartGuard, SocketDriver, UringEngine};

use super::arrivals::Arrivals;
use super::delete::Delete;
use super::support::Node;
use super::tally::Tally;
use super::{Contender, NODES, TTL};

/// The engine and its keys.
pub struct RingOurs {
    engine: UringEngine,
    keys: Vec<String>,
    asked: Vec<Instant>,
}

impl RingOurs {
    /// Connects to the nodes and waits until each of them is ready. Returns why there is no ring,
    /// if the kernel refuses it.
    pub fn connect(nodes: &[&Node], most: usize, delete: Delete) -> Result<RingOurs, String> {
        let config = Config::new(delete.urls(nodes))
            .expect("the urls of the fleet")
            .restart_guard(RestartGuard::Off)
            .node_timeout(Duration::from_secs(1));
        let engine = UringEngine::new(config).expect("an engine");
        let keys = (0..most).map(|slot| format!("ring:{slot:04}")).collect();
        let mut ours = RingOurs { engine, keys, asked: vec![Instant::now(); most] };
        let started = Instant::now();
        while ours.engine.engine().coordinator().ready().len() < NODES {
            ours.turn();
            assert!(started.elapsed() < Duration::from_secs(5), "the nodes are not ready");
        }
        match ours.engine.socket_driver() {
            SocketDriver::Poller { reason } => Err(reason.into()),
            _ => Ok(ours),
        }
    }

    fn turn(&mut self) {
        self.engine.turn(None).expect("the ring works");
    }

    fn acquire(&mut self, slot: usize, now: Instant) {
        self.asked[slot] = now;
        self.engine
            .engine_mut()
            .acquire(&self.keys[slot], LockOptions::once(TTL), slot as u64)
            .expect("there is room");
    }
}

impl Contender for RingOurs {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.acquire(slot, Instant::now());
        }
        let mut open = in_flight;
        while open > 0 {
            while let Some(done) = self.engine.engine_mut().poll_completion() {
                let slot = done.data as usize;
                match done.result {
                    Ok(Outcome::Acquired(lock)) => {
                        tally.acquired(self.asked[slot]);
                        self.engine.engine_mut().release(lock, done.data);
                    }
                    Ok(Outcome::Released(_)) => match tally.released() {
                        Some(now) => self.acquire(slot, now),
                        None => open -= 1,
                    },
                    other => panic!("a free key came to {other:?}"),
                }
            }
            if open > 0 {
                self.turn();
            }
        }
        // After the majority's, the nodes that are not frozen have sent their answers already.
        let late = |engine: &UringEngine| {
            let core = engine.engine().coordinator();
            core.ready().iter().any(|node| core.unanswered(node) > 0)
        };
        while late(&self.engine) {
            self.turn();
        }
    }

    fn run_open(&mut self, _: Arrivals, _: &mut Tally) {
        panic!("the open loop has no ring");
    }
}
