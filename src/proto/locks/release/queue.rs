//! Pending releases: each is sent at once if the node can be reached, else as the first thing on
//! its next connection.
//!
//! The queue is an order only: what is pending is decided by the record. An entry is skipped when
//! its turn comes if its record is gone, or if no release is pending for the node any more.
//!
//! An entry may wait for so long that the generation of its record comes again. Then a release of
//! another record that is over is sent a little early, which does no harm.

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(feature = "testing")]
use crate::proto::fingerprint::{Fingerprint, mix};
use crate::proto::ids::RecordId;
use crate::proto::locks::Due;
use crate::proto::locks::record::records::{Phase, Records};
use crate::proto::node_set::NodeId;
use crate::proto::surplus::{shrink_list, shrink_queue};
use crate::proto::time::Instant;
use crate::proto::timers::{Timer, Timers};

/// The shortest and the longest pause before releases are sent again to a node that refused them or
/// has no room.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A pending release, which is not sent before a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PendingRelease {
    record: RecordId,
    not_before: Instant,
}

/// What becomes of the pending release that is the next one of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is in flight, is not pending any more, or is sent at the deadline of its lock.
    Skip,
    /// The release is queued again, as the last one.
    Later,
    /// The release is sent.
    Send(RecordId),
    /// The release is given up, because every key that it is about has expired. A request of a lost
    /// connection may be unproven.
    Lapsed {
        /// The record.
        record: RecordId,
        /// Whether there is such a request.
        unproven: bool,
    },
}

/// The pending releases of one node.
#[derive(Debug, Clone)]
pub struct PendingReleases {
    node: NodeId,
    queue: VecDeque<PendingRelease>,
    /// Records with questions that were asked on earlier connections and not answered.
    unproven: Vec<RecordId>,
    /// Starts the next sending.
    next_send: Option<Timer>,
    /// Drops the pending releases when the node was away too long.
    drop_timer: Option<Timer>,
    /// How many releases in a row were refused.
    refused: u32,
}

impl PendingReleases {
    /// No pending release of this node.
    pub fn of(node: NodeId) -> PendingReleases {
        PendingReleases {
            node,
            queue: VecDeque::new(),
            unproven: Vec::new(),
            next_send: None,
            drop_timer: None,
            refused: 0,
        }
    }

    /// Queues a release, to be sent from `not_before` on.
    pub fn push(&mut self, record: RecordId, not_before: Instant) {
        self.queue.push_back(PendingRelease { record, not_before });
    }

    /// Takes out the next pending release.
    pub fn pop(&mut self) -> Option<RecordId> {
        self.queue.pop_front().map(|next| next.record)
    }

    /// Takes the next pending release out, and says what becomes of it.
    pub fn next(&mut self, records: &mut Records, now: Instant) -> Next {
        let Some(next @ PendingRelease { record: id, not_before }) = self.queue.pop_front() else {
            return Next::Skip;
        };
        let Some(record) = records.get_open_mut(id) else { return Next::Skip };
        let is_sent = record.pending.releasing().contains(self.node);
        let is_due = record.phase == Phase::Ending && record.pending.is_release_pending(self.node);
        if !is_due || is_sent || record.waits_for_its_deadline() {
            return Next::Skip;
        }
        if now < not_before {
            self.queue.push_back(next);
            return Next::Later;
        }
        if !record.pending.has_lapsed(self.node, now) {
            return Next::Send(id);
        }
        let (_, unproven) = record.pending.give_up(self.node);
        Next::Lapsed { record: id, unproven }
    }

    /// A question about this record was lost with a connection, and a proof may come that the node
    /// executes it no more.
    pub fn expect_proof(&mut self, record: RecordId) {
        self.unproven.push(record);
    }

    /// Takes out the records for which such a proof may come.
    pub fn take_unproven(&mut self) -> Vec<RecordId> {
        std::mem::take(&mut self.unproven)
    }

    /// Starts the pause before the next releases are sent, unless it runs.
    pub fn schedule(&mut self, timers: &mut Timers<Due>, now: Instant) {
        if self.next_send.is_none() {
            let due = Due::PendingReleases { node: self.node };
            self.next_send = Some(timers.set_at(now.saturating_add(self.pause()), due));
        }
    }

    /// The pause before the next releases is over.
    pub fn on_pause_over(&mut self) {
        self.next_send = None;
    }

    /// The node acknowledged a release.
    #[inline]
    pub fn on_acknowledged(&mut self) {
        self.refused = 0;
    }

    /// The node refused a release.
    pub fn on_refused(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    /// The node may be asked from now on, so its releases are not dropped for its absence.
    pub fn on_admitted(&mut self, timers: &mut Timers<Due>) {
        self.refused = 0;
        timers.clear_in(&mut self.drop_timer);
    }

    /// No release can be sent before the next connection of the node. They are dropped if it stays
    /// away for so long.
    pub fn on_disconnected(&mut self, away: Duration, timers: &mut Timers<Due>, now: Instant) {
        timers.clear_in(&mut self.next_send);
        if self.drop_timer.is_none() {
            let due = Due::DropReleases { node: self.node };
            self.drop_timer = Some(timers.set_at(now.saturating_add(away), due));
        }
    }

    /// The node was away for as long as `away`. Gives each release up, and returns how many were
    /// pending, and the records; they may be over now. The next absence begins.
    pub fn drop_all(
        &mut self,
        records: &mut Records,
        away: Duration,
        timers: &mut Timers<Due>,
        now: Instant,
    ) -> (u64, Vec<RecordId>) {
        self.drop_timer = None;
        let (mut count, mut dropped) = (0, Vec::new());
        while let Some(id) = self.pop() {
            if let Some(record) = records.get_open_mut(id) {
                let (pending, _) = record.pending.give_up(self.node);
                count += u64::from(pending);
                dropped.push(id);
            }
        }
        self.on_disconnected(away, timers, now);
        (count, dropped)
    }

    /// Gives back the room that was not in use since `most` releases were queued.
    pub fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
        shrink_list(&mut self.unproven, most);
    }

    /// How many releases are queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The pause before releases are sent again.
    fn pause(&self) -> Duration {
        (PAUSES.0 * (1 << self.refused.min(8))).min(PAUSES.1)
    }
}

#[cfg(feature = "testing")]
impl PendingReleases {
    /// Adds what matters for the future to a fingerprint. `place` is nothing for a closed record.
    pub fn add_to(
        &self,
        fingerprint: &mut Fingerprint<'_>,
        place: &dyn Fn(RecordId) -> Option<u64>,
    ) {
        let PendingReleases { node, queue, unproven, next_send: _, drop_timer: _, refused } = self;
        // The release of a record that is closed is skipped.
        for &PendingRelease { record, not_before } in queue {
            if let Some(place) = place(record) {
                fingerprint.add_at(*node, mix(mix(1, place), fingerprint.ahead(not_before)));
            }
        }
        for place in unproven.iter().filter_map(|&record| place(record)) {
            fingerprint.add_at(*node, mix(2, place));
        }
        fingerprint.add_at(*node, u64::from(*refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_taken_out_in_their_order() {
        let mut pending = PendingReleases::of(NodeId::new(0));
        (0..3).for_each(|record| pending.push(RecordId::of(record), Instant::default()));
        assert_eq!(pending.len(), 3);
        let order: Vec<u32> = std::iter::from_fn(|| pending.pop()).map(|it| it.index).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn pause_doubles_with_each_refusal_up_to_its_bound() {
        let mut pending = PendingReleases::of(NodeId::new(0));
        assert_eq!(pending.pause(), PAUSES.0);
        pending.on_refused();
        assert_eq!(pending.pause(), 2 * PAUSES.0);
        (0..100).for_each(|_| pending.on_refused());
        assert_eq!(pending.pause(), PAUSES.1);
        pending.on_acknowledged();
        assert_eq!(pending.pause(), PAUSES.0);
    }

    #[test]
    fn pending_releases_give_back_the_room_of_a_burst() {
        let mut pending = PendingReleases::of(NodeId::new(0));
        (pending.queue, pending.unproven) =
            (VecDeque::with_capacity(50_000), Vec::with_capacity(50_000));
        pending.shrink(1);
        assert!(pending.queue.capacity() < 5_000 && pending.unproven.capacity() < 5_000);
    }
}
