//! Locks over several keys.

pub mod chain;
pub mod keys;
pub(super) mod rounds;
