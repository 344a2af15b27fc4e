//! Random orders: candidates lead, resign, move, leave and come back, and are asked to resign while
//! masters restart, freeze, lose their data or are cut off, and processes stand still or end. Each
//! seed has some of these kinds of events only, so that each kind has seeds in which the others do
//! not hide it. Then all faults end, and the election goes on as if nothing had happened. With more
//! orders:
//!
//! ```text
//! ELECTIONS_FROM=5000 ELECTIONS_SEEDS=400 \
//!     cargo test --release --all-features --test elections random -- --nocapture
//! ```
//!
//! The hazard is an order that chance does not reach: `orders.rs` plays those that are known.

use std::ops::AddAssign;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::Leadership;
use redlatch::testing::master::Restart;

use super::caller::Manner;
use super::world::World;
use super::*;

/// What happens in the world of a seed beside changes of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Callers take their standings late.
    TakeLate,
    /// Callers end their terms late.
    EndLate,
    /// Some callers do not end their terms before all faults end.
    NeverEnd,
    /// Candidates leave, and come back.
    Leave,
    /// Somebody asks the leader to resign.
    Ask,
    /// Leaders resign by themselves.
    Resign,
    /// Masters freeze.
    Freezes,
    /// Masters stop and start again.
    Stops,
    /// Masters lose their data.
    Losses,
    /// Nothing reaches or leaves some masters.
    Partitions,
    /// Connections break.
    Cuts,
    /// What some clients write does not reach some masters.
    CutOff,
    /// Processes stand still.
    Still,
    /// Processes end, and others begin.
    Ends,
}

const KINDS: [Kind; 14] = [
    Kind::TakeLate,
    Kind::EndLate,
    Kind::NeverEnd,
    Kind::Leave,
    Kind::Ask,
    Kind::Resign,
    Kind::Freezes,
    Kind::Stops,
    Kind::Losses,
    Kind::Partitions,
    Kind::Cuts,
    Kind::CutOff,
    Kind::Still,
    Kind::Ends,
];

type Happen = fn(&mut Election);

/// What can happen, how often, and in which worlds.
const EVENTS: [(Happen, u32, Option<Kind>); 13] = [
    (Election::wait, 200, None),
    (Election::proclaim, 30, None),
    (Election::leave_or_come_back, 60, Some(Kind::Leave)),
    (Election::ask_to_resign, 80, Some(Kind::Ask)),
    (Election::resign, 80, Some(Kind::Resign)),
    (Election::freeze_or_thaw, 60, Some(Kind::Freezes)),
    (Election::stop_or_start, 40, Some(Kind::Stops)),
    (Election::lose_data, 15, Some(Kind::Losses)),
    (Election::partition_or_heal, 60, Some(Kind::Partitions)),
    (Election::break_a_connection, 80, Some(Kind::Cuts)),
    (Election::cut_off_a_client, 60, Some(Kind::CutOff)),
    (Election::stand_still, 60, Some(Kind::Still)),
    (Election::replace_a_candidate, 20, Some(Kind::Ends)),
];

/// How many events a run has.
const STEPS: usize = 120;

/// Within this time after all faults there is a leader: after the quarantine of masters that
/// restarted, and the longest rest of a candidate in line.
const SOON: Duration = secs(30);

/// What the orders of the seeds did.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    terms: usize,
    requests: usize,
    reports: usize,
    /// The longest time from the end of the faults to a leader.
    longest: Duration,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.terms += other.terms;
        self.requests += other.requests;
        self.reports += other.reports;
        self.longest = self.longest.max(other.longest);
    }
}

struct Election {
    world: World,
    rng: StdRng,
    kinds: Vec<Kind>,
    down: Vec<bool>,
}

impl Election {
    fn new(seed: u64) -> Election {
        let mut rng = StdRng::seed_from_u64(seed);
        let masters = if rng.random_bool(0.5) { 3 } else { 5 };
        let often = [0.2, 0.5, 0.8][rng.random_range(0..3)];
        let kinds = KINDS.into_iter().filter(|_| rng.random_bool(often)).collect();
        let world = World::new(masters, seed);
        let mut election = Election { world, rng, kinds, down: vec![false; masters] };
        for _ in 0..election.rng.random_range(3..=6) {
            let manner = election.manner();
            election.world.add_caller(manner);
        }
        election.world.add_observer();
        election
    }

    fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    fn manner(&mut self) -> Manner {
        let takes_late = self.has(Kind::TakeLate) && self.rng.random_bool(0.5);
        let ends_late = self.has(Kind::EndLate) && self.rng.random_bool(0.5);
        let never_ends = self.has(Kind::NeverEnd) && self.rng.random_bool(0.3);
        let mut late = |often, most| match often {
            true => millis(self.rng.random_range(1..most)),
            false => Duration::ZERO,
        };
        let takes_after = late(takes_late, 4000);
        let ends_after = if never_ends { secs(1_000_000) } else { late(ends_late, 6000) };
        Manner { takes_after, ends_after, grants_requests: self.rng.random_bool(0.8) }
    }

    fn play(&mut self) {
        let events = EVENTS.iter().filter(|(.., kind)| kind.is_none_or(|kind| self.has(kind)));
        let events: Vec<_> = events.collect();
        let all: u32 = events.iter().map(|(_, weight, _)| weight).sum();
        for _ in 0..STEPS {
            let mut drawn = self.rng.random_range(0..all);
            for (event, weight, _) in &events {
                if drawn < *weight {
                    event(self);
                    break;
                }
                drawn -= weight;
            }
            let longest = if self.rng.random_bool(0.1) { 4000 } else { 300 };
            let pause = self.draw(longest);
            self.world.pass(pause);
        }
    }

    /// The election works after the end of all faults. Returns how long it had no leader.
    fn finish(&mut self) -> Duration {
        let Election { world, rng, down, .. } = self;
        world.end_faults(down);
        for caller in &mut world.callers {
            let late = millis(rng.random_range(0..1000));
            caller.end_within(late, world.net.now());
        }
        for which in 0..world.callers.len() {
            if world.callers[which].campaign.is_none() && !world.is_dead(which) {
                world.callers[which].begin(&mut world.net, &mut world.checker);
            }
        }
        let took = world.pass_until(SOON, "a candidate leads", |world| world.leader().is_some());
        self.see_the_leader();
        let world = &mut self.world;
        let first = world.leader().expect("it was just seen");
        let pause = secs(40);
        world.note(format!("{} resigns for {pause:?}", world.callers[first].name));
        world.callers[first].resign(pause, &mut world.net);
        world.pass_until(SOON, "another candidate leads", |world| world.leader().is_some());
        self.see_the_leader();
        let world = &mut self.world;
        assert_ne!(world.leader(), Some(first));
        for which in 0..world.callers.len() {
            if !world.is_dead(which) {
                world.callers[which].withdraw(&mut world.net);
            }
        }
        world.pass_until(SOON, "the observer says that nobody leads", |world| {
            world.observers.iter().all(|it| it.seen == Leadership::Nobody)
        });
        took
    }

    /// The observer and the other candidates name the leader, its address and its term.
    fn see_the_leader(&mut self) {
        self.world.pass_until(SOON, "all name the leader", |world| {
            let Some(leader) = world.leader() else { return false };
            let leader = &world.callers[leader];
            let Some(term) = &leader.term else { return false };
            let names_it = |seen: &redlatch::Leader| {
                seen.name() == leader.name
                    && seen.address() == Some(&*leader.address)
                    && seen.term() == Some(term.number)
                    && *seen.token() == term.lock.token()
            };
            let observers = world.observers.iter().map(|it| it.seen.leader());
            let others = (0..world.callers.len()).filter(|&which| {
                let it = &world.callers[which];
                it.client != leader.client && it.campaign.is_some() && !world.is_dead(which)
            });
            let others = others.map(|which| world.callers[which].follows.as_ref());
            observers.chain(others).all(|seen| seen.is_some_and(names_it))
        });
    }

    fn draw(&mut self, most: u64) -> Duration {
        millis(self.rng.random_range(1..most))
    }

    /// A candidate whose process is there and runs.
    fn any(&mut self) -> Option<usize> {
        let which = self.rng.random_range(0..self.world.callers.len());
        let client = self.world.callers[which].client;
        (!self.world.net.is_stopped(client)).then_some(which)
    }

    /// The leader more often than another candidate.
    fn any_or_leader(&mut self) -> Option<usize> {
        let leader = if self.rng.random_bool(0.6) { self.world.leader() } else { None };
        let leader = leader.filter(|&it| !self.world.net.is_stopped(self.world.callers[it].client));
        leader.or_else(|| self.any())
    }

    fn wait(&mut self) {
        let pause = self.draw(2000);
        self.world.pass(pause);
    }

    fn proclaim(&mut self) {
        let Some(which) = self.any_or_leader() else { return };
        let World { net, callers, checker, .. } = &mut self.world;
        let address = format!("10.0.0.7:{}", self.rng.random_range(1..10_000));
        callers[which].proclaim(address, net, checker);
    }

    fn leave_or_come_back(&mut self) {
        let Some(which) = self.any_or_leader() else { return };
        let World { net, callers, checker, .. } = &mut self.world;
        let caller = &mut callers[which];
        match caller.campaign {
            Some(_) => caller.withdraw(net),
            None => caller.begin(net, checker),
        }
        let words = if caller.campaign.is_some() { "comes back" } else { "leaves" };
        let name = caller.name.clone();
        self.world.note(format!("{name} {words}"));
    }

    fn ask_to_resign(&mut self) {
        let Some(which) = self.any() else { return };
        let pause = self.draw(5000);
        let World { net, callers, checker, .. } = &mut self.world;
        let Some(leader) = &callers[which].follows else { return };
        checker.note_request(leader);
        let now = net.now();
        let core = &mut net.client_mut(callers[which].client).core;
        core.ask_to_resign(KEY, leader, pause, 0, now).expect("there is room");
        let words = format!("{leader:?} is asked to resign for {pause:?}");
        self.world.note(words);
    }

    fn resign(&mut self) {
        let Some(which) = self.any_or_leader() else { return };
        let pause = self.draw(5000);
        let World { net, callers, .. } = &mut self.world;
        callers[which].resign(pause, net);
        let name = callers[which].name.clone();
        self.world.note(format!("{name} resigns for {pause:?}"));
    }

    fn any_master(&mut self) -> usize {
        self.rng.random_range(0..self.down.len())
    }

    fn freeze_or_thaw(&mut self) {
        let master = self.any_master();
        let net = &mut self.world.net;
        match net.is_frozen(master) {
            true => net.thaw(master),
            false => net.freeze(master),
        }
        self.world.note(format!("master {master} freezes or thaws"));
    }

    fn stop_or_start(&mut self) {
        let master = self.any_master();
        match std::mem::take(&mut self.down[master]) {
            true => self.world.net.start(master, Restart::WithData),
            false => {
                self.world.net.kill(master);
                self.down[master] = true;
            }
        }
        self.world.note(format!("master {master} stops or starts"));
    }

    /// One master restarts without its data, or all of them.
    fn lose_data(&mut self) {
        let all = self.rng.random_bool(0.2);
        let one = self.any_master();
        for master in (0..self.down.len()).filter(|&master| all || master == one) {
            if !self.down[master] {
                self.world.net.restart(master, Restart::Empty);
            }
        }
        self.world.note(format!("master {one} loses its data; all of them: {all}"));
    }

    fn partition_or_heal(&mut self) {
        let master = self.any_master();
        let net = &mut self.world.net;
        match net.is_partitioned(master) {
            true => net.heal(master),
            false => net.partition(master),
        }
        self.world.note(format!("master {master} is or is no longer cut off"));
    }

    fn break_a_connection(&mut self) {
        let (client, master) =
            (self.rng.random_range(0..self.world.net.clients()), self.any_master());
        if !self.world.net.is_stopped(client) {
            self.world.net.cut(client, master);
            self.world.note(format!("connection of client {client} to {master} breaks"));
        }
    }

    fn cut_off_a_client(&mut self) {
        let client = self.rng.random_range(0..self.world.net.clients());
        let masters: Vec<_> = self.down.iter().map(|_| self.rng.random_bool(0.5)).collect();
        let length = self.draw(8000);
        self.world.cut_off(client, &masters, length);
    }

    fn stand_still(&mut self) {
        let leader = self.world.leader().filter(|_| self.rng.random_bool(0.5));
        let clients = self.world.net.clients();
        let client = leader.map(|leader| self.world.callers[leader].client);
        let client = client.unwrap_or_else(|| self.rng.random_range(0..clients));
        let most = if self.rng.random_bool(0.5) { 500 } else { 6000 };
        let length = self.draw(most);
        self.world.stop(client, length);
    }

    fn replace_a_candidate(&mut self) {
        if let Some(which) = self.any_or_leader() {
            self.world.kill(which);
            let manner = self.manner();
            self.world.add_caller(manner);
        }
    }
}

/// Plays the order of a seed.
fn run(seed: u64) -> Tally {
    let mut election = Election::new(seed);
    election.play();
    let longest = election.finish();
    let callers = &election.world.callers;
    Tally {
        terms: callers.iter().map(|it| it.terms).sum(),
        requests: callers.iter().map(|it| it.requests).sum(),
        reports: election.world.checker.reports,
        longest,
    }
}

#[test]
fn random_elections_have_one_leader_at_a_time_and_block_nobody() {
    let seeds = asked::seeds("ELECTIONS", 0, 7);
    let mut all = Tally::default();
    for seed in seeds.clone() {
        all += run(seed);
    }
    println!("seeds {seeds:?}: {all:?}");
    let seeds = seeds.end - seeds.start;
    assert!(all.terms as u64 >= 5 * seeds && all.reports as u64 >= 5 * seeds, "{all:?}");
    assert!(seeds < 7 || all.requests > 0, "{all:?}");
}
