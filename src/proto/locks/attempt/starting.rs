//! The start of a client: an acquire that is asked before the first handshakes are over is held
//! until a quorum of nodes can be asked.
//!
//! The hazard is a request that is held for ever. A node's first handshake ends with the connect
//! timeout at the latest, and after the first handshakes nothing is held any more: then a node that
//! is not ready votes at once.

use crate::proto::error::Error;
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Stage;
use crate::proto::time::Instant;

impl Locks {
    /// From now on all counts that end at 32 bits are so close to it: records, requests, tasks and
    /// rounds.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.records.start_before_wrap(left);
        self.tasks.start_before_wrap(left);
        self.ops.start_before_wrap(left);
    }

    /// Whether the first handshakes are not over yet. An acquire that is asked now is held, for the
    /// connect timeout at most.
    pub fn is_starting(&self) -> bool {
        self.starting
    }

    /// Holds the request of this record if the first handshakes are not over. Returns whether it
    /// did.
    pub(in crate::proto::locks) fn hold_at_start(&mut self, id: RecordId) -> bool {
        let op = self.records.get(id).op.filter(|_| self.starting);
        if let Some(op) = op {
            self.ops.move_to(op, Stage::Starting { record: id });
        }
        op.is_some()
    }

    /// A first handshake has ended. If a quorum is ready, or the first handshakes cannot make one
    /// any more, the requests that were held are asked now.
    pub(in crate::proto::locks) fn on_first_handshake_end(&mut self, now: Instant) {
        if !self.starting {
            return;
        }
        let (ready, pending) = (self.cluster.usable_nodes(), self.cluster.first_handshakes());
        let quorum = self.cluster.quorum();
        if ready < quorum && ready + pending >= quorum {
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

    /// The error of a request for `key` before any node could be asked.
    pub(in crate::proto::locks) fn not_connected(&self, key: &[u8], now: Instant) -> Error {
        let mut report = self.cluster.report_node_states(now);
        report.key = key.into();
        Error::NoQuorum(report)
    }
}
