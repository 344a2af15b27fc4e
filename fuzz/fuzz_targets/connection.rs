//! One connection with random bytes and questions. See `fuzz/bodies/connection.rs`.
//!
//! `cargo +nightly fuzz run connection fuzz/corpus/connection fuzz/seeds/connection --
//! -max_len=400`
#![forbid(unsafe_code)]
#![no_main]

#[path = "../bodies/choices.rs"]
#[allow(dead_code, reason = "the target `coordinator` uses the rest")]
mod choices;
#[path = "../bodies/connection.rs"]
mod connection;
#[path = "../bodies/plain_parser.rs"]
#[allow(dead_code, reason = "the target `reply` uses the rest")]
mod plain_parser;

libfuzzer_sys::fuzz_target!(|input: &[u8]| connection::run(input));
