//! The memory of a ring: its receive buffers, the list in which they are provided to the kernel, and
//! the mark that a fork wipes out.
//!
//! The hazard is a write by the kernel after the memory is freed: see [`Memory::give_up`].

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// A page, on every supported machine: the list has to begin at one.
const ALIGNMENT: usize = 64 * 1024;

#[cfg(test)]
thread_local! {
    /// How often this thread gave memory up.
    pub static GIVEN_UP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The list of provided buffers, and the buffers after it, in one mapping.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    length: usize,
    /// A power of two.
    count: u16,
    size: usize,
    /// How many buffers were provided so far, as the list counts them.
    tail: u16,
    /// The kernel may still write here: the addresses stay reserved.
    given_up: bool,
}

// SAFETY: the mapping belongs to this value alone, and no method depends on the thread.
unsafe impl Send for Memory {}
// SAFETY: a shared reference allows only reads of buffers that the kernel does not have.
unsafe impl Sync for Memory {}

impl Memory {
    /// `count` buffers (a power of two) of `size` bytes, all of them provided.
    pub fn new(count: u16, size: usize) -> io::Result<Memory> {
        assert!(count.is_power_of_two() && count <= 1 << 14, "{count} buffers");
        assert!(size > 0 && size <= 1 << 20, "buffers of {size} bytes");
        let length = ALIGNMENT + usize::from(count) * size;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut memory = Memory { base, length, count, size, tail: 0, given_up: false };
        (0..count).for_each(|buffer| memory.provide(buffer));
        Ok(memory)
    }

    /// The address of the list, for the kernel.
    pub fn list(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The number of buffers.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Provides a buffer that the kernel does not have.
    pub fn provide(&mut self, buffer: u16) {
        assert!(buffer < self.count, "buffer {buffer} of {}", self.count);
        let place = usize::from(self.tail & (self.count - 1));
        let entries = self.base.cast::<BufRingEntry>();
        let address = self.address_of(buffer) as u64;
        // SAFETY: `place` is below `count`, and `count` entries of 16 bytes fit before the buffers
        // (`ALIGNMENT`). The mapping is zeroed, which is a valid entry, and aligned to a page. The
        // kernel reads this entry only after the tail is stored below.
        let entry = unsafe { entries.add(place).as_mut() };
        entry.set_addr(address);
        entry.set_len(self.size as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the address is that of the first entry, as `tail` requires. The field is aligned
        // to two bytes, lives as long as the mapping, and is only ever accessed atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The first `length` bytes of a buffer that the kernel has filled and given back.
    pub fn filled(&self, buffer: u16, length: usize) -> &[u8] {
        assert!(buffer < self.count && length <= self.size, "{length} bytes in buffer {buffer}");
        // SAFETY: the range lies inside the mapping, whose bytes are always initialized. The
        // kernel has given the buffer back, and `provide` needs `&mut self`, so nothing writes to
        // it while this reference lives.
        unsafe { slice::from_raw_parts(self.address_of(buffer), length) }
    }

    /// Operations may be in flight, and nothing can wait for their end. The memory goes back to the
    /// system, but its addresses stay reserved for ever: a late write of the kernel fails.
    pub fn give_up(&mut self) {
        self.given_up = true;
        #[cfg(test)]
        GIVEN_UP.set(GIVEN_UP.get() + 1);
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is this mapping, and nothing refers to it: `&mut self`.
        unsafe {
            let _ = rustix::mm::madvise(base, self.length, Advice::LinuxDontNeed);
            let _ = rustix::mm::mprotect(base, self.length, MprotectFlags::empty());
        }
    }

    fn address_of(&self, buffer: u16) -> *const u8 {
        let offset = ALIGNMENT + usize::from(buffer) * self.size;
        // SAFETY: callers have checked `buffer`, so the offset lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.given_up {
            // SAFETY: the range is this mapping, nothing refers to it, and no operation of the
            // kernel does: otherwise the ring has called `give_up`.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
        }
    }
}

/// A byte that a fork sets to zero in the child: to look for a fork without a system call.
#[derive(Debug)]
pub struct ForkMark(NonNull<AtomicU8>);

// SAFETY: the mapping belongs to this value alone, and its byte is only accessed atomically.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    pub fn new() -> io::Result<ForkMark> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let page = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), 1, protection, MapFlags::PRIVATE)?
        };
        let mark = ForkMark(NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        // SAFETY: the page is this mapping. The advice changes only the copy in a child.
        unsafe { rustix::mm::madvise(page, 1, Advice::LinuxWipeOnFork)? };
        mark.byte().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Whether this is the copy in a forked process.
    pub fn is_a_copy(&self) -> bool {
        self.byte().load(Ordering::Relaxed) == 0
    }

    fn byte(&self) -> &AtomicU8 {
        // SAFETY: the byte lives as long as this value, and any value of it is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the page is this mapping, and nothing refers to it: `&mut self`.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_provided_once_and_has_its_own_bytes() {
        let memory = Memory::new(4, 100).expect("the system has memory");
        assert_eq!((memory.tail, memory.count()), (4, 4));
        let entries = memory.base.cast::<BufRingEntry>();
        for buffer in 0..4 {
            // SAFETY: no kernel has this list.
            let entry = unsafe { entries.add(usize::from(buffer)).as_ref() };
            assert_eq!((entry.bid(), entry.len()), (buffer, 100));
            assert_eq!(entry.addr(), memory.filled(buffer, 100).as_ptr() as u64);
        }
    }

    #[test]
    fn the_list_goes_round() {
        let mut memory = Memory::new(2, 8).expect("the system has memory");
        for buffer in [1, 0, 1] {
            memory.provide(buffer);
        }
        let entries = memory.base.cast::<BufRingEntry>();
        // SAFETY: no kernel has this list.
        let entry = |place: usize| unsafe { entries.add(place).as_ref() };
        assert_eq!((entry(0).bid(), entry(1).bid(), memory.tail), (1, 0, 5));
    }

    #[test]
    #[should_panic(expected = "9 bytes in buffer 0")]
    fn no_more_than_a_buffer_is_read() {
        Memory::new(2, 8).expect("the system has memory").filled(0, 9);
    }

    #[test]
    #[should_panic(expected = "buffer 2 of 2")]
    fn no_buffer_beyond_the_last_is_provided() {
        Memory::new(2, 8).expect("the system has memory").provide(2);
    }

    #[test]
    fn memory_that_is_given_up_stays_reserved() {
        let mut memory = Memory::new(2, 8).expect("the system has memory");
        let (base, length) = (memory.list(), memory.length);
        memory.give_up();
        drop(memory);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
        let reserved = maps.lines().any(|line| {
            let mut words = line.split(['-', ' ']);
            let mut address = || u64::from_str_radix(words.next().unwrap_or(""), 16).unwrap_or(0);
            let (start, end) = (address(), address());
            start <= base && base + length as u64 <= end && line.contains("---p")
        });
        assert!(reserved, "{base:x}: {maps}");
    }
}
