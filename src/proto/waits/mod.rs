//! The waits: the requests that wait for a key, their order inside this client, and when a request
//! asks again for a key that other clients hold.
//!
//! The waits see no vote and no deadline. A [`WaitEvent`] of the locks says what happened, and the
//! waits call the locks for what has to be done. What one request knows of the nodes (`Waiting`) is
//! kept in the request, so it is gone when the request ends.
//!
//! The hazard is a request that is never woken. So after every decision about a request that waits,
//! it has a timer, or it asks the nodes.

mod busy_lines;
#[cfg(feature = "testing")]
mod fingerprint;
mod pauses;
mod queue;
#[cfg(test)]
mod tests;

use crate::proto::ids::Op;
use crate::proto::key::KeyHash;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::time::Instant;
use busy_lines::BusyLines;
use queue::Queues;

/// What is known of the keys that requests wait for.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    queues: Queues,
    busy_lines: BusyLines,
}

impl Waits {
    /// Acts on what the locks report.
    pub fn handle(&mut self, event: WaitEvent, locks: &mut Locks, now: Instant) {
        match event {
            WaitEvent::AttemptLost { op, next, last } => {
                self.begin_wait(locks, op, next, last, now);
            }
            WaitEvent::AttemptWon { op, key } => self.note_line(locks, op, key, now),
            WaitEvent::Attempted { queue, no_quorum } => {
                self.queues[queue as usize].no_quorum = no_quorum;
            }
            WaitEvent::PauseOver { op } => self.on_waiter_due(locks, op, now),
            WaitEvent::GiveUp { op } => self.end_wait(locks, op, now),
            WaitEvent::Left { op, queue } => {
                // The queue may be closed: its last request may have got the key.
                if let Some(queue) = self.queues.get_mut(queue as usize) {
                    queue.leave(op);
                }
            }
            WaitEvent::Vacated { queue } => self.hand_over(locks, queue, now),
            WaitEvent::Written { op, node } => locks.on_key_written(op, node, now),
        }
    }

    /// Whether other clients stand in line for this key, as far as the client remembers.
    pub fn has_line(&self, key: KeyHash, now: Instant) -> bool {
        self.busy_lines.contain(key, now)
    }

    /// The next request for this key joins its line first, as if others stood there: it never
    /// overtakes one of them.
    pub fn expect_line(&mut self, key: KeyHash, now: Instant) {
        self.busy_lines.note(key, now);
    }

    /// Forgets every queue; called in a forked process.
    pub fn clear(&mut self) {
        self.queues.clear();
    }

    /// Takes note, when a waiter has got its lock, of whether other clients stand in line for the
    /// key.
    fn note_line(&mut self, locks: &mut Locks, op: Op, key: KeyHash, now: Instant) {
        match locks.ops_mut().waiting_mut(op) {
            Some(waiting) if waiting.was_alone => self.busy_lines.forget(key),
            Some(waiting) if waiting.is_in_line => self.busy_lines.note(key, now),
            _ => {}
        }
    }
}
