//! One acquire and release of a free key on five masters: our engine compared with a floor, in one
//! program, in turns.
//!
//! The floor is the least that any program has to do for it: five sockets, bytes that were built
//! beforehand, answers counted by their first byte. The floor's time is the machine's; the time
//! beyond the floor is the library's. The hazard is the machine itself, which is never quiet. So
//! both run in short rounds one after the other, in an order that alternates. The figure that
//! counts is the ratio within one round.
//!
//! `cargo bench` starts five servers by itself. Options: `--case 1|64|512` (keys in flight;
//! default: all three), `--rounds N`, `--seconds-per-round F`, `--frozen` (one node is stopped),
//! `--only ours|floor` (for a profiler), `--json`.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod floor;
mod options;
mod ours;
mod report;
mod tally;

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use floor::Floor;
use options::{Only, Options};
use ours::Ours;
use report::Case;
use support::Fleet;
use tally::{Figures, Tally};

/// The ttl of a lock; no lock lives long enough for it to matter.
const TTL: Duration = Duration::from_secs(10);

/// Pairs before the first round: connections, caches and buffers get their size, and a frozen node
/// is found silent.
const WARM_UP: Duration = Duration::from_millis(1_200);

/// Takes and gives back locks.
trait Contender {
    /// Keeps `in_flight` keys in flight until the tally says that the round is over; returns when
    /// no answer is outstanding.
    fn run(&mut self, in_flight: usize, tally: &mut Tally);
}

fn main() {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    };
    let most = options.cases.iter().copied().max().unwrap_or(1);
    let fleet = Fleet::start(5);
    let mut ours = Ours::connect(&fleet, most);
    let mut floor = Floor::connect(&fleet, most, options.frozen);
    if options.frozen {
        fleet[fleet.len() - 1].stop();
    }
    report::begin(&options, &fleet);
    for &in_flight in &options.cases {
        let case = measure(&mut ours, &mut floor, in_flight, &options);
        report::show(&case, &options);
    }
}

fn measure(ours: &mut Ours, floor: &mut Floor, in_flight: usize, options: &Options) -> Case {
    let mut round = |turn: Turn, length: Duration| -> Option<Figures> {
        let (contender, skipped): (&mut dyn Contender, Only) = match turn {
            Turn::Ours => (ours, Only::Floor),
            Turn::Floor => (floor, Only::Ours),
        };
        if options.only == Some(skipped) {
            return None;
        }
        let mut tally = Tally::begin(length);
        contender.run(in_flight, &mut tally);
        Some(tally.figures())
    };
    round(Turn::Ours, WARM_UP);
    round(Turn::Floor, WARM_UP);
    let mut case = Case { in_flight, rounds: Vec::new() };
    for number in 0..options.rounds {
        let length = options.length;
        let (ours, floor) = if number % 2 == 0 {
            let ours = round(Turn::Ours, length);
            (ours, round(Turn::Floor, length))
        } else {
            let floor = round(Turn::Floor, length);
            (round(Turn::Ours, length), floor)
        };
        case.rounds.push((ours, floor));
    }
    case
}

/// Whose turn it is.
#[derive(Clone, Copy)]
enum Turn {
    Ours,
    Floor,
}
