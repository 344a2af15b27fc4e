//! Fencing numbers: the votes of the nodes, and the round that writes the number back.

pub mod counted;
pub mod number;
pub(super) mod rounds;
