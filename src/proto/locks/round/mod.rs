//! Rounds: one request to all nodes, their votes and the verdict.

pub(super) mod course;
pub(super) mod failure;
pub(super) mod replies;
pub mod state;
