//! A LAN inside this process, in simulated time: masters, and contenders that want the same lock.
//!
//! It opens no socket and reads no clock: the figures of a run are the same on every machine. The
//! processors of clients and masters are as good as free here, so costs are counts of commands.

mod bare;
mod world;

pub use world::{Counts, Way, run};
