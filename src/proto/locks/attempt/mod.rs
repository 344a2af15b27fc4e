//! Attempts for a key: an acquire, and an adopt of a lock that another client gave away.

pub(super) mod acquire;
pub(super) mod adopt;
pub(super) mod again;
pub(super) mod starting;
