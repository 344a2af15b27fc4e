//! The kernel's ring: the call that submits and waits, and the end of its operations.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue};
use rustix::io::Errno;

use super::memory::ForkMark;

/// How often a ring that ends waits for its operations, and how long each time. They end at once:
/// a longer wait means that the kernel has lost one.
const LAST_WAITS: usize = 10;
const LAST_WAIT: Duration = Duration::from_millis(10);

/// A longer wait is cut short, which is harmless: the kernel refuses a time that is too long.
const LONGEST: Duration = Duration::from_secs(3600);

/// The kernel's ring.
pub struct Kernel {
    pub ring: IoUring,
    /// The thread that made the ring.
    thread: u64,
    mark: ForkMark,
}

impl Kernel {
    pub fn new(ring: IoUring) -> io::Result<Kernel> {
        Ok(Kernel { ring, thread: here(), mark: ForkMark::new()? })
    }

    /// Whether this is the thread that made the ring: no other may call the kernel.
    pub fn is_here(&self) -> bool {
        self.thread == here()
    }

    /// Whether this is the copy in a forked process: the memory is a copy that no kernel writes to,
    /// and the ring with its queues is the parent's.
    pub fn is_a_copy(&self) -> bool {
        self.mark.is_a_copy()
    }

    /// Submits the first `submit` entries of the queue, lets operations complete, and waits for
    /// `want` completions, at most for `timeout`. That a wait ends without them is no error.
    pub fn enter(&self, submit: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let time = timeout.map(|timeout| Timespec::from(timeout.min(LONGEST)));
        let mut args = SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        // SAFETY: with EXT_ARG the kernel reads the `SubmitArgs`, and the time that it points to.
        // Both live until the call returns. What the entries point to is up to their `push`.
        let entered =
            unsafe { self.ring.submitter().enter(submit, want, flags.bits(), Some(&args)) };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // The time is over; a signal; completions have to be taken first.
                Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Cancels every operation and waits for the end of each; returns whether all of them ended.
    /// What is queued and was never submitted stays so.
    pub fn end_all(&mut self, mut in_flight: u64) -> bool {
        for _ in 0..LAST_WAITS {
            let ended = self.ring.completion().filter(is_last).count() as u64;
            in_flight = in_flight.saturating_sub(ended);
            if in_flight == 0 {
                return true;
            }
            // Returns an error if nothing is left to cancel.
            let time = Some(Timespec::from(LAST_WAIT));
            let _ = self.ring.submitter().register_sync_cancel(time, CancelBuilder::any());
            if self.enter(0, 1, Some(LAST_WAIT)).is_err() {
                return false;
            }
        }
        false
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// Whether an operation has ended with this completion.
pub fn is_last(done: &cqueue::Entry) -> bool {
    !cqueue::more(done.flags())
}

/// A number of this thread that no other thread of the process ever has.
fn here() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::super::memory::GIVEN_UP;
    use crate::Ring;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// Receives are in flight, or queued, or both. Their thread waits for their end.
    #[test]
    fn a_ring_that_ends_on_its_own_thread_frees_its_memory() {
        for submitted in 0..3 {
            let Ok(mut ring) = Ring::new(2, 8, 4096) else { return };
            let streams = [0, 1].map(|_| UnixStream::pair().expect("the system has sockets"));
            for (place, (ours, _)) in streams.iter().enumerate() {
                ring.attach(place, ours.as_fd()).expect("the ring has room");
                if place < submitted {
                    ring.submit().expect("the ring works");
                }
            }
            drop(ring);
            assert_eq!(GIVEN_UP.get(), 0, "{submitted} of 2 were submitted");
        }
    }

    #[test]
    fn a_ring_that_ends_on_another_thread_gives_its_memory_up() {
        let Ok(mut ring) = Ring::new(1, 8, 4096) else { return };
        let (ours, _theirs) = UnixStream::pair().expect("the system has sockets");
        ring.attach(0, ours.as_fd()).expect("the ring has room");
        ring.submit().expect("the ring works");
        let thread = std::thread::spawn(move || {
            drop(ring);
            GIVEN_UP.get()
        });
        assert_eq!(thread.join().expect("the thread is content"), 1);
    }
}
