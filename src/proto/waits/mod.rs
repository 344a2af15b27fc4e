//! The waits: the requests that wait for a key, their order inside this client, and when a request
//! asks again for a key that other clients hold.
//!
//! They are not the locks: they see no vote and no deadline. What happened comes in as a
//! [`WaitEvent`] of the locks, and what has to be done is asked of the locks. What a single request
//! believes of the nodes (`Waiting`) is kept in the request, so it is gone when the request ends.
//! Only the waits read it or write to it.
//!
//! The one hazard is a request that is never woken: a request that pauses has a timer after every
//! decision about it, or asks.

mod contention;
#[cfg(feature = "testing")]
mod fingerprint;
mod queue;
mod subscription;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::proto::ids::Op;
use crate::proto::key::KeyHash;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::time::Instant;
use contention::{BusyLines, Crowds, RoundTrip};
use queue::Queues;

/// What is known of the keys that requests wait for.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    queues: Queues,
    busy_lines: BusyLines,
    crowds: Crowds,
    /// About how long a node takes to answer.
    round_trip: RoundTrip,
}

impl Waits {
    /// Acts on what the locks report.
    pub fn handle(&mut self, event: WaitEvent, locks: &mut Locks, now: Instant) {
        match event {
            WaitEvent::AttemptLost { op, next, last } => {
                self.begin_wait(locks, op, next, last, now);
            }
            WaitEvent::AttemptWon { op, key } => {
                self.note_line(locks, op, key, now);
                self.note_crowd(locks, op, key, now);
            }
            WaitEvent::Attempted { queue, no_quorum } => {
                self.queues[queue as usize].no_quorum = no_quorum;
            }
            WaitEvent::PauseOver { op } => self.on_waiter_due(locks, op, now),
            WaitEvent::GiveUp { op } => self.end_wait(locks, op, now),
            WaitEvent::Left { op, queue } => {
                // The last one of a queue may have been handed the key, and the queue closed.
                if let Some(queue) = self.queues.get_mut(queue as usize) {
                    queue.leave(op);
                }
            }
            WaitEvent::Vacated { queue, given_back } => {
                self.hand_over(locks, queue, given_back, now);
            }
            WaitEvent::Written { op, node, key, ours } => {
                self.notify_waiter(locks, op, (node, key), ours, now);
            }
            WaitEvent::Seen { op, node, key, left } => {
                self.on_ttl_reported(locks, op, (node, key), left, now);
            }
        }
    }

    /// Whether other clients stand in line for this key, as far as the client remembers.
    pub fn has_line(&self, key: KeyHash, now: Instant) -> bool {
        self.busy_lines.contain(key, now)
    }

    /// Takes note of how long a node took to answer.
    pub fn note_round_trip(&mut self, took: Duration) {
        self.round_trip.add(took);
    }

    /// Forgets every queue; called in a forked process.
    pub fn clear(&mut self) {
        self.queues.clear();
    }

    /// A waiter has got its lock: the next request for it begins with what this one learned.
    fn note_crowd(&mut self, locks: &mut Locks, op: Op, key: KeyHash, now: Instant) {
        let Some(waiting) = locks.ops_mut().waiting_mut(op) else { return };
        if !waiting.is_in_line() {
            waiting.crowd.note_won();
            let crowd = waiting.crowd;
            self.crowds.note(key, crowd, now);
        }
    }

    /// A waiter has got its lock: takes note of whether other clients stand in line, too.
    fn note_line(&mut self, locks: &mut Locks, op: Op, key: KeyHash, now: Instant) {
        match locks.ops_mut().waiting_mut(op) {
            Some(waiting) if waiting.was_alone => self.busy_lines.forget(key),
            Some(waiting) if waiting.is_in_line() => self.busy_lines.note(key, now),
            _ => {}
        }
    }
}
