//! Waiting in line on the nodes for a key that other clients hold.

pub(super) mod hand_overs;
pub mod rest;
pub mod votes;
pub(super) mod waiter;
