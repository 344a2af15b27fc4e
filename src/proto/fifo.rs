//! A queue whose entries lie in one slice, oldest first. That makes the steps of the hot path
//! short: to look at the entries in a row, to put one in, and to take the oldest one out.
//!
//! The hazard is a queue that is never empty: it would move through memory without end. So if there
//! is no room at the end and a quarter of the entries were taken out, the others move to the front.

use std::collections::VecDeque;

use crate::proto::surplus::shrink_list;

/// A queue of small values.
#[derive(Debug, Clone)]
pub struct Fifo<T> {
    /// The entries that were taken out, and then the others.
    entries: Vec<T>,
    /// How many entries were taken out. Less than `entries` has, unless both are 0.
    taken: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo { entries: Vec::new(), taken: 0 }
    }
}

impl<T: Copy> Fifo<T> {
    /// Puts an entry at the end.
    #[inline]
    pub fn push(&mut self, entry: T) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(entry);
    }

    #[cold]
    fn make_room(&mut self) {
        if self.taken > 0 && self.taken >= self.entries.len() / 4 {
            self.move_to_front();
        }
    }

    fn move_to_front(&mut self) {
        self.entries.drain(..self.taken);
        self.taken = 0;
    }

    /// Takes the oldest entry out.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let oldest = self.front()?;
        self.taken += 1;
        if self.taken == self.entries.len() {
            self.clear();
        }
        Some(oldest)
    }

    /// The oldest entry.
    #[inline]
    pub fn front(&self) -> Option<T> {
        self.entries.get(self.taken).copied()
    }

    /// The oldest entry, to change it.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        self.entries.get_mut(self.taken)
    }

    /// The entry that was put in last, to change it.
    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut T> {
        self.entries.last_mut()
    }

    /// The entries, oldest first.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        &self.entries[self.taken..]
    }

    /// The entries, oldest first, to change them.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.entries[self.taken..]
    }

    /// How many entries there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() - self.taken
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries fit without another allocation.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Takes all entries out, and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.entries.clear();
        self.taken = 0;
    }

    /// Takes all entries out, with their memory.
    pub fn take_all(&mut self) -> VecDeque<T> {
        self.move_to_front();
        std::mem::take(&mut self.entries).into()
    }

    /// Gives memory back, if `most`, the most entries that there were lately, need far less.
    pub fn shrink(&mut self, most: usize) {
        self.move_to_front();
        shrink_list(&mut self.entries, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fifo_agrees_with_a_deque(steps in proptest::collection::vec(0..8_u8, 1..400)) {
            let (mut fifo, mut deque) = (Fifo::default(), VecDeque::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    0..4 => {
                        fifo.push(number);
                        deque.push_back(number);
                    }
                    4..7 => prop_assert_eq!(fifo.pop(), deque.pop_front()),
                    _ => fifo.shrink(deque.len()),
                }
                prop_assert_eq!(fifo.as_slice(), deque.make_contiguous());
                prop_assert_eq!((fifo.len(), fifo.is_empty()), (deque.len(), deque.is_empty()));
                prop_assert_eq!(fifo.front(), deque.front().copied());
                prop_assert_eq!(fifo.front_mut(), deque.front_mut());
                prop_assert_eq!(fifo.back_mut(), deque.back_mut());
            }
            prop_assert_eq!(fifo.take_all(), deque);
            prop_assert!(fifo.is_empty());
        }
    }

    #[test]
    fn fifo_that_is_never_empty_stays_as_large_as_it_is() {
        let mut fifo = Fifo::default();
        (0..96).for_each(|number| fifo.push(number));
        let room = fifo.entries.capacity();
        for number in 96..10_000 {
            assert_eq!(fifo.pop(), Some(number - 96));
            fifo.push(number);
        }
        assert_eq!((fifo.len(), fifo.entries.capacity()), (96, room));
    }
}
