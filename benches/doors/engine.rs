//! The engine on a poller of the caller's own: what the other doors are measured by.

use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use redlatch::Engine;

use super::slots::{Slots, all_are_ready};
use super::support::Fleet;
use super::tally::{Meter, Round};
use super::{Door, config};

/// The engine and its loop.
pub struct OnPoller {
    poll: Poll,
    events: Events,
    engine: Engine,
    slots: Slots,
}

impl OnPoller {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(fleet: &Fleet, in_flight: usize) -> OnPoller {
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config(fleet), poll.registry(), Token(0)).expect("an engine");
        let (events, slots) = (Events::with_capacity(64), Slots::new("engine", in_flight));
        let mut door = OnPoller { poll, events, engine, slots };
        let started = Instant::now();
        while !all_are_ready(&door.engine) {
            door.turn();
            assert!(started.elapsed() < Duration::from_secs(5), "the nodes are not ready");
        }
        door
    }

    fn turn(&mut self) {
        let timeout = self.engine.prepare();
        self.poll.poll(&mut self.events, timeout).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }
}

impl Door for OnPoller {
    fn name(&self) -> &'static str {
        "Engine on mio::Poll"
    }

    fn carries(&self, _: usize) -> bool {
        true
    }

    fn run(&mut self, _: usize, length: Duration) -> Round {
        let meter = Meter::start();
        self.slots.begin(&mut self.engine, meter.until(length));
        while self.slots.is_open() {
            self.turn();
            while let Some(done) = self.engine.poll_completion() {
                self.slots.take(&mut self.engine, done);
            }
        }
        meter.stop(self.slots.samples())
    }
}
