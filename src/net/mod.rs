//! Carries out what proto decides: the clock, the addresses, the sockets, and the event loop.

pub(crate) mod address;
mod alarm;
pub(crate) mod callback;
pub mod clock;
mod connect;
pub(crate) mod connecting;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) mod embed;
pub(crate) mod engine;
pub(crate) mod names;
pub(crate) mod observe;
#[cfg(feature = "metrics")]
pub(crate) mod publisher;
pub(crate) mod reactor;
pub(crate) mod sentinels;
mod socket;
mod stream;
pub(crate) mod sync;
#[cfg(feature = "tls")]
pub(crate) mod tls;
