//! The shared client used from as many tasks of tokio as keys are in flight. Its driver is a task
//! of the same runtime, or a thread of its own.

use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use redlatch::SharedClient;
use tokio::runtime::{Builder, Runtime};

use super::support::Fleet;
use super::{TTL, config};

/// The client and the runtime that drives it.
pub struct Tasks {
    name: &'static str,
    runtime: Runtime,
    locks: SharedClient,
}

impl Tasks {
    /// Makes a client on a current-thread runtime.
    pub fn on_one_thread(fleet: &Fleet) -> Tasks {
        Tasks::on("SharedClient, tokio on one thread", Builder::new_current_thread(), fleet)
    }

    /// Makes a client on a runtime with a thread for each processor.
    pub fn on_threads(fleet: &Fleet) -> Tasks {
        Tasks::on("SharedClient, tokio multi-thread", Builder::new_multi_thread(), fleet)
    }

    /// Makes a client whose driver is a thread, and a runtime with a thread for each processor.
    pub fn beside_a_thread(fleet: &Fleet) -> Tasks {
        let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let locks = runtime.block_on(SharedClient::connect(config(fleet))).expect("a client");
        Tasks { name: "SharedClient, tasks beside it", runtime, locks }
    }

    fn on(name: &'static str, mut builder: Builder, fleet: &Fleet) -> Tasks {
        let runtime = builder.enable_all().build().expect("a runtime");
        let connecting = SharedClient::connect_tokio(config(fleet));
        let locks = runtime.block_on(connecting).expect("a client");
        Tasks { name, runtime, locks }
    }
}

async fn work(locks: SharedClient, key: String, until: Instant) -> Samples {
    let mut samples = Samples::default();
    loop {
        let asked = Instant::now();
        if asked >= until {
            return samples;
        }
        let guard = locks.try_lock(&key, TTL).await.expect("a free key");
        samples.acquired(asked);
        guard.release().await.expect("it is held");
    }
}

impl Door for Tasks {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, in_flight: usize, length: Duration) -> Round {
        let meter = Meter::start();
        let until = meter.until(length);
        let samples = self.runtime.block_on(async {
            let worker = |slot| {
                let key = format!("{}:{slot:04}", self.name);
                tokio::spawn(work(self.locks.clone(), key, until))
            };
            let workers: Vec<_> = (0..in_flight).map(worker).collect();
            let mut samples = Samples::default();
            for worker in workers {
                samples.append(worker.await.expect("it found its key free"));
            }
            samples
        });
        meter.stop(samples)
    }
}
