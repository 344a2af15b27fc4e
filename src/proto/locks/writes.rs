//! Writes to the keys of records. The client registers keys at the nodes, which then report writes
//! to them. If a key is written to, the client asks the nodes about its auto-extended or watched
//! lock, and lets requests that wait for it ask again.
//!
//! The hazard is a write that no node reports: a node does not report to a client what that client
//! wrote. So the answers to this client's own writes are acted on here, too.

use crate::proto::ids::RecordId;
use crate::proto::key::KeyHash;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;

/// What wrote to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Another client.
    Other,
    /// This client, for a record.
    Record(RecordId),
    /// This client, for a task.
    Task,
}

impl Locks {
    /// Registers the keys of a record at these nodes, so that they report writes to these keys. Of
    /// a set that waits in line only the key of that line.
    pub fn register_at(&mut self, id: RecordId, nodes: NodeSet, now: Instant) {
        let record = self.records.get(id);
        let awaited = record.set().and_then(SetOfKeys::waits_in_line_for);
        let wanted = |&(index, _): &(usize, &[u8])| awaited.is_none_or(|awaited| awaited == index);
        for node in nodes.iter() {
            for (_, key) in record.keys().enumerate().filter(wanted) {
                if !self.cluster.may_name_a_key(node) {
                    break;
                }
                self.cluster.ask(node, Ask::Node(NodeAsk::Caching), now, |out| {
                    command::encode(out, &[b"CLIENT", b"CACHING", b"YES"]);
                });
                let key = self.key_prefix.put_before(key);
                let names = |out: &mut _| command::encode(out, &[b"PTTL", key]);
                self.cluster.ask(node, Ask::Register(id), now, names);
            }
        }
    }

    /// A node answered the registration of a key: `left` is the answer to `PTTL`. If the key of a
    /// held lock is not there, the lock is doubted, unless its loss on this node is known already
    /// or a heal is in flight. If the key of a waiter is free, the waiter asks again.
    pub fn on_registered(&mut self, node: NodeId, id: RecordId, left: Option<i64>, now: Instant) {
        let Some(record) = self.records.get_open_mut(id) else { return };
        if record.phase == Phase::Asking {
            let op = self.ops.waiter_of(record);
            let Some(waiting) = op.and_then(|op| self.ops.waiting_mut(op)) else { return };
            let is_free = waiting.note_left(node, left, now) <= now;
            if let Some(op) = op.filter(|_| is_free) {
                self.waits.push_back(WaitEvent::Written { op, node });
            }
        } else if left == Some(-2) && !record.absent().union(record.healing()).contains(node) {
            self.renewals.doubt(node, record, now);
        }
    }

    /// A node executed a write to a key, or forgot that the key was registered. Doubts the
    /// auto-extended or watched locks of that key, and notifies the requests that wait for it.
    pub fn on_write(&mut self, node: NodeId, key: KeyHash, by: Writer, now: Instant) {
        for id in self.records.with_key(key).filter(|&id| by != Writer::Record(id)) {
            let record = self.records.get(id);
            self.renewals.doubt(node, record, now);
            if let Some(op) = self.ops.waiter_of(record) {
                self.waits.push_back(WaitEvent::Written { op, node });
            }
        }
    }

    /// Whether there is a lock or a request that a write to its key would concern.
    #[inline]
    pub(in crate::proto::locks) fn is_any_key_watched(&self) -> bool {
        !(self.renewals.is_empty() && self.ops.has_no_waiters())
    }

    /// A node executed a write of this client to the keys of a record. The node does not report
    /// such a write, so its answer takes the place of the report.
    #[inline]
    pub(in crate::proto::locks) fn on_own_write(
        &mut self,
        node: NodeId,
        id: RecordId,
        now: Instant,
    ) {
        if !self.is_any_key_watched() {
            return;
        }
        let keys: Vec<KeyHash> = self.records.get(id).hashes().collect();
        for key in keys {
            self.on_write(node, key, Writer::Record(id), now);
        }
    }
}
