//! One acquire and release of a free key on five masters, through each door of the library, in one
//! program, in turns.
//!
//! Most of the time of an acquire is spent in the nodes and the machine; the bench asks what a door
//! adds. The hazard is the machine, which is never quiet. So the doors run in short rounds one
//! after the other, in an order that alternates. The figure that counts is the ratio to the engine
//! on a poller within one round.
//!
//! `cargo bench` starts five servers by itself.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod blocking;
mod clients;
mod embedded;
mod engine;
mod shared;
mod sleeps;
mod slots;
mod tasks;
mod threads;

#[path = "../../tests/support/engine_loop.rs"]
mod engine_loop;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use kit::clap::{self, Parser};
use kit::{Door, Measured, Only, Round, Rounds, Table, load};
use redlatch::{Config, RestartGuard};

use support::{Fleet, Server};

/// The ttl of a lock. It is so long that no lock expires.
const TTL: Duration = Duration::from_secs(10);

/// The time before the first round of a case, in which connections, caches and buffers get their
/// size.
const WARM_UP: Duration = Duration::from_millis(500);

/// An acquire and release of a free key, through each door of the library.
#[derive(Debug, Parser)]
struct Options {
    /// How many keys are in flight; may be repeated.
    #[arg(long = "case", value_parser = kit::positive, default_values_t = [1, 8, 64])]
    cases: Vec<usize>,
    #[command(flatten)]
    rounds: Rounds<15, 400>,
    #[command(flatten)]
    only: Only,
}

fn main() {
    let options: Options = kit::read();
    let fleet = Fleet::start(5);
    let Server { binary, version: (major, minor), .. } = Server::get();
    println!("acquire and release of a free key on {} masters, by door", fleet.len());
    println!("{binary} {major}.{minor}; medians of {};", options.rounds);
    println!("in brackets: the median of the rounds' ratios to the first door");
    println!("load before: {}", load());
    for &in_flight in &options.cases {
        let mut doors = open(&fleet, in_flight, &options);
        let measured = measure(&mut doors, in_flight, &options);
        show(in_flight, &doors, &measured);
    }
    println!();
    println!("load after: {}", load());
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
        Box::new(sleeps::Sleeps),
    ];
    doors.retain(|door| door.carries(in_flight) && options.only.wants(door.name()));
    doors
}

fn measure(doors: &mut [Box<dyn Door>], in_flight: usize, options: &Options) -> Measured<Round> {
    for door in &mut *doors {
        door.run(in_flight, WARM_UP);
    }
    let mut measured = Measured::new(doors.len());
    for number in 0..options.rounds.count {
        measured.add(kit::round(doors, in_flight, number, options.rounds.length));
    }
    measured
}

fn show(in_flight: usize, doors: &[Box<dyn Door>], measured: &Measured<Round>) {
    let title = format!(":{in_flight} in flight");
    let titles = [&title, "p50 us", "p99 us", "cpu us/pair", "switches", "pairs/s"];
    let table = Table::new(titles.into_iter().zip([33, 14, 14, 14, 12, 14]));
    println!("\n{}", table.head());
    for (which, door) in doors.iter().enumerate() {
        let cell = |figure: fn(&Round) -> f64, digits: usize| {
            let (value, ratio) = (measured.median(which, figure), measured.ratio(which, 0, figure));
            format!("{value:.digits$} ({ratio:.2})")
        };
        let cells = [
            door.name().to_owned(),
            cell(Round::p50_us, 0),
            cell(Round::p99_us, 0),
            cell(Round::cpu_us, 1),
            format!("{:.1}", measured.median(which, Round::switches)),
            cell(Round::pairs_per_s, 0),
        ];
        println!("{}", table.row(cells));
    }
}
