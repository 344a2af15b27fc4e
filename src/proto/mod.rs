//! What should happen, without a socket, a clock or a thread: time and randomness are arguments.
//!
//! Bytes and moments go in, bytes and moments come out.

pub mod ballot;
pub mod command;
pub mod error;
pub mod lock;
pub mod node;
pub mod resp;
pub mod settings;
pub mod time;
