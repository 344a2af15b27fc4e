//! Distributed locks over N independent Redis masters: the Redlock algorithm, for programs with a
//! latency budget.
//!
//! A lock request is written to all N masters at once, and the answer is given the moment a
//! majority has decided it. A lock you are told you hold is one you hold: its deadline is counted
//! from before the first byte was sent, on a clock that counts suspended time, with drift taken
//! off. A frozen, dead or slow minority costs nothing, and what an attempt may have left on a node
//! is released. A lock can be kept: it is renewed, and its loss is told in time. Who waits for a
//! lock is told of its release, and does not poll.
//!
//! # Doors
//!
//! * [`Client`] blocks: no thread of its own, several guards at once.
//! * [`Engine`] lives in your loop, with its sockets on your `mio::Poll`.
//! * [`Embedded`] is the engine behind one file descriptor, for any other loop (Linux).
//! * [`SharedClient`] is for many threads and any async runtime: its calls are futures that can be
//!   waited for, too. A thread drives it, or with the feature `tokio` a task on your runtime.
//! * [`proto::coordinator::Coordinator`] is the core, without a socket and without a clock.
//!
//! What happens across threads, in a forked process, at a signal, and when something is dropped is
//! said at each of them. `examples/` has a file for each, to paste from.
//!
//! ```no_run
//! use std::time::Duration;
//! use redlatch::{Client, Config};
//!
//! let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//! let client = Client::connect(config)?;
//! let guard = client.lock("invoice:42", Duration::from_secs(10))?;
//! guard.check()?; // before each side effect
//! guard.release()?;
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # What Redlock does not promise
//!
//! A holder that is paused past its deadline can still act: look at [`Guard::check`] before each
//! side effect, and use a fencing number where that is not enough. A majority of masters that
//! forget their keys, or whose clocks jump, inside one ttl breaks exclusion. A virtual machine that
//! its hypervisor pauses sees no time pass, and a clone of one repeats its tokens.
//!
//! # Features
//!
//! * `net` (default): the event loop and the blocking client. Without it there is `proto` alone.
//! * `tls`: encrypted connections, `rediss://`, with rustls.
//! * `tokio`: `SharedClient::connect_tokio`.
//! * `testing`: in-process masters, for your own tests.
//! * `cli`: the tool `redlatch`.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::iter_over_hash_type)]

#[cfg(feature = "net")]
mod client;
#[cfg(feature = "net")]
mod config;
#[cfg(feature = "net")]
pub mod net;
pub mod proto;
#[cfg(feature = "net")]
pub mod shared;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "net")]
pub use client::{Client, Guard, Happened, Notice};
#[cfg(feature = "net")]
pub use config::{Config, DEFAULT_WAIT, LockOptions};
#[cfg(feature = "net")]
pub use net::address::Lookup;
#[cfg(all(feature = "net", any(target_os = "linux", target_os = "android")))]
pub use net::embed::{Asking, Embedded};
#[cfg(feature = "tls")]
pub use net::tls::Tls;
#[cfg(feature = "net")]
pub use net::{clock, engine::Engine};
pub use proto::coordinator::Event;
pub use proto::error::{Busy, Cause, Closed, ConfigError, Error, Loss, NodeReport, Report, Said};
pub use proto::inspection::{Finding, Inspection, NodeSight, Sight, Value};
pub use proto::keeper::Keep;
pub use proto::lock::{Lock, Token};
pub use proto::node::{NodeId, NodeSet};
pub use proto::ops::{Completion, Op, Outcome};
pub use proto::round::Released;
pub use proto::settings::{Credentials, RestartGuard};
pub use proto::standing::Standing;
pub use proto::stats::{NodeStats, RoundTrips, Stats};
pub use proto::time::{BadTtl, Instant, Ttl};
#[cfg(feature = "net")]
pub use shared::{Lease, SharedClient, SharedGuard};

/// The examples of README, compiled.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../README.md")]
struct Readme;
