//! One acquire and release of a free key on five masters, through each door of the library, in one
//! program, in turns.
//!
//! Most of the time of an acquire is spent in the nodes and the machine; the bench asks what a door
//! adds. The hazard is the machine, which is never quiet. So the doors run in short rounds one
//! after the other, in an order that alternates. The figure that counts is the ratio to the engine
//! on a poller within one round.
//!
//! `cargo bench` starts five servers by itself. Options: `--case 1|8|64` (keys in flight; default:
//! all three), `--rounds N`, `--seconds-per-round F`, `--only TEXT` (doors whose name has it; may
//! be repeated).

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod blocking;
mod clients;
mod embedded;
mod engine;
mod options;
mod report;
mod shared;
mod slots;
mod tally;
mod tasks;
mod threads;

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use redlatch::{Config, RestartGuard};

use options::Options;
use support::Fleet;
use tally::{Figures, Round};

/// The ttl of a lock; no lock lives long enough for it to matter.
const TTL: Duration = Duration::from_secs(10);

/// The time before the first round of a case, in which connections, caches and buffers get their
/// size.
const WARM_UP: Duration = Duration::from_millis(500);

/// The time before every round, in which an interface that was not driven reads what it missed.
const COMING_BACK: Duration = Duration::from_millis(20);

/// The time between two rounds, in which the nodes send the answers that no caller waited for.
const PAUSE: Duration = Duration::from_millis(5);

/// A client of the library, however it is driven.
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
    report::begin(&options, &fleet);
    for &in_flight in &options.cases {
        let mut doors = open(&fleet, in_flight, &options);
        let rounds = measure(&mut doors, in_flight, &options);
        let names: Vec<&str> = doors.iter().map(|door| door.name()).collect();
        report::show(in_flight, &names, &rounds);
    }
    report::end();
}

/// The settings of every client. The bench measures the time of a pair: a busy machine must not
/// make a node look silent.
fn config(fleet: &Fleet) -> Config {
    let config = Config::new(fleet.urls()).expect("the urls of the fleet");
    config.restart_guard(RestartGuard::Off).node_timeout(Duration::from_secs(1))
}

fn open(fleet: &Fleet, in_flight: usize, options: &Options) -> Vec<Box<dyn Door>> {
    let mut doors: Vec<Box<dyn Door>> = vec![
        Box::new(engine::OnPoller::connect(fleet, in_flight)),
        Box::new(blocking::Blocking::connect(fleet)),
        Box::new(embedded::BehindDescriptor::connect(fleet, in_flight)),
        Box::new(clients::Clients::new(fleet)),
        Box::new(shared::Threads::connect(fleet)),
        Box::new(tasks::Tasks::beside_a_thread(fleet)),
        Box::new(tasks::Tasks::on_one_thread(fleet)),
        Box::new(tasks::Tasks::on_threads(fleet)),
    ];
    doors.retain(|door| door.carries(in_flight) && options.wants(door.name()));
    doors
}

/// The figures of each round, in the order of the doors.
fn measure(doors: &mut [Box<dyn Door>], in_flight: usize, options: &Options) -> Vec<Vec<Figures>> {
    for door in &mut *doors {
        door.run(in_flight, WARM_UP);
    }
    let round = |number: usize| {
        let mut figures = vec![None; doors.len()];
        for step in 0..doors.len() {
            // Each round begins with another interface, and every second round goes backwards.
            let step = if number % 2 == 0 { step } else { doors.len() - 1 - step };
            let which = (number / 2 + step) % doors.len();
            doors[which].run(in_flight, COMING_BACK);
            std::thread::sleep(PAUSE);
            figures[which] = Some(doors[which].run(in_flight, options.length).figures());
            std::thread::sleep(PAUSE);
        }
        figures.into_iter().map(|it| it.expect("each had its turn")).collect()
    };
    (0..options.rounds).map(round).collect()
}
