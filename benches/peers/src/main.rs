//! Acquire and release on five masters: this library beside other crates, in one program, in turns.
//!
//! redis-rs and fred are no libraries for locks, so a quorum was written for them, as good as for
//! production (`quorum.rs`); rslock does Redlock itself. Every asynchronous contender runs on one
//! thread. The hazard is the machine, which is never quiet: so all run in short rounds one after
//! the other, in an order that changes, and the figure that counts is the ratio within one round.
//!
//! The bench starts five servers by itself and ends them.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod options;
mod quorum;
mod report;
mod tasks;
mod with_fred;
mod with_redis;
mod with_redlatch;
mod with_rslock;

#[path = "../../doors/blocking.rs"]
mod blocking;
#[path = "../../doors/engine.rs"]
mod engine;
#[path = "../../../tests/support/engine_loop.rs"]
mod engine_loop;
#[path = "../../pictures/figures.rs"]
#[allow(dead_code, reason = "the pictures read what the bench writes")]
mod figures;
#[path = "../../doors/slots.rs"]
mod slots;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use kit::{Door, Measured, Round, Ticks};
use redlatch::{Config, RestartGuard};

use options::{Case, Options};
use report::Shown;
use support::Fleet;
use tasks::{Locks, OneKey, OwnKeys};
use with_fred::Fred;
use with_redis::RedisRs;
use with_redlatch::Redlatch;
use with_rslock::Rslock;

/// The ttl of a lock. It is so long that no lock expires.
const TTL: Duration = Duration::from_secs(10);

/// The time after which a node counts as silent, for every contender. rslock cannot change it.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a contender on one key holds it.
const HOLD: Duration = Duration::from_millis(1);

/// The mean pause of a library between two attempts on a key that another contender holds.
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

/// A round from which the hypervisor took more than this part is left out.
const MOST_STOLEN: f64 = 0.05;

fn main() {
    let options: Options = kit::read();
    let fleet = Fleet::start(5);
    report::begin(&options);
    let mut all = Vec::new();
    for case in options.cases() {
        let mut doors = open(&fleet, case, &options);
        let frozen = matches!(case, Case::Frozen(_)).then(|| &fleet[fleet.len() - 1]);
        if let Some(node) = frozen {
            // `stop` returns when the process is stopped.
            node.stop();
        }
        let shown = measure(&mut doors, case, &options);
        if let Some(node) = frozen {
            node.cont();
        }
        report::show(&shown, &options);
        all.push(shown);
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

fn open(fleet: &Fleet, case: Case, options: &Options) -> Vec<Box<dyn Door>> {
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
    doors.retain(|door| door.carries(in_flight) && options.only.wants(&label(door.as_ref())));
    doors
}

/// The name of a contender in the tables.
fn label(door: &dyn Door) -> String {
    match door.name() {
        name @ (RedisRs::NAME | Fred::NAME | Rslock::NAME | Redlatch::NAME) => name.to_owned(),
        name => format!("redlatch, `{}`", name.split(' ').next().unwrap_or(name)),
    }
}

/// The rounds of a case, in turns.
fn measure(doors: &mut Vec<Box<dyn Door>>, case: Case, options: &Options) -> Shown {
    let (in_flight, wanted) = (case.in_flight(), options.rounds.count);
    let warm_up = if let Case::Frozen(_) = case { LONG_WARM_UP } else { WARM_UP };
    let mut too_slow = Vec::new();
    doors.retain_mut(|door| {
        let ends = door.run(in_flight, warm_up).is_whole();
        if !ends {
            too_slow.push(label(door.as_ref()));
        }
        ends
    });
    let mut rounds: Measured<Round> = Measured::new(doors.len());
    let (mut number, mut left_out) = (0, 0);
    // A table is printed even if the machine was disturbed in every round.
    while number < wanted + left_out {
        let ticks = Ticks::now();
        let round = kit::round(doors, in_flight, number, options.rounds.length);
        number += 1;
        if ticks.stolen_since() > MOST_STOLEN && left_out < wanted {
            left_out += 1;
        } else {
            rounds.add(round);
        }
    }
    let names = doors.iter().map(|door| label(door.as_ref())).collect();
    Shown { case, names, rounds, left_out, too_slow }
}
