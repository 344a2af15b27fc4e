//! What goes over one connection: the commands and the replies, the handshake, and which reply
//! answers which question.

pub mod answers;
pub mod ask;
pub mod command;
pub mod connection;
pub mod counters;
pub mod effect;
mod error_line;
pub mod handshake;
pub mod known_scripts;
pub mod line;
pub mod marker;
pub mod members;
pub mod resp;
pub mod sets;
pub mod transaction;
