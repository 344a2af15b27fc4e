//! The shared client with a thread as its driver, used from as many threads as keys are in flight.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use redlatch::SharedClient;

use super::support::Fleet;
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
        let (begin, end) = (Barrier::new(in_flight + 1), OnceLock::new());
        let mut samples = Samples::default();
        let this = &*self;
        let meter = std::thread::scope(|scope| {
            let (begin, end) = (&begin, &end);
            let worker = |slot: usize| {
                move || {
                    let key = format!("threads:{slot:04}");
                    begin.wait();
                    this.work(&key, *end.get().expect("it is set before they begin"))
                }
            };
            let workers: Vec<_> = (0..in_flight).map(|slot| scope.spawn(worker(slot))).collect();
            let meter = Meter::start();
            end.set(meter.until(length)).expect("it is set once");
            begin.wait();
            for worker in workers {
                samples.append(worker.join().expect("it found its key free"));
            }
            meter
        });
        meter.stop(samples)
    }
}
