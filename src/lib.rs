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
//! # Which door costs what
//!
//! One acquire and its release of a free key on five masters, side by side, by
//! `cargo bench --all-features --bench doors -- --rounds 9 --seconds-per-round 0.15`. In brackets:
//! the median of the ratios to the engine within a round. Each figure is the median of three runs.
//!
//! All of it, the masters too, shared two processors with others that kept them busy (a load of 15
//! to 19), so look at the ratios, and at CPU first, the time that the process had on a processor:
//! with one in flight its ratios came out within a quarter of each other, where those of p50 went
//! from 0.8 to 1.4 and those of p99 from 0.1 to 2. The microseconds are that machine's on that day.
//!
//! | one in flight | acquire p50 | acquire p99 | CPU a pair |
//! |:--|--:|--:|--:|
//! | [`Engine`] on `mio::Poll` | 190 us | 643 us | 185 us |
//! | [`Client`] | 187 us (1.01) | 467 us (1.04) | 188 us (0.99) |
//! | `Embedded` under poll(2) | 237 us (1.29) | 518 us (0.79) | 279 us (1.54) |
//! | [`SharedClient`], its thread | 201 us (1.13) | 515 us (1.11) | 280 us (1.39) |
//! | [`SharedClient`], tokio on one thread | 198 us (1.08) | 416 us (0.97) | 206 us (1.09) |
//! | [`SharedClient`], tokio on several | 214 us (1.08) | 520 us (0.87) | 218 us (1.13) |
//!
//! | 64 in flight | acquire p50 | CPU a pair | pairs a second |
//! |:--|--:|--:|--:|
//! | [`Engine`] on `mio::Poll` | 871 us | 7.4 us | 18,500 |
//! | `Embedded` under poll(2) | 893 us (1.14) | 10.3 us (1.37) | 16,100 (1.04) |
//! | [`SharedClient`], 64 threads | 2,151 us (2.55) | 57.0 us (6.33) | 9,100 (0.37) |
//! | [`SharedClient`], tokio on one thread | 1,046 us (1.23) | 10.9 us (1.53) | 16,000 (1.03) |
//! | [`SharedClient`], tokio on several | 1,010 us (1.08) | 11.9 us (1.83) | 13,100 (0.98) |
//!
//! With 64 in flight CPU is the steadiest, too, but for the threads' (4.5 to 8.8). What those cost
//! is their own: what they ask for is written together, but each of them is put to sleep and woken
//! twice a pair. Tasks are not.
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
#[doc(inline)]
pub use net::address::Lookup;
#[cfg(all(feature = "net", any(target_os = "linux", target_os = "android")))]
#[doc(inline)]
pub use net::embed::{Asking, Embedded};
#[cfg(feature = "tls")]
#[doc(inline)]
pub use net::tls::Tls;
#[cfg(feature = "net")]
#[doc(inline)]
pub use net::{clock, engine::Engine};
#[doc(inline)]
pub use proto::coordinator::Event;
#[doc(inline)]
pub use proto::error::{Busy, Cause, Closed, ConfigError, Error, Loss, NodeReport, Report, Said};
#[doc(inline)]
pub use proto::inspection::{Finding, Inspection, NodeSight, Sight, Value};
#[doc(inline)]
pub use proto::keeper::Keep;
#[doc(inline)]
pub use proto::lock::{Lock, Token};
#[doc(inline)]
pub use proto::node::{NodeId, NodeSet};
#[doc(inline)]
pub use proto::ops::{Completion, Op, Outcome};
#[doc(inline)]
pub use proto::round::Released;
#[doc(inline)]
pub use proto::settings::{Credentials, RestartGuard};
#[doc(inline)]
pub use proto::standing::Standing;
#[doc(inline)]
pub use proto::stats::{NodeStats, RoundTrips, Stats};
#[doc(inline)]
pub use proto::time::{BadTtl, Instant, Ttl};
#[cfg(feature = "net")]
#[doc(inline)]
pub use shared::{Lease, SharedClient, SharedGuard};

/// The examples of README, compiled.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../README.md")]
struct Readme;
