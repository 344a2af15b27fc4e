//! The handles by which the parts of the core address each other's entries.
//!
//! The hazard is a place in a slab that is used again: its old handle would name another entry. So
//! a handle carries the generation of the entry.

/// The handle of a request, by which it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Op {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the requests that had this place.
    pub(super) generation: u64,
}
