//! Waiting in line on the nodes: a fair lock that others hold.

pub(super) mod hand_overs;
pub mod votes;
pub(super) mod waiter;
