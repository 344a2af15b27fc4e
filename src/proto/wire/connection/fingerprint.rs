//! What matters of a connection for the future: see [`crate::proto::fingerprint`].

use std::time::Duration;

use crate::proto::fingerprint::{Fingerprint, Place, hash_of, mix};
use crate::proto::node_set::NodeId;
use crate::proto::wire::ask::{Ask, LockAsk};
use crate::proto::wire::connection::{Connection, Moments};

/// One more than the node timeouts that a question may wait before its node is silent.
const OLDEST_MAY_WAIT: u32 = 5;

impl Connection {
    /// Adds the connection of `node` to a fingerprint.
    pub fn add_to(
        &self,
        node: NodeId,
        fingerprint: &mut Fingerprint<'_>,
        node_timeout: Duration,
        place: Place<'_>,
    ) {
        let Connection {
            outbox,
            partial,
            skipping,
            asks,
            scripts,
            moments,
            unwritten: _,
            // These fields are about the last answer, which was handled already.
            asked_at: _,
            fact: _,
            seen: _,
            details: _,
            handed_over: _,
            reading,
            written,
            // The field only decides about the capacity of the buffers.
            most: _,
            // The search asks no replicas.
            asks_replicas: _,
            confirmation: _,
            last_answer,
            last_error: _,
            secret: _,
            key_prefix: _,
        } = self;
        assert!(!skipping.is_going_on(), "no message is that long");
        assert!(outbox.is_empty() && partial.is_empty() && written.is_empty(), "all was taken out");
        for ask in asks.as_slice() {
            fingerprint.add_at(node, word_of(ask, place));
        }
        let limit = node_timeout * OLDEST_MAY_WAIT;
        for Moments { asked_at, written_at, count } in moments.as_slice() {
            assert!(asked_at == written_at, "questions are written immediately");
            let ago = fingerprint.ago(*written_at, limit);
            fingerprint.add_at(node, mix(ago, *count as u64));
        }
        if let Some(oldest) = self.oldest_ask() {
            let ago = fingerprint.ago(oldest.max(*last_answer), node_timeout);
            fingerprint.add_at(node, ago);
        }
        fingerprint.add_at(node, mix(asks.len() as u64, hash_of(&(scripts, reading))));
    }
}

fn word_of(ask: &Ask, place: Place<'_>) -> u64 {
    match ask {
        Ask::Lock(LockAsk { record, round, kind, sent }) => {
            let (place, present) = place(*record).expect("its record is open");
            mix(mix(1, place), mix(hash_of(&present.wrapping_sub(*round)), hash_of(&(kind, sent))))
        }
        Ask::Register(record) => mix(2, place(*record).map_or(0, |(place, _)| 1 + place)),
        Ask::Task(..) => panic!("a fingerprint does not cover tasks"),
        Ask::Node(kind) => mix(3, hash_of(kind)),
    }
}
