//! A lock that is held: extends, heals, what proves its keys, and what is reported of it.

pub(super) mod heal;
pub(super) mod hold;
pub(super) mod proof;
pub mod updates;
