//! What the benches share: options, the figures of a round, turns of contenders, and tables.
//!
//! A bench says what its cases are, what a contender does in a round, and which columns its table
//! has. This package knows nothing of locks and nodes. The hazard is the machine, which is never
//! quiet: so contenders run in short rounds, in turns, and ratios are taken within a round.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod door;
mod machine;
mod meter;
mod options;
mod quantiles;
mod table;
mod turns;

/// The options of a bench are a struct that this crate reads: `use kit::clap::{self, Parser}`.
pub use clap;
pub use door::{Door, round};
pub use machine::{Ticks, load};
pub use meter::{Meter, Round, Samples, process_cpu, thread_cpu};
pub use options::{Only, Rounds, positive, read, read_from, seconds, time_within};
pub use quantiles::{median, quantile};
pub use table::{Table, json, number};
pub use turns::{Measured, order};
