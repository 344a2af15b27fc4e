//! The probe: what a connected node is asked again and again, also when nothing else is asked.

use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::cluster::state::{self, Reading};
use crate::proto::cluster::{Cluster, Due, NodeEvent};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;

impl Cluster {
    /// Asks the node for its time, and sets the timer of the next probe.
    pub(super) fn probe_is_due(&mut self, node: NodeId, now: Instant) {
        self.plan_probe(node, now);
        self.mark_if_wanted(node, now);
        let entry = &mut self.nodes[node.index()];
        if !entry.state.is_usable() || !entry.connection.has_room(&self.settings.limits) {
            return;
        }
        entry
            .connection
            .ask(Ask::Node(NodeAsk::Probe), now, |out| command::encode(out, &[b"TIME"]));
        self.watch_for_silence(node, now);
    }

    pub(super) fn plan_probe(&mut self, node: NodeId, now: Instant) {
        let interval = self.settings.probe_interval;
        let timer = self.timers.set_after(now, interval, Due::Probe(node));
        self.nodes[node.index()].probe = Some(timer);
    }

    /// The node answered the probe: with its time, or with an error.
    pub(super) fn on_time_read(&mut self, node: NodeId, micros: Option<u64>, now: Instant) {
        let Some(micros) = micros else {
            // Fencing numbers rest on a clock that can be read.
            self.nodes[node.index()].clock = None;
            return;
        };
        let asked_at = self.asked_at(node);
        let reading = Reading { micros, asked_at, read_at: now };
        self.nodes[node.index()].clock = Some(reading);
        let before = self.nodes[node.index()].reading.replace(reading);
        let jump = before.and_then(|before| state::clock_jump(&before, &reading));
        if let Some(nanos) = jump {
            self.report_event(NodeEvent::ClockJumped { node, nanos });
            self.distrust(node, QuarantineReason::ClockJumped, now);
        }
    }
}
