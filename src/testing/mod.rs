//! Masters that live in this process: for your own tests, for the demo and for the simulation.
//!
//! [`master`] is a Redis master as a plain value: bytes and a time in, bytes out. [`tcp`] puts some
//! of them on ports of this machine. No part of it is a Redis you could keep data in: it knows the
//! commands a lock needs, and no other.

pub mod master;
pub mod tcp;
