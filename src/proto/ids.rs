//! The handles by which the parts of the core address each other's entries.
//!
//! The hazard is a place in a slab that is used again: its old handle would name another entry. So
//! a handle carries the generation of the entry.
//!
//! A node needs none: the list of nodes never changes, and the questions of a connection end with
//! it.

use std::num::NonZeroU32;

/// The handle of a request, by which it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Op {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the requests that had this place.
    pub(super) generation: u64,
}

/// Which of the entries that had a place. It wraps, so that a handle fits into a question in
/// flight.
///
/// That is safe for a handle that cannot outlive its entry, or whose holder does no harm to
/// another one. The handle that a caller keeps also has the token of its lock, which is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU32);

impl Default for Generation {
    fn default() -> Generation {
        Generation::FIRST
    }
}

impl Generation {
    /// The first generation.
    pub const FIRST: Generation = Generation(NonZeroU32::MIN);

    /// Moves on to the next generation, and returns the present one.
    pub fn advance(&mut self) -> Generation {
        let present = *self;
        self.0 = self.0.checked_add(1).unwrap_or(NonZeroU32::MIN);
        present
    }
}

/// The handle of a record: what the client knows of one attempt for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the records that had this place.
    pub(super) generation: Generation,
}

/// The handle of a task: a request about a key that makes no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the tasks that had this place.
    pub(super) generation: Generation,
}

#[cfg(test)]
impl RecordId {
    /// The first record of this place.
    pub(crate) fn of(index: u32) -> RecordId {
        RecordId { index, generation: Generation::FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_wraps_to_the_first_and_is_never_zero() {
        let mut last = Generation(NonZeroU32::MAX);
        assert_eq!(last.advance(), Generation(NonZeroU32::MAX));
        assert_eq!(last, Generation::FIRST);
        assert_eq!(size_of::<Option<RecordId>>(), 8);
    }
}
