//! Many contenders inside one engine: as many requests for one key, each asked again when its lock
//! was given back.

use std::time::Duration;

use mio::{Events, Poll, Token};
use redlatch::{Engine, LockOptions, Outcome};

use super::TTL;
use super::contender::{Hold, Role, now};
use super::ours;
use super::support::eventually;

/// The engine and its loop.
pub struct Inside {
    poll: Poll,
    events: Events,
    engine: Engine,
    key: String,
    options: LockOptions,
    /// When each request was asked for, and when it had its lock.
    slots: Vec<Hold>,
}

impl Inside {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(role: &Role) -> Inside {
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(ours::config(role), poll.registry(), Token(0)).expect("an engine");
        let slots = (0..role.inside as u64).map(|slot| Hold { slot, ..Hold::default() });
        let (slots, events) = (slots.collect(), Events::with_capacity(64));
        let (key, options) = (role.keys[0].clone(), LockOptions::new(TTL));
        let mut inside = Inside { poll, events, engine, key, options, slots };
        eventually(Duration::from_secs(20), "the nodes are ready", || {
            inside.turn(Duration::from_millis(1));
            inside.engine.coordinator().ready().len() == role.urls.len()
        });
        inside
    }

    /// Keeps all requests in flight until the end.
    pub fn run(&mut self, end: u64, holds: &mut Vec<Hold>) {
        for slot in 0..self.slots.len() {
            self.ask(slot, end);
        }
        let mut open = self.slots.len();
        while open > 0 {
            while let Some(done) = self.engine.poll_completion() {
                let slot = done.data as usize;
                match done.result {
                    Ok(Outcome::Acquired(lock)) => {
                        self.slots[slot].have = now();
                        self.slots[slot].gave_back = now();
                        holds.push(self.slots[slot]);
                        self.engine.release(lock, done.data);
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
                self.turn(Duration::from_secs(1));
            }
        }
    }

    fn ask(&mut self, slot: usize, end: u64) {
        let asked = now();
        self.slots[slot].asked = asked;
        let wait = Duration::from_nanos(end.saturating_sub(asked));
        let options = self.options.wait(wait);
        self.engine.acquire(&self.key, options, slot as u64).expect("there is room");
    }

    fn turn(&mut self, most: Duration) {
        let timeout = self.engine.prepare().map_or(most, |timeout| timeout.min(most));
        self.poll.poll(&mut self.events, Some(timeout)).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }
}
