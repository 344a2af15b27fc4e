//! The blocking client: one key at a time, on the caller's thread.

use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use redlatch::Client;

use super::support::Fleet;
use super::{TTL, config};

/// The client.
pub struct Blocking {
    client: Client,
}

impl Blocking {
    /// Connects to the nodes.
    pub fn connect(fleet: &Fleet) -> Blocking {
        Blocking { client: Client::connect(config(fleet)).expect("a client") }
    }
}

impl Door for Blocking {
    fn name(&self) -> &'static str {
        "Client"
    }

    fn carries(&self, in_flight: usize) -> bool {
        in_flight == 1
    }

    fn run(&mut self, _: usize, length: Duration) -> Round {
        let mut samples = Samples::default();
        let meter = Meter::start();
        let until = meter.until(length);
        loop {
            let asked = Instant::now();
            if asked >= until {
                break;
            }
            let guard = self.client.try_lock("blocking", TTL).expect("a free key");
            samples.acquired(asked);
            guard.release().expect("it is held");
        }
        meter.stop(samples)
    }
}
