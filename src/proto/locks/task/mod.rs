//! Tasks: requests about keys that make no lock.

pub(super) mod course;
pub mod delete;
pub mod extend;
pub mod inspect;
pub mod note;
pub mod tasks;
pub(super) mod vouch;
