//! Tasks: requests about a key that make no lock.

pub(super) mod course;
pub(super) mod delete;
pub(super) mod extend;
pub(super) mod inspect;
pub mod tasks;
pub(super) mod vouch;
