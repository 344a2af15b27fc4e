//! Fencing numbers: the votes of the nodes, and the second round.

pub mod number;
pub(super) mod rounds;
