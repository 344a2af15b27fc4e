//! What should happen, without a socket, a clock or a thread.

pub mod command;
pub mod resp;
