//! Many contenders inside one engine: as many requests for one key, each asked again when its lock
//! was given back.

use std::time::Duration;

use redlatch::{LockOptions, Outcome};

use super::TTL;
use super::contender::{Hold, Role, now};
use super::engine_loop::Loop;
use super::ours;
use super::support::SECOND;

/// The engine and its loop.
pub struct Inside {
    locks: Loop,
    key: String,
    options: LockOptions,
    /// When each request was made, and when it was granted.
    slots: Vec<Hold>,
}

impl Inside {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(role: &Role) -> Inside {
        let locks = Loop::ready(ours::config(role));
        let slots = (0..role.inside as u64).map(|slot| Hold { slot, ..Hold::default() });
        let (slots, key) = (slots.collect(), role.keys[0].clone());
        Inside { locks, key, options: LockOptions::new(TTL), slots }
    }

    /// Keeps all requests in flight until the end.
    pub fn run(&mut self, end: u64, holds: &mut Vec<Hold>) {
        for slot in 0..self.slots.len() {
            self.ask(slot, end);
        }
        let mut open = self.slots.len();
        while open > 0 {
            while let Some(done) = self.locks.engine.poll_completion() {
                let slot = done.data as usize;
                match done.result {
                    Ok(Outcome::Acquired(lock)) => {
                        self.slots[slot].have = now();
                        self.slots[slot].gave_back = now();
                        holds.push(self.slots[slot]);
                        self.locks.engine.release(lock, done.data);
                    }
                    Ok(Outcome::Released(_)) if now() < end => self.ask(slot, end),
                    Ok(Outcome::Released(_)) => open -= 1,
                    Ok(other) => panic!("nobody asked for {other:?}"),
                    Err(_) => {
                        let asked = self.slots[slot].asked;
                        holds.push(Hold { slot: done.data, asked, have: 0, gave_back: 0 });
                        open -= 1;
                    }
                }
            }
            if open > 0 {
                self.locks.turn_within(SECOND);
            }
        }
    }

    fn ask(&mut self, slot: usize, end: u64) {
        let asked = now();
        self.slots[slot].asked = asked;
        let wait = Duration::from_nanos(end.saturating_sub(asked));
        let options = self.options.wait(wait);
        self.locks.engine.acquire(&self.key, options, slot as u64).expect("there is room");
    }
}
