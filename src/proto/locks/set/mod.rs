//! Locks over several keys: a set.

pub mod chain;
pub mod keys;
pub(super) mod rounds;
