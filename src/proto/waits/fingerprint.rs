//! The parts of the waits on which their next steps can depend: see [`crate::proto::fingerprint`].

use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::waits::Waits;
use crate::proto::waits::busy_lines::FORGOTTEN;

impl Waits {
    /// Adds the waits to a fingerprint.
    ///
    /// # Panics
    /// If a request waits for another one of this client.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        let Waits { queues, busy_lines } = self;
        assert!(queues.is_empty(), "a fingerprint does not cover queues");
        for (key, at) in busy_lines.all() {
            let ago = fingerprint.ago(at, FORGOTTEN);
            if ago < FORGOTTEN.as_nanos() as u64 {
                fingerprint.add(mix(hash_of(&key), ago));
            }
        }
    }
}
