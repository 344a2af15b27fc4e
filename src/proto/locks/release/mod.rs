//! Releases: on which nodes they are pending, and when they are sent.

pub mod pending;
pub mod queue;
pub(super) mod releases;
