//! As many blocking clients as keys are in flight, each on a thread of its own: what a program has
//! that shares nothing between its threads.
//!
//! The hazard is the number of descriptors: each client has one for each node, and three more.

use std::time::{Duration, Instant};

use kit::{Door, Round, Samples};
use redlatch::Client;

use super::support::Fleet;
use super::threads::run_threads;
use super::{TTL, config};

/// The most clients: so many fit into the usual limit of 1,024 descriptors.
const MOST: usize = 64;

/// The clients.
pub struct Clients {
    config: redlatch::Config,
    clients: Vec<Client>,
}

impl Clients {
    /// The clients are connected when the first round begins.
    pub fn new(fleet: &Fleet) -> Clients {
        Clients { config: config(fleet), clients: Vec::new() }
    }
}

fn work(client: &mut Client, key: &str, until: Instant) -> Samples {
    let mut samples = Samples::default();
    loop {
        let asked = Instant::now();
        if asked >= until {
            return samples;
        }
        let guard = client.try_lock(key, TTL).expect("a free key");
        samples.acquired(asked);
        guard.release().expect("it is held");
    }
}

impl Door for Clients {
    fn name(&self) -> &'static str {
        "Client, one for each thread"
    }

    fn carries(&self, in_flight: usize) -> bool {
        (2..=MOST).contains(&in_flight)
    }

    fn run(&mut self, in_flight: usize, length: Duration) -> Round {
        while self.clients.len() < in_flight {
            self.clients.push(Client::connect(self.config.clone()).expect("a client"));
        }
        let workers = self.clients[..in_flight].iter_mut().enumerate().map(|(slot, client)| {
            let key = format!("clients:{slot:04}");
            move |until| work(client, &key, until)
        });
        run_threads(workers, length)
    }
}
