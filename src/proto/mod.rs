//! The protocol, without a socket, a clock or a thread: time and randomness are arguments.
//!
//! A program with sockets of its own (io_uring, wasm, a simulation) drives a [`Coordinator`].
//! Bytes and moments go in by its `handle_*` methods; bytes, moments and completions come out by
//! its `poll_*` methods. [`turn`] is the order in which a loop calls them.

pub mod change;
pub(crate) mod cluster;
pub(crate) mod coordinator;
pub(crate) mod durations;
pub(crate) mod election;
pub(crate) mod error;
pub(crate) mod fifo;
#[cfg(feature = "testing")]
pub mod fingerprint;
pub(crate) mod ids;
pub(crate) mod inspection;
pub(crate) mod key;
pub(crate) mod key_set;
pub(crate) mod keys;
pub(crate) mod lock;
pub(crate) mod lock_options;
pub(crate) mod locks;
pub(crate) mod node_set;
pub(crate) mod own_keys;
pub mod prometheus;
pub(crate) mod quorum;
pub(crate) mod settings;
pub(crate) mod stats;
pub(crate) mod surplus;
pub(crate) mod time;
pub(crate) mod timers;
pub mod turn;
pub(crate) mod waiting;
pub(crate) mod waits;
pub(crate) mod wire;

pub use cluster::restart_guard::QuarantineReason;
pub use cluster::state::NodeState;
pub use cluster::{Action, NodeEvent};
pub use coordinator::Coordinator;
pub use durations::Durations;
pub use election::{Candidate, Leader, Leadership, Standing, StandingChange};
pub use error::{
    Busy, ClosedReason, ConfigError, Error, HeldFor, LostReason, NodeError, NodeReply, NodeReport,
    Quarantine, Report, ReportedSet,
};
pub use ids::{CampaignId, Op};
pub use inspection::{Inspection, KeyState, KeySummary, NodeKeyState, Value};
pub use key_set::{KeySet, MOST_KEYS};
pub use keys::Keys;
pub use lock::{InvalidToken, LONGEST_OWNER, Lock, LockToken, check_owner};
pub use lock_options::{DEFAULT_MAX_HOLD, DEFAULT_WAIT, LockOptions};
pub use locks::completions::{Completion, Outcome};
pub use locks::held::updates::{LockUpdate, LockUpdateKind};
pub use locks::renew::schedule::AutoExtend;
pub use locks::round::state::ReleaseOutcome;
pub use node_set::{MAX_NODES, NodeId, NodeSet};
/// The names of the library's own keys, for the tests and the tool, which send commands of their
/// own to nodes. They are not part of the public interface, nor is the wire format.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use own_keys::{Note, counter_key, line_key};
pub use quorum::majority;
pub use settings::{
    Credentials, LONGEST_KEY, LONGEST_MAX_TTL, Limits, NODE_MARKER, NodeSettings, RestartGuard,
    Secret, Settings,
};
pub use stats::{NodeStats, RoundTrips, Stats};
pub use time::{Instant, InvalidTtl, Ttl};
pub use wire::marker::{ID_DIGITS, Identity, Marker};
pub use wire::members::{
    BallotNumber, LEASE, MEMBERS, Member, MemberId, MemberList, MembersState, Membership, Stage,
};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use wire::{command, resp, sets};
