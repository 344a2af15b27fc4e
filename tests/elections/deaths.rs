//! The process of the leader ends without a word, again and again, while a majority of the masters
//! works and the other candidates wait in line. Another one leads soon.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::testing::master::Restart;

use super::caller::Manner;
use super::world::World;
use super::*;

const PROMPT: Manner =
    Manner { takes_after: Duration::ZERO, ends_after: Duration::ZERO, grants_requests: true };

/// Within this time one leads if the candidates do not ask in one moment: the ttl, its drift, a
/// node timeout, and the longest pause between two polls of one that is near the front of the line.
const GAP: Duration = millis(2000 + 22 + 50 + 90);

/// If several ask in one moment and each gets some of the masters, they need some time to agree.
/// The longest gap of 2,399 was 2.53 s.
const LONGEST_GAP: Duration = secs(4);

/// How often the leader of a run dies.
const DEATHS: usize = 6;

/// Freezes some masters of a minority, or cuts them off.
fn trouble_a_minority(world: &mut World, rng: &mut StdRng) {
    let masters = world.net.nodes();
    let first = rng.random_range(0..masters);
    for master in (first..masters).chain(0..first).take((masters - 1) / 2) {
        match rng.random_range(0..3) {
            0 => world.net.freeze(master),
            1 => world.net.partition(master),
            _ => continue,
        }
        world.note(format!("master {master} is frozen or cut off"));
    }
}

/// For how long nobody led after each death.
fn gaps(seed: u64) -> Vec<Duration> {
    let mut rng = StdRng::seed_from_u64(seed);
    let masters = if rng.random_bool(0.5) { 3 } else { 5 };
    let mut world = World::new(masters, seed);
    for _ in 0..rng.random_range(2..=5) {
        world.add_caller(PROMPT);
    }
    world.pass_until(secs(10), "a candidate leads", |world| world.leader().is_some());
    let mut gaps = Vec::new();
    for _ in 0..DEATHS {
        world.add_caller(PROMPT);
        world.pass(millis(rng.random_range(500..6000)));
        trouble_a_minority(&mut world, &mut rng);
        world.pass(millis(rng.random_range(0..300)));
        let Some(leader) = world.leader() else { world.fail("the leader lost its term") };
        world.kill(leader);
        let gap = world.pass_until(LONGEST_GAP, "another candidate leads", |world| {
            world.leader().is_some_and(|it| it != leader)
        });
        gaps.push(gap);
        for master in 0..masters {
            world.net.thaw(master);
            world.net.heal(master);
        }
        if rng.random_bool(0.3) {
            let master = rng.random_range(0..masters);
            world.net.restart(master, Restart::WithData);
        }
        // The quarantine of a master that restarted.
        world.pass(2 * TTL);
    }
    gaps
}

#[test]
fn another_candidate_leads_within_a_ttl_of_the_death_of_a_leader() {
    // From seed 14 on, several candidates get some of the masters each.
    let seeds = asked::seeds("ELECTIONS", 14, 3);
    let mut gaps: Vec<_> = seeds.clone().flat_map(gaps).collect();
    gaps.sort_unstable();
    let within = gaps.partition_point(|&gap| gap <= GAP);
    let (longest, deaths) = (gaps.last().expect("there is a seed"), gaps.len());
    println!("seeds {seeds:?}: nobody led for {longest:?} at most; {within}/{deaths}");
    assert!(4 * within >= 3 * deaths, "{gaps:?}");
}
