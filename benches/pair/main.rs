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
//!
//! Options: `--case 1|16|64|512` (a closed loop with so many keys in flight), `--open-loop
//! 20000|50%` (an open loop with so many pairs a second, or with that part of the floor's pairs a
//! second in a closed loop; without either option, all of these cases are measured), `--rounds N`,
//! `--seconds-per-round F`, `--frozen` (the client with one frozen node, compared with the client
//! of healthy nodes), `--fenced` (such locks beside plain ones), `--delete
//! script|native` (how locks are released; default: native if the nodes have it;
//! `REDLATCH_TEST_SERVER` names another server), `--only ours|floor` (for a profiler), `--json`.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod arrivals;
mod delete;
mod floor;
mod open_loop;
mod options;
mod ours;
mod report;
#[cfg(feature = "io-uring")]
mod ring_floor;
#[cfg(feature = "io-uring")]
mod ring_ours;
mod tally;

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use arrivals::Arrivals;
use delete::Delete;
use floor::Floor;
use options::{Only, Options, Rate};
use ours::Ours;
use report::{Case, Load, Side};
use support::{Fleet, Node};
use tally::{Figures, Tally};

/// How many masters a client has.
const NODES: usize = 5;

/// The ttl of a lock; no lock lives long enough for it to matter.
const TTL: Duration = Duration::from_secs(10);

/// Pairs before the first round: connections, caches and buffers get their size, and a frozen node
/// is found silent.
const WARM_UP: Duration = Duration::from_millis(1_200);

/// The closed loop whose pairs a second are the capacity, and how many rounds measure it.
const CAPACITY_IN_FLIGHT: usize = 64;
const CAPACITY_ROUNDS: usize = 5;

/// Takes and gives back locks.
trait Contender {
    /// Keeps `in_flight` keys in flight until the tally says that the round is over; returns when
    /// no answer is outstanding.
    fn run(&mut self, in_flight: usize, tally: &mut Tally);

    /// Begins a pair at each arrival; returns when all are complete and no answer is outstanding.
    fn run_open(&mut self, arrivals: Arrivals, tally: &mut Tally);
}

/// A contender with the name of its figures.
struct Named {
    side: Side,
    contender: Box<dyn Contender>,
}

fn main() {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    };
    // The healthy client and the one with a frozen node share four masters.
    let fleet = Fleet::start(NODES + usize::from(options.frozen));
    let delete = Delete::of(&fleet, options.delete.as_deref());
    let mut contenders = connect(&fleet, &options, delete);
    if options.frozen {
        fleet[NODES].stop();
    }
    report::begin(&options, delete);
    for &in_flight in &options.cases {
        let case = measure(&mut contenders, Load::Closed(in_flight), &options);
        report::show(&case, &options);
    }
    // The timer of the open loop needs a poller.
    contenders.retain(|named| ![Side::OurRing, Side::RingFloor].contains(&named.side));
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
    let (ours, floor) = (options.only != Some(Only::Floor), options.only != Some(Only::Ours));
    if ours {
        add(Side::Ours, Box::new(Ours::connect(&nodes[..NODES], "ours", most, delete)));
    }
    if ours && options.frozen {
        let frozen = [&nodes[..NODES - 1], &nodes[NODES..]].concat();
        add(Side::OursFrozen, Box::new(Ours::connect(&frozen, "ours-frozen", most, delete)));
    }
    if ours && options.fenced {
        let fenced = Ours::connect_fenced(&nodes[..NODES], "ours-fenced", most, delete);
        add(Side::OursFenced, Box::new(fenced));
    }
    if floor {
        add(Side::Floor, Box::new(Floor::connect(&nodes[..NODES], "floor", most, delete)));
    }
    if floor && options.frozen {
        let rest = &nodes[..NODES - 1];
        add(Side::FloorFrozen, Box::new(Floor::connect(rest, "floor-frozen", most, delete)));
    }
    #[cfg(feature = "io-uring")]
    add_rings(&mut contenders, &nodes[..NODES], options, delete);
    contenders
}

/// Adds the contenders on io_uring, if the kernel allows it.
#[cfg(feature = "io-uring")]
fn add_rings(contenders: &mut Vec<Named>, nodes: &[&Node], options: &Options, delete: Delete) {
    let most = options.cases.iter().copied().max().unwrap_or(0);
    if options.frozen {
        return;
    }
    if options.only != Some(Only::Floor) {
        match ring_ours::RingOurs::connect(nodes, most, delete) {
            Ok(ours) => contenders.push(Named { side: Side::OurRing, contender: Box::new(ours) }),
            Err(reason) => eprintln!("{reason}"),
        }
    }
    if options.only != Some(Only::Ours) {
        let floor = ring_floor::RingFloor::connect(nodes, most, delete);
        contenders.push(Named {
            side: Side::RingFloor,
            contender: Box::new(floor.expect("the engine has a ring, too")),
        });
    }
}

/// The floor's pairs a second in a closed loop: the median of some rounds.
fn capacity(fleet: &Fleet, options: &Options, delete: Delete) -> f64 {
    let nodes: Vec<&Node> = fleet.iter().take(NODES).collect();
    let mut floor = Floor::connect(&nodes, "capacity", CAPACITY_IN_FLIGHT, delete);
    let mut rounds = Vec::new();
    for _ in 0..CAPACITY_ROUNDS {
        let mut tally = Tally::begin(options.length);
        floor.run(CAPACITY_IN_FLIGHT, &mut tally);
        rounds.push(tally.figures());
    }
    Figures::median(&rounds).pairs_per_s
}

/// Runs every contender in each round, every second round in the opposite order.
fn measure(contenders: &mut [Named], load: Load, options: &Options) -> Case {
    let mut case = Case::new(load, contenders.iter().map(|named| named.side));
    for named in contenders.iter_mut() {
        run(named, load, u64::MAX, WARM_UP);
    }
    for number in 0..options.rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if number % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let figures = run(&mut contenders[index], load, number as u64, options.length);
            case.add(index, figures);
        }
    }
    case
}

/// One round of one contender. In an open loop the arrivals are those of `seed`.
fn run(named: &mut Named, load: Load, seed: u64, length: Duration) -> Figures {
    match load {
        Load::Closed(in_flight) => {
            let mut tally = Tally::begin(length);
            named.contender.run(in_flight, &mut tally);
            tally.figures()
        }
        Load::Open(per_second) => {
            let arrivals = Arrivals::draw(seed, per_second, length);
            let mut tally = Tally::begin(length);
            named.contender.run_open(arrivals, &mut tally);
            tally.figures()
        }
    }
}
