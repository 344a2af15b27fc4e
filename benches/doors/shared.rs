//! The shared client with a thread as its driver, used from as many threads as keys are in flight.

use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use redlatch::SharedClient;

use super::support::Fleet;
use super::threads::run_threads;
use super::{TTL, config};

/// The client; its callers are new threads in every round.
pub struct Threads {
    locks: SharedClient,
}

impl Threads {
    /// Connects to the nodes.
    pub fn connect(fleet: &Fleet) -> Threads {
        Threads { locks: SharedClient::connect_blocking(config(fleet)).expect("a client") }
    }

    fn work(&self, key: &str, until: Instant) -> Samples {
        let mut samples = Samples::default();
        loop {
            let asked = Instant::now();
            if asked >= until {
                return samples;
            }
            let guard = self.locks.try_lock(key, TTL).wait().expect("a free key");
            samples.acquired(asked);
            guard.release().wait().expect("it is held");
        }
    }
}

impl Door for Threads {
    fn name(&self) -> &'static str {
        "SharedClient, threads"
    }

    fn run(&mut self, in_flight: usize, length: Duration) -> Round {
        if in_flight == 1 {
            let meter = Meter::start();
            let samples = self.work("threads", meter.until(length));
            return meter.stop(samples);
        }
        let this = &*self;
        let workers = (0..in_flight).map(|slot| {
            let key = format!("threads:{slot:04}");
            move |until| this.work(&key, until)
        });
        run_threads(workers, length)
    }
}
