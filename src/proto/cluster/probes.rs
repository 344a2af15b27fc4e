//! The probe: what a connected node is asked again and again, also when nothing else is asked. Has
//! its clock jumped? Is its node marker still the known one? May it evict?
//!
//! No push reports any of this, so the client notices it up to a probe interval late. The hazard is
//! two clients that rewrite the marker for ever, each because it takes the other's marker for a
//! sign of a loss. So a client replaces only a marker that is older than its last sighting of the
//! known one.

use crate::proto::cluster::known::{Compared, Sighting, compare};
use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::cluster::state::{self, Reading};
use crate::proto::cluster::{Cluster, Due, NodeEvent};
use crate::proto::error::NodeError;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::handshake::{Fact, Step, forbids_a_marker};
use crate::proto::wire::marker::{MarkerState, Marking};
use crate::proto::wire::members::{LEASE, MEMBERS, MembersState};

impl Cluster {
    /// Probes the node, and sets the timer of the next probe.
    pub(super) fn on_probe_due(&mut self, node: NodeId, now: Instant) {
        self.plan_probe(node, now);
        self.mark_if_wanted(node, now);
        // The time comes first, because the marker is compared with it.
        for step in [Step::Time, Step::Marker, Step::Members, Step::Info] {
            self.probe(node, step, now);
        }
    }

    pub(super) fn plan_probe(&mut self, node: NodeId, now: Instant) {
        let interval = match self.settings.checks_members() {
            true => self.settings.probe_interval.min(LEASE / 3),
            false => self.settings.probe_interval,
        };
        let timer = self.timers.set_after(now, interval, Due::Probe(node));
        self.nodes[node.index()].probe = Some(timer);
    }

    /// Asks one question of a probe, if the handshake had an answer to it.
    pub(super) fn probe(&mut self, node: NodeId, step: Step, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        if !entry.state.is_usable() || !entry.connection.has_room(&self.settings.limits) {
            return;
        }
        let ask = Ask::Node(NodeAsk::Probe(step));
        let mut ask =
            |words: &[&[u8]]| entry.connection.ask(ask, now, |out| command::encode(out, words));
        match (step, self.settings.wanted_marker()) {
            (Step::Time, _) => ask(&[b"TIME"]),
            (Step::Marker, Some(key)) if entry.vetted.marker != MarkerState::Unavailable => {
                ask(&[b"GET", key.as_bytes()]);
            }
            (Step::Members, _) if entry.members != MembersState::Unavailable => {
                ask(&[b"GET", MEMBERS.as_bytes()]);
            }
            (Step::Info, _) if entry.vetted.info.identity.run_id.is_some() => {
                ask(&[b"INFO", b"memory"]);
            }
            _ => return,
        }
        self.watch_for_silence(node, now);
    }

    /// Acts on the answer to a question of the probe.
    pub(super) fn on_probe_answered(&mut self, node: NodeId, step: Step, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        match (step, entry.connection.fact()) {
            (Step::Members, _) => self.on_members_probed(node, now),
            (_, Fact::Time(micros)) => self.on_time_read(node, micros, now),
            // A node whose clock cannot be read gives no fencing number.
            (Step::Time, _) => entry.clock = None,
            (_, Fact::Marker(found)) => self.on_marker_read(node, found, now),
            // Another program has written the key.
            (Step::Marker, Fact::Refused(NodeError::WrongType)) => {
                self.on_marker_read(node, MarkerState::Unavailable, now);
            }
            (Step::Marker, Fact::Refused(cause)) if forbids_a_marker(cause) => {
                entry.vetted.marker = MarkerState::Unavailable;
            }
            (_, Fact::Info(info)) if info.evicts => {
                // From now on the node counts for no fencing number, even if eviction is allowed.
                entry.vetted.info.evicts = true;
                if !self.settings.allow_eviction {
                    self.reject(node, NodeError::Evicts, now);
                }
            }
            _ => {}
        }
    }

    fn on_time_read(&mut self, node: NodeId, micros: u64, now: Instant) {
        let asked_at = self.asked_at(node);
        let reading = Reading { micros, asked_at, read_at: now };
        self.nodes[node.index()].clock = Some(reading);
        let before = self.nodes[node.index()].reading.replace(reading);
        let jump = before.and_then(|before| state::clock_jump(&before, &reading));
        if let Some(nanos) = jump {
            self.report_event(NodeEvent::ClockJumped { node, nanos });
            let how = Some(Marking::Renew);
            self.distrust(node, QuarantineReason::ClockJumped, how, now);
        }
    }

    /// Compares the marker that a probe has read with the known one. If they differ, the node may
    /// have forgotten keys some time ago.
    fn on_marker_read(&mut self, node: NodeId, found: MarkerState, now: Instant) {
        let (compared, asked_at) = (self.compare_marker(node, found), self.asked_at(node));
        let entry = &mut self.nodes[node.index()];
        entry.vetted.marker = found;
        if let Some(reading) = entry.clock {
            entry.sighting = Some(Sighting { micros: reading.micros, asked_at });
        }
        match compared {
            Compared::Same if found == MarkerState::Absent => {
                entry.wants_marking.get_or_insert(Marking::IfMissing);
                self.mark_if_wanted(node, now);
            }
            Compared::Same => {}
            Compared::New => self.distrust(node, QuarantineReason::MarkerChanged, None, now),
            Compared::Gone => {
                let how = Some(Marking::IfMissing);
                self.distrust(node, QuarantineReason::Unmarked, how, now);
            }
            Compared::Strange(marker) => {
                let how = Some(Marking::Replace(marker.since_micros));
                self.distrust(node, QuarantineReason::MarkerChanged, how, now);
            }
            Compared::Later => {
                let micros = entry.clock.map(|reading| reading.micros);
                entry.vetted.micros = micros.or(entry.vetted.micros);
                self.distrust(node, QuarantineReason::MarkerOfLaterVersion, None, now);
            }
        }
    }

    /// Takes note of the marker that the script of this marking has returned. If it is neither the
    /// known nor the wanted one, the next probe judges it: so a node that returns another one each
    /// time costs no more than its probes.
    pub(super) fn on_marker_written(
        &mut self,
        node: NodeId,
        found: MarkerState,
        done: Option<Marking>,
        now: Instant,
    ) {
        let compared = self.compare_marker(node, found);
        let entry = &mut self.nodes[node.index()];
        let MarkerState::Present(marker) = found else { return };
        let is_own = marker.identity.run_id == entry.vetted.info.identity.run_id;
        let written = done.filter(|how| is_own && how.has_written(&marker));
        match (written, compared) {
            (None, Compared::Same) | (Some(Marking::Started { .. }), _) => {
                entry.vetted.marker = found;
            }
            (Some(_), _) | (None, Compared::New) => {
                entry.vetted.marker = found;
                if let Some(sighting) = &mut entry.sighting {
                    sighting.micros = marker.since_micros;
                }
                // Without tracking the node does not report which keys it deletes. So before this
                // node marker was written, it may have deleted keys of locks, too.
                if !entry.vetted.tracks {
                    self.prolong_quarantine(node, now);
                }
            }
            (None, _) => {}
        }
    }

    /// Compares a marker that was read with the known one.
    fn compare_marker(&mut self, node: NodeId, found: MarkerState) -> Compared {
        let entry = &mut self.nodes[node.index()];
        let run_id = entry.vetted.info.identity.run_id;
        let compared = compare(entry.vetted.marker, entry.sighting, found, run_id);
        if let (MarkerState::Present(marker), Compared::Same | Compared::New) = (found, compared) {
            if marker.identity.run_id == run_id {
                // Another client may have written a later replication history into the marker.
                entry.vetted.info.identity = marker.identity;
            }
        }
        compared
    }
}
