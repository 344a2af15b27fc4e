//! Masters that live in this process: for your own tests, for the demo and for the simulation.
//!
//! [`master`] is a Redis master as a plain value: bytes and a time in, bytes out. [`tcp`] serves
//! some of them on ports of this machine. None of this is a Redis for data: it knows the commands
//! that a lock needs, and no other.

pub mod master;
pub mod tcp;
