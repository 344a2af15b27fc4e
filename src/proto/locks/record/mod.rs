//! Records: what is known of one attempt, and of the lock that it becomes.

pub mod records;
pub(super) mod trouble;
