//! What goes over one connection: the commands and the replies, the handshake, and which reply
//! answers which question.

pub mod command;
pub mod connection;
pub mod handshake;
pub mod marker;
pub mod resp;
