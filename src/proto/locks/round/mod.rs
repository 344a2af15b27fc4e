//! Rounds: one request to all nodes, its votes and its verdict.

pub(super) mod course;
pub(super) mod failure;
pub(super) mod replies;
pub mod state;
