//! The decoder with random bytes, against an independent parser. See `fuzz/bodies/reply.rs`.
//!
//! `cargo +nightly fuzz run reply fuzz/corpus/reply fuzz/seeds/reply -- -max_len=300`
#![forbid(unsafe_code)]
#![no_main]

#[path = "../bodies/plain_parser.rs"]
mod plain_parser;
#[path = "../bodies/reply.rs"]
mod reply;

libfuzzer_sys::fuzz_target!(|input: &[u8]| reply::run(input));
