//! An io_uring ring that receives from connections and sends to them: the part of `redlatch` that
//! needs unsafe code. It knows neither Redis nor locks.
//!
//! The hazard is memory that the kernel writes to after the program has freed it. So every buffer
//! belongs to the ring. The ring frees its memory only after the kernel has reported the end of
//! each operation. If it cannot wait for that, it gives the memory back but keeps the addresses
//! reserved, so that a late write fails in the kernel.
//!
//! A ring belongs to the thread that made it: the kernel completes operations only in calls of that
//! thread. On another thread the calls that submit return an error.

#![warn(missing_docs, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]
// The kernel's interface is raw pointers. Each unsafe block says why it is sound.
#![allow(unsafe_code)]

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod ring;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
#[path = "nothing.rs"]
mod ring;

pub use ring::Ring;

/// What a ring reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes arrived on the connection at this place.
    Received {
        /// The place of the connection.
        place: usize,
        /// The bytes. Their buffer goes back to the kernel with the next call of the ring.
        bytes: &'a [u8],
    },
    /// The connection at this place has ended: the other side closed it (`UnexpectedEof`), or it
    /// failed.
    Ended {
        /// The place of the connection.
        place: usize,
        /// Why it ended.
        error: std::io::Error,
    },
    /// The watched descriptor became readable.
    Watched,
}
