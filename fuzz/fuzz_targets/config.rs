//! Addresses, durations, configuration files and variables of any text. See
//! `fuzz/bodies/config.rs`.
//!
//! `cargo +nightly fuzz run config fuzz/corpus/config fuzz/seeds/config -- -max_len=400`
#![forbid(unsafe_code)]
#![no_main]

#[path = "../bodies/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|input: &[u8]| config::run(input));
