//! How buffers grow, and how they give back what a burst took.
//!
//! If less than a quarter of a buffer was in use during a whole interval, it is shrunk to twice
//! what was in use. So a client that works steadily never shrinks a buffer that it needs again.
//!
//! The hazard is a slab that loses the generations of its places when it is shrunk. So the counters
//! of generations stand outside of the slab, and go on.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use slab::Slab;

/// How often the client looks for buffers to shrink. The memory of a burst is given back within two
/// intervals after it.
pub const INTERVAL: Duration = Duration::from_secs(20);

/// Buffers of up to this many entries are not shrunk: together they take less than a megabyte.
pub const FEW: usize = 2048;

/// Buffers of up to this many bytes are not shrunk: the releases of `FEW` locks fit into one.
const FEW_BYTES: usize = 256 * 1024;

/// Up to this many entries a slab doubles when it is full. A larger one grows by a 32nd part, so
/// that little of it is empty.
const DOUBLES_UP_TO: usize = 8192;

/// Puts an entry into a slab, which grows if it is full.
#[inline]
pub fn insert<T>(slab: &mut Slab<T>, entry: T) -> usize {
    make_room(slab);
    slab.insert(entry)
}

/// Lets a slab grow if it is full. A large entry is built after this call: then the compiler need
/// not keep it while the slab grows, and moves it once less.
#[inline]
pub fn make_room<T>(slab: &mut Slab<T>) {
    if slab.len() == slab.capacity() {
        grow(slab);
    }
}

#[cold]
fn grow<T>(slab: &mut Slab<T>) {
    let len = slab.len();
    slab.reserve_exact(if len < DOUBLES_UP_TO { len.max(4) } else { len / 32 });
}

/// The capacity to which a buffer is shrunk of which `most` entries were in use; `None` if it is
/// kept.
fn target(capacity: usize, most: usize, few: usize) -> Option<usize> {
    (capacity > few && most < capacity / 4).then(|| (2 * most).max(few))
}

/// Shrinks a slab, but not below its last entry in use.
pub fn shrink_slab<T>(slab: &mut Slab<T>, most: usize) {
    if let Some(target) = target(slab.capacity(), most, FEW) {
        slab.shrink_to_fit();
        slab.reserve_exact(target.saturating_sub(slab.len()));
    }
}

/// Shrinks a queue.
pub fn shrink_queue<T>(queue: &mut VecDeque<T>, most: usize) {
    if let Some(target) = target(queue.capacity(), most, FEW) {
        queue.shrink_to(target);
    }
}

/// Shrinks a list.
pub fn shrink_list<T>(list: &mut Vec<T>, most: usize) {
    if let Some(target) = target(list.capacity(), most, FEW) {
        list.shrink_to(target);
    }
}

/// Shrinks a buffer of bytes, and keeps its content.
pub fn shrink_bytes(bytes: &mut BytesMut, most: usize) {
    if let Some(target) = target(bytes.capacity(), most, FEW_BYTES) {
        let mut smaller = BytesMut::with_capacity(target.max(bytes.len()));
        smaller.extend_from_slice(bytes);
        *bytes = smaller;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_of_which_less_than_a_quarter_was_in_use_are_shrunk() {
        assert_eq!(target(FEW, 0, FEW), None);
        assert_eq!(target(40_000, 10_000, FEW), None);
        assert_eq!(target(40_000, 9_999, FEW), Some(19_998));
        assert_eq!(target(40_000, 1, FEW), Some(FEW));
    }

    #[test]
    fn bytes_that_wait_to_be_written_are_kept() {
        let mut bytes = BytesMut::with_capacity(4 * FEW_BYTES);
        bytes.extend_from_slice(b"PING");
        shrink_bytes(&mut bytes, 4);
        assert_eq!((&bytes[..], bytes.capacity()), (&b"PING"[..], FEW_BYTES));
    }

    #[test]
    fn slab_grows_by_little_and_shrinks_to_its_last_entry() {
        let mut slab = Slab::new();
        for entry in 0..100_000_usize {
            assert_eq!(insert(&mut slab, entry), entry);
        }
        assert!(slab.capacity() <= 100_000 + 100_000 / 32, "{}", slab.capacity());
        for entry in (0..100_000).filter(|&entry| entry != 50_000) {
            slab.remove(entry);
        }
        shrink_slab(&mut slab, 1);
        assert_eq!((slab.capacity(), slab[50_000]), (50_001, 50_000));
        slab.remove(50_000);
        shrink_slab(&mut slab, 1);
        assert_eq!(slab.capacity(), FEW);
    }

    #[test]
    fn queues_and_lists_shrink_and_keep_what_is_in_them() {
        let mut queue: VecDeque<usize> = (0..100_000).collect();
        let mut list: Vec<usize> = (0..100_000).collect();
        queue.truncate(3);
        list.truncate(3);
        shrink_queue(&mut queue, 3);
        shrink_list(&mut list, 3);
        assert!(queue.capacity() <= 2 * FEW && list.capacity() <= 2 * FEW);
        assert_eq!((queue.len(), list.as_slice()), (3, &[0, 1, 2][..]));
    }

    #[test]
    fn slab_grows_only_when_it_is_full_and_doubles_up_to_a_size() {
        let mut slab = Slab::new();
        let mut grown = vec![slab.capacity()];
        for entry in 0..=DOUBLES_UP_TO {
            insert(&mut slab, entry);
            if grown.last() != Some(&slab.capacity()) {
                grown.push(slab.capacity());
            }
        }
        let most = DOUBLES_UP_TO;
        assert_eq!(
            grown,
            [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, most, most / 32 * 33]
        );
        let mut roomy = Slab::with_capacity(3);
        insert(&mut roomy, 0);
        assert!(roomy.capacity() < 6, "it was not full");
    }
}
