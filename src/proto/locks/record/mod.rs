//! Records: what the client knows of one attempt, and of the lock if the attempt is won.

pub mod records;
mod spares;
pub(super) mod trouble;
