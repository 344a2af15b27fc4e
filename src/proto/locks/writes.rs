//! Writes to the keys of records. The keys are registered at the nodes, which report writes to
//! them. A write concerns the locks of its key that are auto-extended, and the requests that wait
//! for it.
//!
//! The hazard is a write that no node reports: a node does not report to this client what this
//! client wrote. So the answers to its own writes are acted on here, too.

use crate::proto::ids::{Op, RecordId, TaskId};
use crate::proto::key::KeyHash;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;

/// What wrote to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Another client.
    Other,
    /// This client, for a record.
    Record(RecordId),
    /// This client, for a task.
    Task,
}

impl Locks {
    /// Registers the record's keys at a node, so that the node reports writes to them.
    pub(in crate::proto::locks) fn register(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let awaited = record.set().and_then(SetOfKeys::awaited);
        let wanted = |&(index, _): &(usize, &[u8])| awaited.is_none_or(|awaited| awaited == index);
        for (index, key) in record.keys().enumerate().filter(wanted) {
            if !self.cluster.may_name_a_key(node) {
                return;
            }
            self.cluster.ask(node, Ask::Node(NodeAsk::Caching), now, |out| {
                command::encode(out, &[b"CLIENT", b"CACHING", b"YES"]);
            });
            let key = self.key_prefix.put_before(key);
            let names = |out: &mut _| command::encode(out, &[b"PTTL", key]);
            self.cluster.ask(node, Ask::Register(id, index as u8), now, names);
        }
    }

    /// A node answered the registration of a key. If the key is not there, it was deleted before,
    /// unless that is known already or a heal is in flight. Nothing is done for a record that is
    /// over.
    pub fn registered(
        &mut self,
        node: NodeId,
        (id, key): (RecordId, u8),
        left: Option<i64>,
        now: Instant,
    ) {
        if !self.records.is_open(id) {
            return;
        }
        let record = self.records.get(id);
        if record.phase == Phase::Asking {
            let key = usize::from(key);
            self.notify_waiter(id, |op| WaitEvent::Seen { op, node, key, left });
        } else if left == Some(-2) && !record.absent().union(record.healing()).contains(node) {
            self.renewals.doubt(node, self.records.get(id), now);
        }
    }

    /// Another client wrote to a key on a node, or the node forgot that the key was registered.
    pub fn was_written(&mut self, node: NodeId, key: KeyHash, now: Instant) {
        self.report_write(node, key, Writer::Other, now);
    }

    /// A node executed a write of this client to the key of a record, which it does not report to
    /// us. Locks of that key may be auto-extended, or wait for it.
    #[inline]
    pub(in crate::proto::locks) fn we_wrote(&mut self, node: NodeId, id: RecordId, now: Instant) {
        if self.is_interested_in_writes() {
            let keys: Vec<KeyHash> = self.records.get(id).hashes().collect();
            for key in keys {
                self.report_write(node, key, Writer::Record(id), now);
            }
        }
    }

    /// A node executed a write of a task, which it does not report to us.
    pub(in crate::proto::locks) fn task_wrote(&mut self, node: NodeId, id: TaskId, now: Instant) {
        if self.is_interested_in_writes() {
            let key = KeyHash::of(&self.tasks.get(id).key);
            self.report_write(node, key, Writer::Task, now);
        }
    }

    fn is_interested_in_writes(&self) -> bool {
        !self.renewals.is_empty() || !self.ops.has_no_waiters()
    }

    /// Reports an event to the waits if the record belongs to a waiter between two attempts.
    pub(in crate::proto::locks) fn notify_waiter(
        &mut self,
        id: RecordId,
        event: impl FnOnce(Op) -> WaitEvent,
    ) {
        let record = self.records.get(id);
        let op = record.op.filter(|_| record.phase == Phase::Asking);
        let waits = |&op: &Op| self.ops.get(op).is_some_and(|request| request.waiting.is_some());
        if let Some(op) = op.filter(waits) {
            self.waits.push_back(event(op));
        }
    }

    fn report_write(&mut self, node: NodeId, key: KeyHash, by: Writer, now: Instant) {
        let mut found = std::mem::take(&mut self.found);
        found.extend(self.records.with_key(key));
        for id in found.drain(..) {
            // What was done for an earlier record may have ended this one.
            if by != Writer::Record(id) && self.records.is_open(id) {
                self.renewals.doubt(node, self.records.get(id), now);
                let ours = by != Writer::Other;
                let record = self.records.get(id);
                let key = record.set().and_then(|set| set.index_of(key)).unwrap_or(0);
                self.notify_waiter(id, |op| WaitEvent::Written { op, node, key, ours });
            }
        }
        self.found = found;
    }
}
