//! One acquire and release of a free key on five masters: our engine compared with a floor, in one
//! program, in turns.
//!
//! The floor is the least that any program has to do for it: five sockets, bytes that were built
//! beforehand, answers counted by their first byte. The floor's time is the machine's; the time
//! beyond the floor is the library's. The hazard is the machine itself, which is never quiet. So
//! both run in short rounds one after the other, in an order that alternates. The figure that
//! counts is the ratio within one round.
//!
//! `cargo bench` starts the servers by itself. A closed loop keeps a number of keys in flight: it
//! shows what a pair costs, and the capacity. An open loop begins pairs at moments that are drawn
//! beforehand, at a part of that capacity: it shows what a caller waits.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod arrivals;
mod delete;
mod floor;
mod open_loop;
mod options;
mod ours;
mod report;
mod tally;

#[path = "../../tests/support/engine_loop.rs"]
mod engine_loop;
#[path = "../../tests/support/floor.rs"]
mod socket_floor;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use kit::{Measured, Round, median};

use arrivals::Arrivals;
use delete::Delete;
use open_loop::Steps;
use options::{Only, Options, Rate};
use ours::Ours;
use report::{Case, Load, Side};
use support::{Fleet, Node};
use tally::Tally;

/// How many masters a client has.
const NODES: usize = 5;

/// The ttl of a lock. It is so long that no lock expires.
const TTL: Duration = Duration::from_secs(10);

/// Pairs before the first round: connections, caches and buffers get their size, and a frozen node
/// is found silent.
const WARM_UP: Duration = Duration::from_millis(1_200);

/// The closed loop whose pairs a second are the capacity, and how many rounds measure it.
const CAPACITY_IN_FLIGHT: usize = 64;
const CAPACITY_ROUNDS: usize = 5;

/// Acquires and releases locks: in a closed loop by itself, in an open loop step by step.
trait Contender: Steps {
    /// Keeps `in_flight` keys in flight until the tally says that the round is over; returns when
    /// no answer is outstanding.
    fn run(&mut self, in_flight: usize, tally: &mut Tally);
}

/// A contender with the name of its figures.
struct Named {
    side: Side,
    contender: Box<dyn Contender>,
}

fn main() {
    let options = kit::read::<Options>().or_every_load();
    // The healthy client and the one with a frozen node share four masters.
    let fleet = Fleet::start(NODES + usize::from(options.frozen));
    let delete = Delete::of(&fleet, options.delete);
    let mut contenders = connect(&fleet, &options, delete);
    if options.frozen {
        fleet[NODES].stop();
    }
    report::begin(&options, delete);
    for &in_flight in &options.cases {
        let case = measure(&mut contenders, Load::Closed(in_flight), &options);
        report::show(&case, &options);
    }
    for &rate in &options.open_loops {
        let per_second = match rate {
            Rate::PerSecond(pairs) => pairs,
            Rate::OfCapacity(part) => part * capacity(&fleet, &options, delete),
        };
        let case = measure(&mut contenders, Load::Open(per_second), &options);
        report::show(&case, &options);
    }
}

/// The contenders of this run, connected.
fn connect(fleet: &Fleet, options: &Options, delete: Delete) -> Vec<Named> {
    let nodes: Vec<&Node> = fleet.iter().collect();
    let most = options.cases.iter().copied().chain([open_loop::KEYS]).max().unwrap_or(1);
    let mut contenders = Vec::new();
    let mut add = |side: Side, contender: Box<dyn Contender>| {
        contenders.push(Named { side, contender });
    };
    let (has_ours, has_floor) =
        (options.only != Some(Only::Floor), options.only != Some(Only::Ours));
    if has_ours {
        add(Side::Ours, Box::new(Ours::connect(&nodes[..NODES], "ours", most, delete)));
    }
    if has_ours && options.frozen {
        let frozen = [&nodes[..NODES - 1], &nodes[NODES..]].concat();
        add(Side::OursFrozen, Box::new(Ours::connect(&frozen, "ours-frozen", most, delete)));
    }
    if has_ours && options.fenced {
        let fenced = Ours::connect_fenced(&nodes[..NODES], "ours-fenced", most, delete);
        add(Side::OursFenced, Box::new(fenced));
    }
    if has_floor {
        add(Side::Floor, Box::new(floor::connect(&nodes[..NODES], "floor", most, delete)));
    }
    if has_floor && options.frozen {
        let rest = &nodes[..NODES - 1];
        add(Side::FloorFrozen, Box::new(floor::connect(rest, "floor-frozen", most, delete)));
    }
    contenders
}

/// The floor's pairs a second in a closed loop: the median of some rounds.
fn capacity(fleet: &Fleet, options: &Options, delete: Delete) -> f64 {
    let nodes: Vec<&Node> = fleet.iter().take(NODES).collect();
    let mut floor = floor::connect(&nodes, "capacity", CAPACITY_IN_FLIGHT, delete);
    let load = Load::Closed(CAPACITY_IN_FLIGHT);
    let round = |_| run(&mut floor, load, 0, options.rounds.length).pairs_per_s();
    median((0..CAPACITY_ROUNDS).map(round))
}

/// Runs every contender in each round.
fn measure(contenders: &mut [Named], load: Load, options: &Options) -> Case {
    for named in contenders.iter_mut() {
        run(named.contender.as_mut(), load, u64::MAX, WARM_UP);
    }
    let count = contenders.len();
    let rounds = Measured::in_turns(count, options.rounds.count, |which, number| {
        let contender = contenders[which].contender.as_mut();
        run(contender, load, number as u64, options.rounds.length)
    });
    Case::new(load, contenders.iter().map(|named| named.side), rounds)
}

/// One round of one contender. In an open loop the arrivals are those of `seed`.
fn run(contender: &mut dyn Contender, load: Load, seed: u64, length: Duration) -> Round {
    let arrivals = |per_second| Arrivals::draw(seed, per_second, length);
    let mut tally = Tally::begin(length);
    match load {
        Load::Closed(in_flight) => contender.run(in_flight, &mut tally),
        Load::Open(per_second) => {
            open_loop::run(contender, arrivals(per_second), &mut tally);
        }
    }
    tally.round()
}
