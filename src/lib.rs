//! Distributed locks over N independent Redis masters: the Redlock algorithm.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::iter_over_hash_type)]

#[cfg(feature = "net")]
mod client;
#[cfg(feature = "net")]
mod config;
#[cfg(feature = "net")]
pub mod net;
pub mod proto;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "net")]
pub use client::{Client, DEFAULT_WAIT, Guard};
#[cfg(feature = "net")]
pub use config::{Config, LockOptions};
#[cfg(feature = "net")]
pub use net::{clock, engine::Engine};
pub use proto::error::{Busy, Cause, ConfigError, Error, NodeReport, Report, Said};
pub use proto::lock::{Lock, Token};
pub use proto::node::{NodeId, NodeSet};
pub use proto::ops::{Completion, Op, Outcome};
pub use proto::round::Released;
pub use proto::standing::Standing;
pub use proto::time::{BadTtl, Instant, Ttl};
