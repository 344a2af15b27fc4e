//! Locks over several keys.

pub mod keys;
pub(super) mod rounds;
