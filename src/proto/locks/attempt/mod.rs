//! Attempts for a key: an acquire, and an adopt of a lock that another client handed on.

pub(super) mod acquire;
pub(super) mod adopt;
pub(super) mod again;
pub(super) mod starting;
