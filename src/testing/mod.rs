//! Masters that live in this process, and time that a test decides about: for your own tests, for
//! the demo and for the simulation.
//!
//! [`master`] is a Redis master as a plain value: bytes and a time in, bytes out. [`tcp`] serves
//! some of them on ports of this machine. None of this is a Redis for data: it knows the commands
//! that a lock needs, and no other. [`clock`] lets time pass for clients and masters together.
//! [`net`] has no sockets and no system clock: clients' cores, masters and the bytes between them.

pub mod clock;
pub mod master;
pub mod net;
pub mod tcp;

/// Parts of the core that only its own tests and fuzz targets name. They change without notice.
#[doc(hidden)]
pub mod inside {
    pub use crate::proto::error::NodeReply;
    pub use crate::proto::ids::{RecordId, TaskId};
    pub use crate::proto::key::KeyHash;
    pub use crate::proto::locks::copies::Planned;
    pub use crate::proto::wire::answers::{NodeAnswer, TaskAnswer};
    pub use crate::proto::wire::ask::{Ask, Encoding, Kind, LockAsk, Names, NodeAsk, TaskAsk};
    pub use crate::proto::wire::command::Form;
    pub use crate::proto::wire::connection::{Connection, Fault, Incoming};
    pub use crate::proto::wire::handshake::Step;
    pub use crate::proto::wire::known_scripts::ScriptName;
    pub use crate::proto::wire::line::{HAND_OVER, JOIN, SCORE_OF_A_PLACE};
}
