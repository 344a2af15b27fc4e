//! How fast the decoder reads what nodes send: gigabytes a second, and nanoseconds a reply.
//!
//! The library's decoder alone, on bytes that are in the processor's cache: no socket, no node. The
//! bench in `benches/peers` runs the same rounds with the decoders of other crates. The hazard is a
//! figure that the compiler made up: every reply goes through `black_box`, and is counted.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod rounds;
mod streams;

fn main() {
    rounds::main(&mut [rounds::ours()]);
}
