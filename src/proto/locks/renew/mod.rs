//! Renewals of held locks, and the warnings before their end.

pub(super) mod renewals;
pub mod schedule;
