//! Coordinators and masters in an order that the input decides. See `fuzz/bodies/coordinator.rs`.
//!
//! `cargo +nightly fuzz run coordinator fuzz/corpus/coordinator fuzz/seeds/coordinator --
//! -max_len=600`
#![forbid(unsafe_code)]
#![no_main]

#[path = "../../tests/sim/agenda.rs"]
#[allow(dead_code, reason = "the checker needs the length of a millisecond")]
mod agenda;
#[path = "../../tests/sim/checker.rs"]
#[allow(dead_code, reason = "the simulation uses the rest")]
mod checker;
#[path = "../bodies/choices.rs"]
mod choices;
#[path = "../bodies/coordinator.rs"]
mod coordinator;
#[path = "../bodies/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|input: &[u8]| coordinator::run(input));
