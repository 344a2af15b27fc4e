//! The requests of an engine that take a lock away from its holder. They are for operators.

use super::Engine;
use crate::net::clock;
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;

impl Engine {
    /// Deletes `key` on every node, whichever client holds it. This breaks what a lock promises:
    /// the holder believes in its lock until it notices, and meanwhile another client can take it.
    /// For an operator who knows that the holder is gone.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn dangerously_force_release(
        &mut self,
        key: impl AsRef<[u8]>,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.force_release(key.as_ref(), data, clock::now())
    }

    /// Deletes `key` on each node that still holds what the inspection `seen` of this key found
    /// there, whichever client holds it: what changed since then stays. Like
    /// [`dangerously_force_release`](Engine::dangerously_force_release), this breaks what a lock
    /// promises. The request ends as [`Outcome::ForceReleased`](crate::Outcome::ForceReleased),
    /// with what each node said, when all nodes have answered, or at the node timeout.
    ///
    /// A value that is longer than what an inspection keeps of it is compared as far as it was
    /// kept.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn dangerously_force_release_seen(
        &mut self,
        key: impl AsRef<[u8]>,
        seen: &Inspection,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.force_release_seen(key.as_ref(), seen, data, clock::now())
    }
}
