//! Acquire and release on five masters: this library beside other crates, in one program, in turns.
//!
//! redis-rs and fred are no libraries for locks, so a quorum was written for them, as good as for
//! production (`quorum.rs`); rslock does Redlock itself. Every asynchronous contender runs on one
//! thread. The hazard is the machine, which is never quiet: so all run in short rounds one after
//! the other, in an order that changes, and the figure that counts is the ratio within one round.
//!
//! The bench starts five servers by itself and ends them. Options: `--free N`, `--frozen N`,
//! `--one-key N` (cases; each may be repeated; default: a set of all three), `--rounds N`,
//! `--seconds-per-round F`, `--only TEXT` (contenders whose name has it; may be repeated),
//! `--json`, `--record FILE` (writes the figures that benches/pictures are drawn from).

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod options;
mod quorum;
mod report;
mod tally;
mod tasks;
mod with_fred;
mod with_redis;
mod with_redlatch;
mod with_rslock;

#[path = "../../doors/blocking.rs"]
mod blocking;
#[path = "../../doors/engine.rs"]
mod engine;
#[path = "../../pictures/figures.rs"]
#[allow(dead_code, reason = "the pictures read what the bench writes")]
mod figures;
#[path = "../../doors/slots.rs"]
mod slots;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use redlatch::{Config, RestartGuard};

use options::{Case, Options};
use report::Measured;
use support::Fleet;
use tally::{Figures, Round, Ticks};
use tasks::{Locks, OneKey, OwnKeys};
use with_fred::Fred;
use with_redis::RedisRs;
use with_redlatch::Redlatch;
use with_rslock::Rslock;

/// The ttl of a lock; no lock lives long enough for it to matter.
const TTL: Duration = Duration::from_secs(10);

/// The time after which a node counts as silent, for every contender. rslock cannot change it.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a contender on one key holds it.
const HOLD: Duration = Duration::from_millis(1);

/// The mean pause of a peer between two attempts on a key that another contender holds.
const RETRY: Duration = Duration::from_millis(5);

/// A time longer than any contender on one key waits.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The most keys that any case has in flight.
const MOST_IN_FLIGHT: usize = 512;

/// The time before the first round of a case, in which connections, caches and buffers get their
/// size.
const WARM_UP: Duration = Duration::from_millis(300);

/// The warm-up with a frozen node: in this time the node is found to be silent.
const LONG_WARM_UP: Duration = Duration::from_millis(1_200);

/// How late the last pair of a round may end. A contender that needs longer is left out.
const OVERTIME: Duration = Duration::from_secs(3);

/// The time before every round, in which a contender that was not driven reads what it missed.
const COMING_BACK: Duration = Duration::from_millis(20);

/// The time between two rounds, in which the nodes send the answers that no caller waited for.
const PAUSE: Duration = Duration::from_millis(5);

/// A round from which the hypervisor took more than this part is left out.
const MOST_STOLEN: f64 = 0.05;

/// A contender.
trait Door {
    fn name(&self) -> &'static str;

    /// Whether it can have so many keys in flight.
    fn carries(&self, in_flight: usize) -> bool;

    /// Keeps `in_flight` keys in flight for `length`; pairs that are open then are completed and
    /// counted.
    fn run(&mut self, in_flight: usize, length: Duration) -> Round;
}

fn main() {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    };
    let fleet = Fleet::start(5);
    report::begin(&options);
    let mut all = Vec::new();
    for &case in &options.cases {
        let mut doors = open(&fleet, case, &options);
        let frozen = matches!(case, Case::Frozen(_)).then(|| &fleet[fleet.len() - 1]);
        if let Some(node) = frozen {
            // `stop` returns when the process is stopped.
            node.stop();
        }
        let measured = measure(&mut doors, case, &options);
        if let Some(node) = frozen {
            node.cont();
        }
        report::show(&measured, &options);
        all.push(measured);
    }
    if let Some(path) = &options.record {
        report::record(&all, &options, path);
    }
    report::end(&options);
}

/// The settings of the blocking client and of the engine.
fn config(fleet: &Fleet) -> Config {
    settings(&fleet.urls())
}

fn settings(urls: &[String]) -> Config {
    let config = Config::new(urls).expect("the urls of the fleet");
    config.restart_guard(RestartGuard::Off).node_timeout(NODE_TIMEOUT)
}

fn open(fleet: &Fleet, case: Case, options: &Options) -> Vec<(String, Box<dyn Door>)> {
    let urls = fleet.urls();
    let in_flight = case.in_flight();
    let mut doors: Vec<Box<dyn Door>> = if let Case::OneKey(_) = case {
        vec![
            Box::new(OneKey::<Redlatch>::connect(&urls, in_flight)),
            Box::new(OneKey::<RedisRs>::connect(&urls, in_flight)),
            Box::new(OneKey::<Fred>::connect(&urls, in_flight)),
            Box::new(OneKey::<Rslock>::connect(&urls, in_flight)),
        ]
    } else {
        vec![
            Box::new(engine::OnPoller::connect(fleet, in_flight)),
            Box::new(blocking::Blocking::connect(fleet)),
            Box::new(OwnKeys::<Redlatch>::connect(&urls)),
            Box::new(OwnKeys::<RedisRs>::connect(&urls)),
            Box::new(OwnKeys::<Fred>::connect(&urls)),
            Box::new(OwnKeys::<Rslock>::connect(&urls)),
        ]
    };
    let is_peer =
        |name: &str| [RedisRs::NAME, Fred::NAME, Rslock::NAME, Redlatch::NAME].contains(&name);
    let label = |door: &dyn Door| match door.name() {
        name if is_peer(name) => name.to_owned(),
        name => format!("redlatch, `{}`", name.split(' ').next().unwrap_or(name)),
    };
    doors.retain(|door| door.carries(in_flight));
    let named = doors.into_iter().map(|door| (label(door.as_ref()), door));
    named.filter(|(name, _)| options.wants(name)).collect()
}

/// The rounds of a case, in turns.
fn measure(doors: &mut Vec<(String, Box<dyn Door>)>, case: Case, options: &Options) -> Measured {
    let in_flight = case.in_flight();
    let warm_up = if let Case::Frozen(_) = case { LONG_WARM_UP } else { WARM_UP };
    let mut too_slow = Vec::new();
    doors.retain_mut(|(name, door)| {
        let ends = door.run(in_flight, warm_up).is_whole();
        if !ends {
            too_slow.push(name.clone());
        }
        ends
    });
    let mut rounds: Vec<Vec<Figures>> = Vec::new();
    let mut left_out = 0;
    // A table is printed even if the machine was disturbed in every round.
    while rounds.len() < options.rounds {
        let ticks = Ticks::now();
        let number = rounds.len() + left_out;
        let figures = round(doors, in_flight, number, options.length);
        if ticks.stolen_since() > MOST_STOLEN && left_out < options.rounds {
            left_out += 1;
        } else {
            rounds.push(figures);
        }
    }
    let names = doors.iter().map(|(name, _)| name.clone()).collect();
    Measured { case, names, rounds, left_out, too_slow }
}

/// Runs each contender once, and returns the figures in their order.
fn round(
    doors: &mut [(String, Box<dyn Door>)],
    in_flight: usize,
    number: usize,
    length: Duration,
) -> Vec<Figures> {
    let mut figures = vec![None; doors.len()];
    for step in 0..doors.len() {
        // Each round begins with another contender, and every second round goes backwards.
        let step = if number % 2 == 0 { step } else { doors.len() - 1 - step };
        let which = (number / 2 + step) % doors.len();
        let door = &mut doors[which].1;
        door.run(in_flight, COMING_BACK);
        std::thread::sleep(PAUSE);
        figures[which] = Some(door.run(in_flight, length).figures());
        std::thread::sleep(PAUSE);
    }
    figures.into_iter().map(|it| it.expect("each had its turn")).collect()
}
