//! The queue of the pending releases of one node that could not be sent when they fell due, or that
//! have to be sent again. They are sent after a pause, or first on the next connection.
//!
//! The queue only has the order: the record decides what is pending. When an entry has its turn, it
//! is skipped if its record is closed, or if no release is pending for the node any more.
//!
//! The hazard is an entry that waits for so long that another record has the same place and
//! generation. Then that record's release is sent a little early, if it is due: this does no harm.

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

/// The shortest and the longest pause before releases are sent to a node that refused some, or
/// whose outbox has no room.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A pending release, and the moment before which it is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PendingRelease {
    record: RecordId,
    not_before: Instant,
}

/// What has to be done with the first release of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the release is in flight, is not pending any more, or is sent at the deadline of
    /// its lock.
    Skip,
    /// Nothing yet: its moment has not come, so the release was queued again as the last one.
    Later,
    /// Send the release.
    Send(RecordId),
    /// The release was given up, because its keys have expired on the node.
    Lapsed {
        /// The record.
        record: RecordId,
        /// Whether the node may still execute a request of a lost connection.
        unproven: bool,
    },
}

/// The pending releases of one node.
#[derive(Debug, Clone)]
pub struct PendingReleases {
    node: NodeId,
    queue: VecDeque<PendingRelease>,
    /// Records with requests that were lost with a connection, and for which a proof may come.
    unproven: Vec<RecordId>,
    /// Starts to send the releases of the queue again, after a pause.
    next_send: Option<Timer>,
    /// Drops the pending releases when the node was not ready for too long.
    drop_timer: Option<Timer>,
    /// How many releases in a row the node refused.
    refused: u32,
}

impl PendingReleases {
    /// An empty queue for this node.
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

    /// Takes the next pending release out, and decides what has to be done with it.
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

    /// A request of this record was lost with a connection, and a proof may come that the node does
    /// not execute it any more.
    pub fn expect_proof(&mut self, record: RecordId) {
        self.unproven.push(record);
    }

    /// Takes out the records for which a proof may come.
    pub fn take_unproven(&mut self) -> Vec<RecordId> {
        std::mem::take(&mut self.unproven)
    }

    /// Starts the pause before the next releases are sent, unless it runs already.
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

    /// The node is ready: its releases are not dropped any more.
    pub fn on_admitted(&mut self, timers: &mut Timers<Due>) {
        self.refused = 0;
        timers.clear_in(&mut self.drop_timer);
    }

    /// The connection was lost: releases are sent on the next one. They are dropped if the node is
    /// not ready within `away`.
    pub fn on_disconnected(&mut self, away: Duration, timers: &mut Timers<Due>, now: Instant) {
        timers.clear_in(&mut self.next_send);
        if self.drop_timer.is_none() {
            let due = Due::DropReleases { node: self.node };
            self.drop_timer = Some(timers.set_at(now.saturating_add(away), due));
        }
    }

    /// The node was not ready for `away`: gives each release of the queue up, and begins to count
    /// the absence anew. Returns how many releases were pending, and their records, which may be
    /// over now.
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

    /// Gives back the memory that was not needed, if at most `most` records were open in the last
    /// interval.
    pub fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
        shrink_list(&mut self.unproven, most);
    }

    /// How many releases are queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The length of the pause before releases are sent again: it doubles with each refusal.
    fn pause(&self) -> Duration {
        (PAUSES.0 * (1 << self.refused.min(8))).min(PAUSES.1)
    }
}

#[cfg(feature = "testing")]
impl PendingReleases {
    /// Adds to a fingerprint what the next steps can depend on. `place` is nothing for a closed
    /// record.
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
