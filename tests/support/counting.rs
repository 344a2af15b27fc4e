//! An allocator that counts, for the binaries of tests that look at what the library allocates.
//!
//! The counts are per thread, so that those of other threads do not matter. The hazard is an
//! allocation of the test itself, which is counted, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations on all threads.
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // The cells are const and have no destructor, so that reading them allocates nothing.
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// How often this thread has allocated, or has made an allocation larger.
pub fn allocated() -> u64 {
    ALLOCATED.get()
}

/// As [`allocated`], on all threads together, so also on the driver thread of a shared client.
pub fn allocated_everywhere() -> u64 {
    EVERYWHERE.load(Ordering::Relaxed)
}

/// How many bytes are in use that this thread allocated.
pub fn live() -> i64 {
    LIVE.get()
}

/// The most bytes in use at a time while this runs, beyond those that were in use before.
pub fn peak_of(act: impl FnOnce()) -> i64 {
    let before = live();
    PEAK.set(before);
    act();
    PEAK.get() - before
}

fn count(allocations: u64, bytes: i64) {
    ALLOCATED.set(ALLOCATED.get() + allocations);
    EVERYWHERE.fetch_add(allocations, Ordering::Relaxed);
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: every call goes to the system's allocator; counting touches only an atomic number and
// cells of the thread's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the promises of `GlobalAlloc`, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(place, layout) }
    }
}
