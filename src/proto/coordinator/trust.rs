//! Quarantine: the grants of a node that may have forgotten a live lock do not count until that
//! lock is over.

use std::time::Duration;

use super::super::greeting::{Fact, Vetted, forbids_a_marker};
use super::super::marker::{self, MarkerState, Marking};
use super::super::quarantine::{self, Distrust};
use super::super::settings::RestartGuard;
use super::*;

impl Coordinator {
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
            if run_id.is_some() {
                // Another process: whatever the old one had not executed, nobody will.
                self.nothing_comes_late(node, now);
            }
            // Who it is now cannot be told: a number of an earlier connection may be a stranger's.
            let it = &mut self.nodes[node.index()];
            it.earlier.clear();
            it.unproven.clear();
            it.reading = None;
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
        let it = &mut self.nodes[node.index()];
        if why == Distrust::ClockJumped {
            it.wants_marking = Some(Marking::Renew);
        } else {
            it.wants_marking.get_or_insert(Marking::IfMissing);
        }
        self.mark_if_wanted(node, now);
    }

    /// Writes the node marker where that is wanted, and not being done already. Where the node
    /// cannot be asked now, or refuses, it is asked again with the next probe.
    pub(super) fn mark_if_wanted(&mut self, node: NodeId, now: Instant) {
        let Some(key) = self.settings.wanted_marker() else { return };
        let it = &mut self.nodes[node.index()];
        let Some(how) = it.wants_marking.filter(|_| it.marking.is_none()) else { return };
        if !it.standing.is_usable() || !it.link.has_room(&self.settings.limits) {
            return;
        }
        let identity = it.vetted.info.identity;
        if it.vetted.marker == MarkerState::Unavailable || identity.run_id.is_none() {
            it.wants_marking = None;
            return;
        }
        it.marking = Some(how);
        let ask = Ask::new(0, 0, Kind::Mark, now);
        it.link.ask(ask, |out| marker::mark(out, key, &identity, how));
        self.watch_for_silence(node, now);
    }

    /// The node answered the script that writes its marker.
    pub(super) fn marked(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        let done = it.marking.take();
        match it.link.fact() {
            Fact::Marker(marker @ MarkerState::Present(_)) => {
                it.vetted.marker = marker;
                if it.wants_marking == done {
                    it.wants_marking = None;
                }
                self.mark_if_wanted(node, now);
            }
            // It passes: the memory of the node is full, or it cannot save.
            Fact::Refused(cause) if !forbids_a_marker(cause) => {}
            _ => {
                it.vetted.marker = MarkerState::Unavailable;
                it.wants_marking = None;
            }
        }
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
        it.trust = Some(self.timers.set_at(until, Due::Trust { node }));
        self.tell(Event::Distrusted { node, why, until });
        if self.standing(node).is_usable() {
            self.set_standing(node, Standing::Quarantined(until));
        }
        if was_trusted {
            // In quarantine already, every vote and every key of the node is judged by it.
            self.doubt_votes(node, why, now);
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

    /// The operator vouches for the node: its quarantine is over.
    pub(super) fn trust_at_once(&mut self, node: NodeId) {
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
    pub(super) fn is_trusted(&self, node: NodeId) -> bool {
        self.nodes[node.index()].trusted_from.is_none()
    }

    /// The node may have forgotten keys just now. Keys of ours that it has not confirmed may be
    /// created in the place of those, and its votes in rounds that are not decided yet do not
    /// count any more where they rest on such a key. A key of ours that survived keeps its vote in
    /// extends: as long as it was there, no other client can have had one.
    ///
    /// Where the loss was noticed only afterwards, also a confirmed key may have been created
    /// since.
    fn doubt_votes(&mut self, node: NodeId, why: Distrust, now: Instant) {
        let noticed_late = matches!(why, Distrust::ClockJumped | Distrust::Unmarked);
        for number in self.records.numbers() {
            // An attempt that was lost by this may have closed its record.
            if !self.records.contains(number) {
                continue;
            }
            let record = self.records.get_mut(number);
            if noticed_late || !record.confirmed.contains(node) {
                record.doubtful.insert(node);
            }
            let withdrawn = match record.phase {
                Phase::Asking => true,
                Phase::Held => record.is_doubtful(node),
                Phase::Ending | Phase::Given => false,
            };
            if !withdrawn {
                continue;
            }
            record.uncounted.insert(node);
            let before = record.round.ballot().verdict();
            if before == Verdict::Undecided && record.round.withdraw(node) != before {
                self.settle(number, now);
            }
        }
    }
}
