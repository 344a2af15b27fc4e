//! Runs the bodies of the fuzz targets without a fuzzer, so on every toolchain: on the committed
//! inputs, then on random bytes, and on committed inputs with random changes. Only a fuzzer is
//! guided by coverage: see `fuzz/`.
//!
//! The seed is fixed, so that a new failure is due to a change and can be repeated.
//! `FUZZED_CASES=100000 cargo test --release --all-features --test fuzzed` draws a seed and runs
//! more inputs.

#[path = "../sim/agenda.rs"]
#[allow(dead_code, reason = "the checker needs the length of a millisecond")]
mod agenda;
#[path = "../sim/checker.rs"]
#[allow(dead_code, reason = "the simulation uses the rest")]
mod checker;
#[path = "../../fuzz/bodies/choices.rs"]
mod choices;
#[path = "../../fuzz/bodies/config.rs"]
mod config;
#[path = "../../fuzz/bodies/connection.rs"]
mod connection;
#[path = "../../fuzz/bodies/coordinator.rs"]
mod coordinator;
#[path = "../../fuzz/bodies/plain_parser.rs"]
mod plain_parser;
#[path = "../../fuzz/bodies/reply.rs"]
mod reply;
#[path = "../../fuzz/bodies/world.rs"]
mod world;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};

#[test]
fn reply_of_any_bytes_is_read_as_another_parser_reads_it() {
    fuzz("reply", reply::LONGEST, 1_500, reply::run);
}

#[test]
fn connection_gives_each_reply_to_the_oldest_question() {
    fuzz("connection", connection::LONGEST, 6_000, connection::run);
}

#[test]
fn coordinator_never_makes_two_holders_and_comes_to_rest() {
    fuzz("coordinator", coordinator::LONGEST, 500, coordinator::run);
}

#[test]
fn config_is_refused_in_one_line_or_can_be_written_again() {
    fuzz("config", config::LONGEST, 6_000, config::run);
}

/// Runs a target on its committed inputs, and then on `cases` others.
fn fuzz(target: &str, longest: usize, cases: u32, run: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|(name, seed)| {
        println!("{name}");
        run(seed);
    });
    let more = std::env::var("FUZZED_CASES").ok().map(|text| text.parse().expect("a number"));
    let config = Config {
        cases: more.unwrap_or(cases),
        failure_persistence: None,
        rng_seed: if more.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let seeds = seeds.into_iter().map(|(_, seed)| seed).collect();
    let found = TestRunner::new(config).run(&input(seeds, longest), |input| {
        run(&input);
        Ok(())
    });
    if let Err(error) = found {
        panic!("{error}");
    }
}

/// The committed inputs of a target, by name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let files = std::fs::read_dir(&folder).expect("every target has committed inputs");
    let mut seeds: Vec<_> = files
        .map(|file| {
            let path = file.expect("a file of a folder").path();
            let name = path.file_name().expect("a file has a name").to_string_lossy();
            (name.into_owned(), std::fs::read(&path).expect("a readable file"))
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    seeds
}

/// A change of an input: removes some bytes at a place and puts others there.
#[derive(Debug, Clone)]
struct Edit {
    place: Index,
    removed: usize,
    added: Vec<u8>,
}

/// Random bytes, or a committed input with a few changes, perhaps with another one after it.
fn input(seeds: Vec<Vec<u8>>, longest: usize) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<Index>(), 0..6_usize, prop::collection::vec(any::<u8>(), 0..6))
        .prop_map(|(place, removed, added)| Edit { place, removed, added });
    let edits = prop::collection::vec(edit, 0..5);
    let second = prop_oneof![3 => Just(Vec::new()), 1 => select(seeds.clone())];
    let edited = (select(seeds), second, edits).prop_map(move |(first, second, edits)| {
        let mut bytes = [first, second].concat();
        for Edit { place, removed, added } in edits {
            let from = place.index(bytes.len() + 1);
            let until = (from + removed).min(bytes.len());
            bytes.splice(from..until, added);
        }
        bytes.truncate(longest);
        bytes
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..longest), 3 => edited]
}
