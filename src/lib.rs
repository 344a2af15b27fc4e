//! Distributed locks over N independent Redis masters: the Redlock algorithm.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::iter_over_hash_type)]

pub mod proto;
#[cfg(feature = "testing")]
pub mod testing;
