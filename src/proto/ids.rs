//! The handles by which the parts of the core address each other's entries.
//!
//! The hazard is a place in a slab that is used again: an old handle would name the new entry
//! there. So a handle carries the generation of its entry.
//!
//! The number of a node needs no generation: the list of nodes never changes, and no question
//! outlives its connection.

use std::num::NonZeroU32;

/// The handle of a request, by which it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Op {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the requests that had this place.
    pub(super) generation: OpGeneration,
}

/// The running number of a request. No number of a client is used twice, because a caller may keep
/// a handle for ever. The number is kept in two halves, so that an optional handle takes 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpGeneration {
    high: NonZeroU32,
    low: u32,
}

impl Default for OpGeneration {
    fn default() -> OpGeneration {
        OpGeneration::FIRST
    }
}

impl OpGeneration {
    /// The first generation.
    pub const FIRST: OpGeneration = OpGeneration { high: NonZeroU32::MIN, low: 0 };

    /// The generation after which `left` more follow before the lower half carries into the upper
    /// one.
    #[cfg(feature = "testing")]
    pub fn before_carry(left: u32) -> OpGeneration {
        OpGeneration { high: NonZeroU32::MIN, low: u32::MAX - left }
    }

    /// Moves on to the next generation, and returns the present one.
    pub fn advance(&mut self) -> OpGeneration {
        let present = *self;
        self.low = self.low.wrapping_add(1);
        if self.low == 0 {
            self.high = self.high.checked_add(1).expect("no client makes 2^63 requests");
        }
        present
    }
}

impl Op {
    /// The short form of the handle, for a timer.
    pub(super) const fn short(self) -> ShortOp {
        ShortOp { index: self.index, low: self.generation.low }
    }
}

/// The handle of a request in one of its timers. A timer never outlives its request, so half of the
/// generation is enough to notice a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortOp {
    pub(super) index: u32,
    low: u32,
}

/// A place in a slab. An optional place takes four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(NonZeroU32);

impl Place {
    /// The place at `index`.
    pub fn new(index: usize) -> Place {
        let number = u32::try_from(index).ok().and_then(|index| NonZeroU32::MIN.checked_add(index));
        Place(number.expect("the limits keep every slab far smaller"))
    }

    /// Its index in the slab.
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Tells apart the entries that had one place after each other. The numbers begin again after 2^32
/// entries, so that a handle is small enough for a question in flight.
///
/// That is safe for a handle that cannot outlive its entry, or that does no harm if it finds a
/// later entry. The handle that a caller keeps also has the token of its lock, which is compared.
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

    /// The generation after which `left` more follow before the numbers begin again.
    #[cfg(feature = "testing")]
    pub fn before_wrap(left: u32) -> Generation {
        Generation(NonZeroU32::new(u32::MAX - left).unwrap_or(NonZeroU32::MIN))
    }

    /// Moves on to the next generation, and returns the present one.
    pub fn advance(&mut self) -> Generation {
        let present = *self;
        self.0 = self.0.checked_add(1).unwrap_or(NonZeroU32::MIN);
        present
    }
}

/// The handle of a campaign in an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CampaignId {
    /// The place in the slab.
    pub(super) index: u32,
    /// Which of the campaigns that had this place.
    pub(super) generation: Generation,
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

#[cfg(any(test, feature = "testing"))]
impl RecordId {
    /// The first record of this place.
    pub fn of(index: u32) -> RecordId {
        RecordId { index, generation: Generation::FIRST }
    }
}

#[cfg(feature = "testing")]
impl TaskId {
    /// The first task of this place.
    pub fn of(index: u32) -> TaskId {
        TaskId { index, generation: Generation::FIRST }
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

    #[test]
    fn generation_of_a_request_goes_on_after_its_lower_half_is_full() {
        let mut last = OpGeneration { high: NonZeroU32::MIN, low: u32::MAX };
        last.advance();
        assert_eq!((last.high.get(), last.low), (2, 0));
        assert_eq!(size_of::<Option<Op>>(), 12);
    }

    #[test]
    fn place_keeps_its_index() {
        assert_eq!([0, 1, 1 << 30].map(|index| Place::new(index).index()), [0, 1, 1 << 30]);
        assert_eq!(size_of::<Option<Place>>(), 4);
    }
}
