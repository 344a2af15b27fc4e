//! The start of a client: an acquire that comes before the first handshakes are over asks the nodes
//! only when a quorum of them is ready.
//!
//! The hazard is a request that waits for ever. Each first handshake ends by the connect timeout.
//! After that no request waits for a handshake: a node that is not ready counts as failed. A client
//! that did nothing for long starts again in this way if it checks lists of masters.

use crate::proto::error::Error;
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Stage;
use crate::proto::time::Instant;

impl Locks {
    /// From now on all 32-bit numbers are `left` before they wrap: generations of records, requests
    /// and tasks, and rounds.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.records.start_before_wrap(left);
        self.tasks.start_before_wrap(left);
        self.ops.start_before_wrap(left);
    }

    /// Whether the first handshakes are not over yet. An acquire that comes now waits for them, for
    /// the connect timeout at most.
    pub fn is_starting(&self) -> bool {
        self.starting
    }

    /// If the first handshakes are not over, the request of this record waits for them, or until
    /// the lists of masters are read again that were read too long ago. Returns whether it does.
    pub(in crate::proto::locks) fn hold_at_start(&mut self, id: RecordId, now: Instant) -> bool {
        if self.cluster.check_lists(now) {
            self.starting |= !self.is_start_over();
        }
        let op = self.records.get(id).op.filter(|_| self.starting);
        if let Some(op) = op {
            self.ops.move_to(op, Stage::Starting { record: id });
        }
        op.is_some()
    }

    /// Whether a quorum is ready, or the nodes that are awaited cannot make one any more.
    fn is_start_over(&self) -> bool {
        let (ready, pending) = (self.cluster.usable_nodes(), self.cluster.first_handshakes());
        let quorum = self.cluster.quorum();
        let open = ready < quorum && ready + pending >= quorum;
        !open && !self.cluster.is_about_to_admit()
    }

    /// A first handshake has ended. If a quorum is ready, or the handshakes that are left cannot
    /// make one any more, all requests that waited for this begin now.
    pub(in crate::proto::locks) fn on_first_handshake_end(&mut self, now: Instant) {
        if !self.starting || !self.is_start_over() {
            return;
        }
        self.starting = false;
        for op in self.ops.all() {
            if let Some(&Stage::Starting { record }) =
                self.ops.get(op).map(|request| &request.stage)
            {
                self.attempt_anew(op, record, now);
            }
        }
    }

    /// The error of a request for `key` that has to wait for the first handshakes, and may not
    /// wait.
    pub(in crate::proto::locks) fn not_connected(&self, key: &[u8], now: Instant) -> Error {
        let mut report = self.cluster.report_node_states(now);
        report.key = key.into();
        Error::NoQuorum(report)
    }
}
