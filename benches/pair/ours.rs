//! The engine, on a poller of the bench's own, as a program with its own loop would use it.

use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token};
use redlatch::{Config, Engine, LockOptions, Outcome, RestartGuard};

use super::arrivals::Arrivals;
use super::delete::Delete;
use super::open_loop::{self, Done, Steps};
use super::support::Node;
use super::tally::Tally;
use super::{Contender, NODES, TTL};

/// The engine and its loop.
pub struct Ours {
    poll: Poll,
    events: Events,
    engine: Engine,
    keys: Vec<String>,
    asked: Vec<Instant>,
    options: LockOptions,
}

impl Ours {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Ours {
        let plain = (RestartGuard::Off, LockOptions::once(TTL));
        Ours::connect_as(plain, nodes, name, most, delete)
    }

    /// A client with fenced locks. The restart guard has to be on, so the bench vouches for the
    /// nodes, which are fresh.
    pub fn connect_fenced(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Ours {
        let fenced = (RestartGuard::On, LockOptions::once(TTL).fenced());
        let mut ours = Ours::connect_as(fenced, nodes, name, most, delete);
        ours.engine.vouch(0).expect("there is room");
        while ours.engine.poll_completion().is_none() {
            ours.turn();
        }
        ours
    }

    fn connect_as(
        (guard, options): (RestartGuard, LockOptions),
        nodes: &[&Node],
        name: &str,
        most: usize,
        delete: Delete,
    ) -> Ours {
        // The timeouts are long: the bench measures the time of a pair, and on a busy machine no
        // node may look silent. The floor has no timeout.
        let config = Config::new(delete.urls(nodes))
            .expect("the urls of the fleet")
            .restart_guard(guard)
            .node_timeout(Duration::from_secs(1));
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), Token(0)).expect("an engine");
        let keys = (0..most).map(|slot| format!("{name}:{slot:04}")).collect();
        let asked = vec![Instant::now(); most];
        let mut ours =
            Ours { poll, events: Events::with_capacity(64), engine, keys, asked, options };
        let started = Instant::now();
        while ours.engine.coordinator().ready().len() < NODES {
            ours.turn();
            assert!(started.elapsed() < Duration::from_secs(5), "the nodes are not ready");
        }
        ours
    }

    fn turn(&mut self) {
        let timeout = self.engine.prepare();
        self.poll.poll(&mut self.events, timeout).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }

    fn acquire(&mut self, slot: usize, now: Instant) {
        self.asked[slot] = now;
        self.engine.acquire(&self.keys[slot], self.options, slot as u64).expect("there is room");
    }
}

impl Drop for Ours {
    /// Prints how many fences took a second round trip.
    fn drop(&mut self) {
        let stats = self.engine.coordinator().stats();
        if stats.fenced > 0 {
            eprintln!("{} fences, {} written back", stats.fenced, stats.written_back);
        }
    }
}

impl Contender for Ours {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.acquire(slot, Instant::now());
        }
        let mut open = in_flight;
        while open > 0 {
            while let Some(done) = self.engine.poll_completion() {
                let slot = done.data as usize;
                match done.result {
                    Ok(Outcome::Acquired(lock)) => {
                        tally.acquired(self.asked[slot]);
                        self.engine.release(lock, done.data);
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
        self.settle();
    }

    fn run_open(&mut self, arrivals: Arrivals, tally: &mut Tally) {
        open_loop::run(self, arrivals, tally);
    }
}

impl Steps for Ours {
    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    fn acquire(&mut self, slot: usize) {
        self.engine.acquire(&self.keys[slot], self.options, slot as u64).expect("there is room");
    }

    fn turn(&mut self) {
        self.turn();
    }

    fn next_done(&mut self) -> Option<Done> {
        let done = self.engine.poll_completion()?;
        let slot = done.data as usize;
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                self.engine.release(lock, done.data);
                Some(Done::Acquired(slot))
            }
            Ok(Outcome::Released(_)) => Some(Done::Released(slot)),
            other => panic!("a free key came to {other:?}"),
        }
    }

    fn settle(&mut self) {
        // The late answers are those of the frozen nodes only: the others have sent theirs.
        let late = |engine: &Engine| {
            let core = engine.coordinator();
            core.ready().iter().any(|node| core.unanswered(node) > 0)
        };
        while late(&self.engine) {
            self.turn();
        }
    }
}
