//! A lock that is held: how it is extended and healed, what proves its keys on the nodes, and which
//! updates of it are reported.

pub(super) mod heal;
pub(super) mod hold;
pub(super) mod proof;
pub mod updates;
