//! Quarantine: the grants of a node that may have forgotten a live lock do not count until that
//! lock is over.

use std::time::Duration;

use super::super::error::Cause;
use super::super::greeting::Vetted;
use super::super::link::{Ask, Kind};
use super::super::marker::{self, MarkerState, Marking};
use super::super::node::NodeId;
use super::super::quarantine::{self, Distrust};
use super::super::settings::RestartGuard;
use super::super::standing::Standing;
use super::super::time::Instant;
use super::{Change, Cluster, Due, Event};

impl Cluster {
    /// A node was vetted: does it remember every live lock? `found` is its marker as it was before
    /// the handshake wrote it anew.
    pub(super) fn judge(
        &mut self,
        node: NodeId,
        vetted: &Vetted,
        found: MarkerState,
        now: Instant,
    ) {
        let it = &mut self.nodes[node.index()];
        let (known, run_id) = (it.known.replace(vetted.info), vetted.info.identity.run_id);
        let same = known.is_some_and(|known| run_id.is_some() && known.identity.run_id == run_id);
        if known.is_some() && !same {
            it.earlier.clear();
            it.reading = None;
            // Another process: whatever the old one had not executed, nobody will. Where it cannot
            // be told who it is now, a number of an earlier connection may be a stranger's.
            let proved = run_id.is_some();
            let change = if proved { Change::NothingComesLate } else { Change::NoProof };
            self.report(node, change);
        }
        let (guard, max_ttl) = (self.settings.restart_guard, self.settings.max_ttl);
        let judged = quarantine::distrust(guard, known.as_ref(), found, vetted, max_ttl);
        if let Some((length, why)) = judged {
            self.quarantine(node, length, why, now);
        }
    }

    /// The node may have forgotten a live lock, just now. The next process learns of it by the
    /// node marker: a flush took that along, a clock that jumped did not.
    pub(super) fn distrust(&mut self, node: NodeId, why: Distrust, now: Instant) {
        if self.settings.restart_guard == RestartGuard::Off {
            return;
        }
        self.quarantine(node, quarantine::memory(self.settings.max_ttl), why, now);
        let jumped = why == Distrust::ClockJumped;
        self.mark(node, if jumped { Marking::Renew } else { Marking::IfMissing }, now);
    }

    /// Writes the node marker, unless that is being done: nobody waits for the answer.
    pub(super) fn mark(&mut self, node: NodeId, how: Marking, now: Instant) {
        let Some(key) = self.settings.wanted_marker() else { return };
        let it = &mut self.nodes[node.index()];
        let available = it.vetted.marker != MarkerState::Unavailable;
        let reached = it.standing.is_usable() && it.link.has_room(&self.settings.limits);
        let identity = it.vetted.info.identity;
        if it.marking || !available || !reached || identity.run_id.is_none() {
            return;
        }
        it.marking = true;
        let ask = Ask::new(0, 0, Kind::Mark, now);
        it.link.ask(ask, |out| marker::mark(out, key, &identity, how));
        self.watch_for_silence(node, now);
    }

    fn quarantine(&mut self, node: NodeId, length: Duration, why: Distrust, now: Instant) {
        let was_trusted = self.is_trusted(node);
        let it = &mut self.nodes[node.index()];
        it.vouching = false;
        let until = now.saturating_add(length);
        if it.trusted_from.is_some_and(|(from, _)| from >= until) {
            return;
        }
        it.trusted_from = Some((until, why));
        self.timers.clear_in(&mut it.trust);
        it.trust = Some(self.timers.set_at(until, Due::Trust(node)));
        self.tell(Event::Distrusted { node, why, until });
        if self.standing(node).is_usable() {
            self.set_standing(node, Standing::Quarantined(until));
        }
        if was_trusted {
            // In quarantine already, every vote and every key of the node is judged by it.
            self.report(node, Change::Distrusted);
        }
    }

    /// The quarantine is over. Only questions asked from now on are granted by it.
    pub(super) fn trust_is_due(&mut self, node: NodeId) {
        let it = &mut self.nodes[node.index()];
        (it.trust, it.trusted_from) = (None, None);
        if self.standing(node).is_usable() {
            self.set_standing(node, Standing::Ready);
        }
    }

    /// Whether there is a marker to be written on the node, by which an operator vouches for it.
    pub fn may_vouch_for(&self, node: NodeId) -> Result<(), Cause> {
        self.may_ask(node)?;
        let known = self.nodes[node.index()].vetted.info.identity.run_id.is_some();
        let named = !self.settings.node_marker.is_empty();
        if known && named { Ok(()) } else { Err(Cause::NoPermission) }
    }

    /// Writes the marker by which an operator vouches for the node. `ask` is the question of the
    /// caller, which gets the answer.
    pub fn vouch(&mut self, node: NodeId, ask: Ask, now: Instant) {
        let it = &mut self.nodes[node.index()];
        it.vouching = true;
        let (key, identity) = (&self.settings.node_marker, it.vetted.info.identity);
        it.link.ask(ask, |out| marker::mark(out, key, &identity, Marking::Vouch));
        self.watch_for_silence(node, now);
    }

    /// The node answered that, or will not answer any more. `true`: it has forgotten nothing since
    /// it was asked.
    pub fn vouching_ends(&mut self, node: NodeId) -> bool {
        std::mem::take(&mut self.nodes[node.index()].vouching)
    }

    /// The operator vouches for the node: its quarantine is over.
    pub fn trust_at_once(&mut self, node: NodeId) {
        let it = &mut self.nodes[node.index()];
        self.timers.clear_in(&mut it.trust);
        self.trust_is_due(node);
    }

    /// What a node that may be asked is.
    pub(super) fn usable_standing(&self, node: NodeId, now: Instant) -> Standing {
        match self.nodes[node.index()].trusted_from {
            Some((until, _)) if now < until => Standing::Quarantined(until),
            _ => Standing::Ready,
        }
    }

    /// Whether the node's grants count.
    #[inline]
    pub fn is_trusted(&self, node: NodeId) -> bool {
        self.nodes[node.index()].trusted_from.is_none()
    }
}
