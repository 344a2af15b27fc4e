//! Quarantine: the grants of a node that may have forgotten a live lock do not count until that
//! lock is over.

use std::time::Duration;

use crate::proto::cluster::known::{Known, Sighting};
use crate::proto::cluster::restart_guard::{self, QuarantineReason};
use crate::proto::cluster::state::NodeState;
use crate::proto::cluster::{Change, Cluster, Due, NodeEvent};
use crate::proto::error::{NodeError, Quarantine};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::settings::RestartGuard;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::handshake::{Fact, Vetted, forbids_a_marker};
use crate::proto::wire::marker::{self, Identity, MarkerState, Marking, Replacement};

impl Cluster {
    /// Decides whether a node that was vetted may have forgotten a live lock, and puts it into
    /// quarantine if so. `found` is its marker as it was before the handshake wrote it anew,
    /// `later` how it is to be written when the quarantine is over.
    pub(super) fn judge(
        &mut self,
        node: NodeId,
        vetted: &Vetted,
        found: MarkerState,
        later: Option<Marking>,
        now: Instant,
    ) {
        let asked_at = self.asked_at(node);
        let before = self.known_before(node, found, vetted);
        let entry = &mut self.nodes[node.index()];
        entry.sighting = vetted.micros.map(|micros| Sighting { micros, asked_at });
        // If a marker was still to be written that says when an earlier process started, it is
        // dropped: it would be false for this process.
        entry.wants_marking = later.or(entry.wants_marking.filter(|how| !how.is_of_a_start()));
        let evicted = entry.evicted.take().is_some();
        let (known, run_id) = (entry.known.replace(vetted.info), vetted.info.identity.run_id);
        let same = known.is_some_and(|known| run_id.is_some() && known.identity.run_id == run_id);
        if known.is_some() && !same {
            entry.earlier.clear();
            entry.reading = None;
            // Another process answers, so no process will execute the requests that the old one had
            // left. If the node does not report its `run_id`, it may still be the old process, so
            // nothing
            // is proved. The numbers of earlier connections are forgotten, because they may now
            // belong to other clients.
            let proved = run_id.is_some();
            let change = if proved { Change::OtherProcess } else { Change::NoProof };
            self.report(node, change);
        }
        let (guard, max_ttl) = (self.settings.restart_guard, self.settings.max_ttl);
        let judged = if evicted && guard != RestartGuard::Off {
            Some((RestartGuard::quarantine(max_ttl), QuarantineReason::Evicting))
        } else {
            restart_guard::distrust(guard, before.as_ref(), found, vetted, max_ttl)
        };
        if let Some((length, why)) = judged {
            self.quarantine(node, length, why, now);
        }
    }

    /// What the client knew of the node before its present handshake, and has to compare with what
    /// it sees now. `None` if replicas have to confirm grants, and a client has met the promoted
    /// server already. Since the promotion no replica confirmed a grant of the former master, if
    /// that still runs. So, as for a client that begins now, the quarantine begins when a client
    /// first met the promoted server, which the marker says.
    pub(super) fn known_before(
        &self,
        node: NodeId,
        found: MarkerState,
        vetted: &Vetted,
    ) -> Option<Known> {
        let known = self.nodes[node.index()].known()?;
        let is_over = self.settings.replicas > 0
            && restart_guard::was_met_after_promotion(&known, found, &vetted.info);
        (!is_over).then_some(known)
    }

    /// Puts a node into quarantine that may just have forgotten a live lock. Later clients learn of
    /// this by the node marker, which is written as `how` says: a flush deleted it, a jump of the
    /// clock did not.
    pub(super) fn distrust(
        &mut self,
        node: NodeId,
        why: QuarantineReason,
        how: Option<Marking>,
        now: Instant,
    ) {
        if self.settings.restart_guard == RestartGuard::Off {
            return;
        }
        self.quarantine(node, RestartGuard::quarantine(self.settings.max_ttl), why, now);
        let entry = &mut self.nodes[node.index()];
        match (how, entry.wants_marking) {
            (Some(Marking::Renew), _) => entry.wants_marking = how,
            (Some(_), Some(wanted)) if !wanted.is_of_a_start() => {}
            (Some(_), _) => entry.wants_marking = how,
            (None, _) => {}
        }
        self.mark_if_wanted(node, now);
    }

    /// Writes the node marker if that is wanted and not in flight already. If the node cannot be
    /// asked now, or refuses, it is asked again with the next probe.
    pub(super) fn mark_if_wanted(&mut self, node: NodeId, now: Instant) {
        if self.settings.wanted_marker().is_none() {
            return;
        }
        let entry = &mut self.nodes[node.index()];
        let Some(how) = entry.wants_marking.filter(|_| entry.marking.is_none()) else { return };
        if !entry.state.is_usable() || !entry.connection.has_room(&self.settings.limits) {
            return;
        }
        let identity = entry.vetted.info.identity;
        if entry.vetted.marker == MarkerState::Unavailable || identity.run_id.is_none() {
            entry.wants_marking = None;
            return;
        }
        if how.is_of_a_start() && entry.trusted_from.is_some() {
            return;
        }
        entry.marking = Some(how);
        let known = entry.vetted.marker;
        self.ask_to_mark(node, Ask::Node(NodeAsk::Mark), (known, identity), how, now);
        self.watch_for_silence(node, now);
    }

    /// Writes the node marker in the place of `known`: by the script, or on a node that runs none
    /// by two commands. `ask` gets the answer, which is the marker that the node has after that.
    pub(super) fn ask_to_mark(
        &mut self,
        node: NodeId,
        ask: Ask,
        (known, identity): (MarkerState, Identity),
        how: Marking,
        now: Instant,
    ) {
        let key = &self.settings.node_marker;
        let entry = &mut self.nodes[node.index()];
        if entry.connection.runs_scripts() {
            let encode = |out: &mut _| marker::mark(out, key, &identity, how);
            return entry.connection.ask(ask, now, encode);
        }
        let earliest = entry.clock.map(|clock| clock.micros_at(now));
        let replacement =
            earliest.and_then(|earliest| Replacement::of(known, &identity, how, earliest));
        match replacement {
            Some(replacement) => {
                let first = Ask::Node(NodeAsk::Unread);
                entry.connection.ask(first, now, |out| replacement.write(out, key));
                entry.connection.ask(ask, now, |out| replacement.keep(out, key));
            }
            None => {
                let words: [&[u8]; 2] = [b"GET", key.as_bytes()];
                entry.connection.ask(ask, now, |out| command::encode(out, &words));
            }
        }
    }

    /// Acts on the answer to the script that writes the node's marker.
    pub(super) fn on_marked(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        let done = entry.marking.take();
        match entry.connection.fact() {
            Fact::Marker(found) => {
                if entry.wants_marking == done {
                    entry.wants_marking = None;
                }
                self.on_marker_written(node, found, done, now);
                self.mark_if_wanted(node, now);
            }
            // The refusal is temporary: the node's memory is full, or it cannot save.
            Fact::Refused(cause) if !forbids_a_marker(cause) => {}
            _ => {
                entry.vetted.marker = MarkerState::Unavailable;
                entry.wants_marking = None;
            }
        }
    }

    fn quarantine(&mut self, node: NodeId, length: Duration, why: QuarantineReason, now: Instant) {
        let was_trusted = self.is_trusted(node);
        let entry = &mut self.nodes[node.index()];
        entry.vouching = false;
        let until = now.saturating_add(length);
        if was_trusted || why.is_noticed_late() {
            // If the node is in quarantine already, its grants do not count, and nothing changes
            // for the locks. But a loss from before that quarantine may be noticed only now.
            self.report(node, Change::Distrusted(why));
        }
        self.set_quarantine(node, until, why);
    }

    /// Begins the whole quarantine again from now, because the node may have forgotten more since
    /// it began.
    pub(super) fn prolong_quarantine(&mut self, node: NodeId, now: Instant) {
        match self.nodes[node.index()].trusted_from {
            Some((_, why)) => {
                let whole = RestartGuard::quarantine(self.settings.max_ttl);
                self.set_quarantine(node, now.saturating_add(whole), why);
            }
            None => self.distrust(node, QuarantineReason::MarkerChanged, None, now),
        }
    }

    fn set_quarantine(&mut self, node: NodeId, until: Instant, why: QuarantineReason) {
        let entry = &mut self.nodes[node.index()];
        if entry.trusted_from.is_some_and(|(from, _)| from >= until) {
            return;
        }
        entry.trusted_from = Some((until, why));
        self.timers.clear_in(&mut entry.trust);
        entry.trust = Some(self.timers.set_at(until, Due::Trust(node)));
        self.report_event(NodeEvent::Quarantined { node, why, until });
        if self.node_state(node).is_usable() {
            self.set_node_state(node, NodeState::Quarantined(until));
        }
    }

    /// Ends the quarantine: the node's grants count for questions that are asked from now on.
    pub(super) fn on_trust_due(&mut self, node: NodeId) {
        let entry = &mut self.nodes[node.index()];
        (entry.trust, entry.trusted_from) = (None, None);
        if self.node_state(node).is_usable() {
            self.set_node_state(node, NodeState::Ready);
        }
    }

    /// Whether the marker by which an operator vouches for the node can be written now, or why not.
    pub fn may_vouch_for(&self, node: NodeId) -> Result<(), NodeError> {
        self.may_ask(node)?;
        let known = self.nodes[node.index()].vetted.info.identity.run_id.is_some();
        let has_marker_key = !self.settings.node_marker.is_empty();
        if known && has_marker_key { Ok(()) } else { Err(NodeError::NoPermission) }
    }

    /// Writes the marker by which an operator vouches for the node. `ask` is the question of the
    /// caller, which gets the answer.
    pub fn vouch(&mut self, node: NodeId, ask: Ask, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        entry.vouching = true;
        // The node writes the new marker only in place of the one that the client saw. If the
        // client saw none, it names a marker of time 0, which no node has, so the node only returns
        // what stands there. Otherwise a marker that the node forgets before this command arrives
        // could not be distinguished from one that it never had.
        let since = match entry.vetted.marker {
            MarkerState::Present(seen) => seen.since_micros,
            MarkerState::Absent | MarkerState::Unavailable | MarkerState::Later(_) => 0,
        };
        let found = (entry.vetted.marker, entry.vetted.info.identity);
        self.ask_to_mark(node, ask, found, Marking::Vouch(since), now);
        self.watch_for_silence(node, now);
    }

    /// Whether the node has forgotten nothing since an operator vouched for it.
    pub fn is_still_vouched_for(&self, node: NodeId) -> bool {
        self.nodes[node.index()].vouching
    }

    /// Ends the quarantine of a node for which an operator vouches.
    pub fn trust_at_once(&mut self, node: NodeId) {
        let entry = &mut self.nodes[node.index()];
        self.timers.clear_in(&mut entry.trust);
        self.on_trust_due(node);
    }

    /// The state of a node that may be asked: ready, or in quarantine.
    pub(super) fn usable_state(&self, node: NodeId, now: Instant) -> NodeState {
        match self.nodes[node.index()].trusted_from {
            Some((until, _)) if now < until => NodeState::Quarantined(until),
            _ => NodeState::Ready,
        }
    }

    /// For how long the node's grants do not count, for a report.
    pub(super) fn quarantine_of(&self, node: NodeId, now: Instant) -> Option<Quarantine> {
        let (until, why) = self.nodes[node.index()].trusted_from?;
        let is_unmarked = why == QuarantineReason::Unmarked;
        Some(Quarantine { left: until.saturating_since(now), is_unmarked })
    }

    /// Whether the node's grants count.
    #[inline]
    pub fn is_trusted(&self, node: NodeId) -> bool {
        self.nodes[node.index()].trusted_from.is_none()
    }

    /// The nodes among these whose grants do not count.
    #[inline]
    pub fn untrusted(&self, nodes: NodeSet) -> NodeSet {
        nodes.iter().filter(|&node| !self.is_trusted(node)).collect()
    }
}
