//! Makes the plan from the options: what is measured, in which order, with how many keys. Refuses
//! options that cannot be measured before any node is asked.

use std::time::Duration;

use super::Options;
use crate::output::Refusal;

/// The limit for --in-flight. With more locks in flight, writing the requests takes about as long
/// as the node timeout, so the figures would say nothing about the nodes.
const MOST_IN_FLIGHT: usize = 10_000;

/// The limit for --contended: each client has a connection to every node.
const MOST_CLIENTS: usize = 64;

/// How many pairs an open loop has in flight at most if --in-flight is not given.
const OPEN_PLACES: usize = 1024;

/// How many clients contend if --in-flight is not given.
const CONTENDERS: usize = 4;

/// The limit for --rate: more pairs a second than one thread can begin.
const HIGHEST_RATE: u64 = 10_000_000;

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest warm-up; a short measurement has a shorter one.
const WARM_UP: Duration = Duration::from_secs(1);

/// What decides when a pair begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When another pair has ended.
    Closed,
    /// At a fixed rate, in pairs a second.
    Open { rate: u64 },
    /// As in a closed loop, but several clients want the same keys.
    Contended,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub mode: Mode,
    /// The measurements, each by how many pairs are in flight at most.
    pub in_flight: Vec<usize>,
    pub duration: Duration,
    pub warm_up: Duration,
    keys: Option<usize>,
}

impl Plan {
    /// # Errors
    /// These options cannot be measured. The error says why.
    pub fn new(options: &Options) -> Result<Plan, Refusal> {
        let (mode, most, least, default) = match (options.contended, options.rate) {
            (true, _) => (Mode::Contended, MOST_CLIENTS, 2, CONTENDERS),
            (false, Some(rate)) => (Mode::Open { rate }, MOST_IN_FLIGHT, 1, OPEN_PLACES),
            (false, None) => (Mode::Closed, MOST_IN_FLIGHT, 1, 1),
        };
        let keys = options.keys;
        let mut in_flight = options.in_flight.clone();
        if in_flight.is_empty() {
            // A pair in flight needs a key of its own, so fewer keys lower the default.
            in_flight
                .push(default.min(keys.filter(|_| mode != Mode::Contended).unwrap_or(default)));
        }
        let outside = |&&it: &&usize| it < least || it > most;
        if let Some(bad) = in_flight.iter().find(outside) {
            let clients = if mode == Mode::Contended { " clients that contend" } else { "" };
            let message = format!("--in-flight {bad}: it can be {least} to {most}{clients}");
            return Err(Refusal::config(message));
        }
        if keys == Some(0) {
            return Err(Refusal::config("--keys 0: at least one key is needed"));
        }
        let too_few = |&&it: &&usize| keys.is_some_and(|keys| keys < it);
        if let (true, Some(bad)) = (mode != Mode::Contended, in_flight.iter().find(too_few)) {
            let message = format!(
                "--keys is fewer than the {bad} locks of --in-flight: they would wait for each \
                 other; --contended measures that"
            );
            return Err(Refusal::config(message));
        }
        if options.rate.is_some_and(|rate| rate == 0 || rate > HIGHEST_RATE) {
            let message = format!("--rate: it can be 1 to {HIGHEST_RATE} pairs a second");
            return Err(Refusal::config(message));
        }
        let duration = options.duration;
        if duration.is_zero() || duration > LONGEST {
            return Err(Refusal::config("--duration: it can be more than 0, and 24h at most"));
        }
        Ok(Plan { mode, in_flight, duration, warm_up: WARM_UP.min(duration / 5), keys })
    }

    /// The number of clients for this number of pairs in flight.
    pub fn clients(&self, in_flight: usize) -> usize {
        if self.mode == Mode::Contended { in_flight } else { 1 }
    }

    /// The number of keys for this number of pairs in flight.
    pub fn keys(&self, in_flight: usize) -> usize {
        self.keys.unwrap_or(if self.mode == Mode::Contended { 1 } else { in_flight })
    }

    /// Whether several measurements are compared.
    pub fn is_sweep(&self) -> bool {
        self.in_flight.len() > 1
    }
}
