//! Renewals of auto-extended locks, and the warnings before a deadline.

pub(super) mod renewals;
pub mod schedule;
