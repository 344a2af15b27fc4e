//! Distributed locks over N independent Redis masters: the Redlock algorithm, for programs with a
//! latency budget.
//!
//! The client writes a request to all N masters before it waits for an answer, and returns when a
//! majority has decided. The deadline of a lock counts from before the first byte was sent, less
//! the drift, on a clock that also runs while the machine is suspended. A frozen, dead or slow
//! minority does not delay a majority decision. The client releases what an attempt may have left
//! on a node. It can renew a lock. If a lock is renewed, or its `lost()` is awaited, the client
//! reports its loss before the deadline; otherwise at the deadline. Waiters stand in line on the
//! nodes: a release hands the key to the next one.
//!
#![cfg_attr(
    feature = "net",
    doc = "
# Interfaces

* [`Client`] blocks the calling thread. It has no thread of its own, and can hold several guards.
* [`SharedClient`] is for many threads and any async runtime. Its calls are futures, and a
  thread can wait for them. A thread drives it, or, with the feature `tokio`, a task on your
  runtime.
* [`Engine`] lives in your loop, with its sockets on your `mio::Poll`.
* [`FdEngine`] is the engine with one file descriptor to poll, for any other loop (Linux).
* [`proto::Coordinator`] is the core, without a socket and without a clock.

The docs of each say what happens across threads, in a forked process, at a signal, and when
something is dropped. In the repository, `docs/guide.md` explains them step by step, `examples/` has
a file for each, and `docs/performance.md` says what they cost.
"
)]
//!
//! ```no_run
//! use std::time::Duration;
//! use redlatch::{Client, Config};
//!
//! let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//! let client = Client::connect(config)?;
//! let guard = client.lock("invoice:42", Duration::from_secs(30))?;
//! guard.check()?; // before each side effect
//! guard.release()?;
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # What Redlock does not promise
//!
//! A holder that is paused past its deadline can still act: call `Guard::check` before each side
//! effect, and use a fencing number if that is not enough. If a majority of the masters forget
//! their keys within one ttl, or their clocks jump, two clients can hold one lock. A virtual
//! machine that its hypervisor pauses sees no time pass, and a clone of one repeats its tokens.
//!
//! # Features
//!
//! * `net` (default): the event loop and the blocking client. Without it there is `proto` alone.
//! * `tls`: encrypted connections, `rediss://`, with rustls.
//! * `system-ca`: the CAs of the system for `rediss://` (`Tls::system`).
//! * `serde`: [`Config`] and [`ConfigFile`] can be deserialized, from a TOML file, say.
//! * `tokio`: `SharedClient::connect_tokio`.
//! * `tracing`: a span for each acquire, extend and release, and events of nodes and lost locks.
//! * `metrics`: `MetricsPublisher`, the counters over the facade of the crate `metrics`.
//! * `testing`: in-process masters, a clock to advance, and a network in simulated time, for your
//!   own tests.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::iter_over_hash_type, clippy::unwrap_used)]

#[cfg(feature = "net")]
mod client;
#[cfg(feature = "net")]
mod config;
#[cfg(feature = "net")]
mod net;
pub mod proto;
#[cfg(feature = "net")]
pub mod shared;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "net")]
#[doc(inline)]
pub use client::{Client, Guard};
#[cfg(feature = "net")]
#[doc(inline)]
pub use config::{Config, ConfigFile, TlsFiles};
#[cfg(feature = "net")]
#[doc(inline)]
pub use config::{InvalidDuration, parse_duration};
#[cfg(feature = "net")]
#[doc(inline)]
pub use net::address::{Address, Lookup};
#[cfg(all(feature = "net", any(target_os = "linux", target_os = "android")))]
#[doc(inline)]
pub use net::embed::{Batch, FdEngine};
#[cfg(feature = "metrics")]
#[doc(inline)]
pub use net::publisher::MetricsPublisher;
#[cfg(feature = "tls")]
#[doc(inline)]
pub use net::tls::Tls;
#[cfg(feature = "net")]
#[doc(inline)]
pub use net::{clock, engine::Engine};
#[doc(inline)]
pub use proto::prometheus;
#[doc(inline)]
pub use proto::{
    AutoExtend, Busy, CampaignId, Candidate, ClosedReason, Completion, ConfigError, Credentials,
    DEFAULT_MAX_HOLD, DEFAULT_WAIT, Durations, Error, HeldFor, Inspection, InvalidToken,
    InvalidTtl, KeySet, KeyState, KeySummary, Keys, LONGEST_OWNER, Leader, Leadership, Limits,
    Lock, LockOptions, LockToken, LockUpdate, LockUpdateKind, LostReason, NodeError, NodeEvent,
    NodeId, NodeKeyState, NodeReply, NodeReport, NodeSet, NodeState, NodeStats, Op, Outcome,
    Quarantine, QuarantineReason, ReleaseOutcome, Report, ReportedSet, RestartGuard, RoundTrips,
    Secret, Standing, StandingChange, Stats, Ttl, Value, majority,
};
#[cfg(feature = "net")]
#[doc(inline)]
pub use shared::{LockWatcher, SharedClient, SharedGuard};

/// The examples in README and docs/, compiled and run as doctests.
#[cfg(all(doctest, feature = "tokio", feature = "testing"))]
mod papers {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide.md")]
    struct Guide;
    #[doc = include_str!("../docs/cli.md")]
    struct CommandLine;
    #[doc = include_str!("../docs/operations.md")]
    struct Operations;
    #[doc = include_str!("../docs/performance.md")]
    struct Performance;
    #[doc = include_str!("../docs/rules.md")]
    struct Rules;
    #[doc = include_str!("../docs/safety.md")]
    struct Safety;
}
