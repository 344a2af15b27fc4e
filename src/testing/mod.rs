//! Masters inside this process, and a clock that a test moves: for your own tests, for the demo and
//! for the simulation.
//!
//! [`master`] is a Redis master as a plain value: bytes and a time go in, bytes come out. [`tcp`]
//! serves such masters on ports of this machine. They cannot replace a Redis, because they know
//! only the commands that a lock needs. [`clock`] advances the clock for clients and masters
//! together. [`net`] connects the cores of clients with masters, without sockets and without the
//! system clock.

pub mod clock;
pub mod master;
pub mod net;
pub mod tcp;

/// Parts of the core, only for its own tests and fuzz targets. They change without notice.
#[doc(hidden)]
pub mod inside {
    pub use crate::proto::error::NodeReply;
    pub use crate::proto::ids::{RecordId, TaskId};
    pub use crate::proto::key::KeyHash;
    pub use crate::proto::locks::copies::Planned;
    pub use crate::proto::wire::answers::{NodeAnswer, TaskAnswer};
    pub use crate::proto::wire::ask::{Ask, Encoding, Kind, LockAsk, Names, NodeAsk, TaskAsk};
    pub use crate::proto::wire::command::{Form, Native};
    pub use crate::proto::wire::connection::{Connection, Fault, Incoming};
    pub use crate::proto::wire::handshake::Step;
    pub use crate::proto::wire::known_scripts::ScriptName;
    pub use crate::proto::wire::line::{HAND_OVER, JOIN, SCORE_OF_A_PLACE};
}
