//! The protocol, without a socket, a clock or a thread: time and randomness are arguments.
//!
//! [`Coordinator`](coordinator::Coordinator) owns all other parts. Bytes and moments go in by its
//! `handle_*` methods; bytes, moments and completions come out by its `poll_*` methods. [`turn`] is
//! the order in which a loop calls them.

pub mod ballot;
mod cluster;
pub mod command;
pub mod coordinator;
pub mod error;
pub mod handshake;
pub mod inspection;
pub mod keeper;
pub mod key;
pub mod link;
pub mod lock;
mod locks;
pub mod marker;
pub mod node;
pub mod ops;
pub mod pending_releases;
pub mod quarantine;
pub mod records;
pub mod resp;
pub mod round;
pub mod settings;
pub mod standing;
pub mod stats;
pub mod time;
pub mod timers;
pub mod turn;
pub mod waiters;
mod waits;
