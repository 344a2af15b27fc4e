//! The engine on a poller of the caller's own: what the other doors are measured by.

use std::time::Duration;

use kit::{Door, Meter, Round};

use super::config;
use super::engine_loop::Loop;
use super::slots::Slots;
use super::support::{Fleet, SECOND};

/// The engine and its loop.
pub struct OnPoller {
    locks: Loop,
    slots: Slots,
}

impl OnPoller {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(fleet: &Fleet, in_flight: usize) -> OnPoller {
        OnPoller { locks: Loop::ready(config(fleet)), slots: Slots::new("engine", in_flight) }
    }
}

impl Door for OnPoller {
    fn name(&self) -> &'static str {
        "Engine on mio::Poll"
    }

    fn run(&mut self, _: usize, length: Duration) -> Round {
        let meter = Meter::start();
        self.slots.begin(&mut self.locks.engine, meter.until(length));
        while self.slots.is_open() {
            self.locks.turn_within(SECOND);
            while let Some(done) = self.locks.engine.poll_completion() {
                self.slots.take(&mut self.locks.engine, done);
            }
        }
        meter.stop(self.slots.samples())
    }
}
