//! Records: what is known of one attempt, and of the lock that it becomes.

pub mod records;
mod spares;
pub(super) mod trouble;
