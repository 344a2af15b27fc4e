//! Makes happen what proto decides: the clock, the addresses, the sockets, and the event loop.

pub mod address;
mod alarm;
pub mod clock;
mod connect;
pub mod engine;
pub(crate) mod hook;
pub(crate) mod names;
mod socket;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
