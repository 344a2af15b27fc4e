//! The engine as one descriptor, in a loop of poll(2).

use std::time::Duration;

use kit::{Door, Meter, Round};
use redlatch::FdEngine;
use rustix::event::{PollFd, PollFlags, poll};

use super::config;
use super::slots::Slots;
use super::support::{Fleet, eventually};

/// The descriptor, and the loop around it.
pub struct BehindDescriptor {
    locks: FdEngine,
    slots: Slots,
}

impl BehindDescriptor {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(fleet: &Fleet, in_flight: usize) -> BehindDescriptor {
        let locks = FdEngine::new(config(fleet)).expect("a poller with a timer");
        let mut door = BehindDescriptor { locks, slots: Slots::new("embedded", in_flight) };
        eventually(Duration::from_secs(5), "the nodes are ready", || {
            door.turn();
            door.locks.engine().coordinator().ready().len() == fleet.len()
        });
        door
    }

    fn turn(&mut self) {
        poll(&mut [PollFd::new(&self.locks, PollFlags::IN)], None).expect("poll works");
        // The batch is open for all completions: a turn then writes once to each node.
        let mut engine = self.locks.tick().expect("the poller works");
        while let Some(done) = engine.poll_completion() {
            self.slots.take(&mut engine, done);
        }
    }
}

impl Door for BehindDescriptor {
    fn name(&self) -> &'static str {
        "Embedded under poll(2)"
    }

    fn run(&mut self, _: usize, length: Duration) -> Round {
        let meter = Meter::start();
        self.slots.begin(&mut self.locks.batch(), meter.until(length));
        while self.slots.is_open() {
            self.turn();
        }
        meter.stop(self.slots.samples())
    }
}
