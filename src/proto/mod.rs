//! The protocol, without a socket, a clock or a thread: time and randomness are arguments.
//!
//! [`Coordinator`](coordinator::Coordinator) owns all other parts. Bytes and moments go in by its
//! `handle_*` methods; bytes, moments and completions come out by its `poll_*` methods. [`turn`] is
//! the order in which a loop calls them.

pub mod cluster;
pub mod coordinator;
pub mod error;
pub mod ids;
pub mod inspection;
pub mod key;
pub mod lock;
pub mod locks;
pub mod node_set;
pub mod prometheus;
pub mod settings;
pub mod stats;
pub mod time;
pub mod timers;
pub mod turn;
pub mod waiting;
pub mod waits;
pub mod wire;
