//! A request that waits for a key that others hold: what it knows of the nodes, and when it asks
//! them again if it stands in no line.

use std::time::Duration;

use crate::proto::error::HeldFor;
#[cfg(feature = "testing")]
use crate::proto::fingerprint::{Fingerprint, mix};
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::quorum::not_exceeded_by;
use crate::proto::time::Instant;

/// A moment that never comes.
pub const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Up to this many attempts in a row that every node refuses, the pauses get shorter, because the
/// key may become free soon. After more of them the holder seems to keep the key.
const PATIENCE: u32 = 8;

/// What a node last reported to a waiter about how long the key lives there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedTtl {
    /// Nothing yet.
    Nothing,
    /// The key expires at this moment, unless it is extended.
    FreeAt(Instant),
    /// The key has no ttl.
    NoTtl,
}

impl ReportedTtl {
    fn moment(&self) -> Option<Instant> {
        match *self {
            ReportedTtl::Nothing => None,
            ReportedTtl::FreeAt(at) => Some(at),
            ReportedTtl::NoTtl => Some(NEVER),
        }
    }
}

/// The pauses between the attempts of a waiter that stands in no line.
///
/// The hazard is a herd: waiters that ask at the same time get some nodes each, and none gets the
/// key. So the pauses double after each attempt that may have met another one, and get shorter
/// while all nodes refuse. If the holder keeps the key for long, they grow again, to spare the
/// nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pauses {
    longest: Duration,
    /// How many attempts in a row every node refused.
    refused: u32,
}

impl Pauses {
    /// Takes note of a lost attempt; `met` says whether it may have met another one. Returns the
    /// shortest and the longest pause before the next attempt. The longest one stays within
    /// `bounds`.
    pub fn after(&mut self, met: bool, bounds: (Duration, Duration)) -> (Duration, Duration) {
        self.refused = if met { 0 } else { self.refused.saturating_add(1) };
        let longest = match self.refused {
            0 => self.longest.saturating_mul(2),
            1..=PATIENCE => self.longest * 4 / 5,
            _ => self.longest.saturating_mul(5) / 4,
        };
        self.longest = longest.clamp(bounds.0, bounds.1);
        (self.longest / 2, self.longest)
    }
}

/// A request that waits for a key that others hold.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Whether the waiter stands in line on the nodes, which hand the key over to it. Otherwise it
    /// asks again after a pause.
    pub is_in_line: bool,
    /// When the key is free on each node; [`NEVER`] if the node did not report it.
    free_at: Vec<Instant>,
    /// What each node reported last. Unlike `free_at`, it is kept when the waiter asks again.
    reported: Vec<ReportedTtl>,
    /// When the waiter in line asks all nodes again, whatever was reported to it.
    pub poll_at: Instant,
    /// When the waiter in line asked the nodes last.
    pub polled_at: Instant,
    /// Whether the waiter got the key in line, and no node knew of another client there.
    pub was_alone: bool,
    /// How long the waiter pauses if it stands in no line.
    pub pauses: Pauses,
}

impl Waiting {
    /// A waiter that begins to wait now, and stands in no line.
    pub fn new(nodes: usize, now: Instant) -> Waiting {
        Waiting {
            is_in_line: false,
            free_at: vec![NEVER; nodes],
            reported: vec![ReportedTtl::Nothing; nodes],
            poll_at: now,
            polled_at: now,
            was_alone: false,
            pauses: Pauses::default(),
        }
    }

    /// Forgets when the key is free on each node, because that may have changed.
    pub fn forget_free_at(&mut self) {
        self.free_at.fill(NEVER);
    }

    /// Takes note of how long the key lives on a node: `left` is what `PTTL` returns there, or
    /// `None` if the node refused. Returns when the key is free there, or [`NEVER`] if that is not
    /// known.
    pub fn note_left(&mut self, node: NodeId, left: Option<i64>, now: Instant) -> Instant {
        let free_at = match left {
            Some(-2) => now,
            // A node expires keys at whole milliseconds.
            Some(millis @ 0..) => {
                now.saturating_add(Duration::from_millis(millis.unsigned_abs().saturating_add(1)))
            }
            _ => NEVER,
        };
        self.free_at[node.index()] = free_at;
        self.reported[node.index()] = match left {
            Some(-1) => ReportedTtl::NoTtl,
            Some(_) => ReportedTtl::FreeAt(free_at),
            None => ReportedTtl::Nothing,
        };
        free_at
    }

    /// For how long others still hold the key, by what the nodes reported last: until it can be
    /// free on `quorum` nodes. `None` if fewer nodes reported it, or if that moment has passed.
    pub fn held_for(&self, quorum: usize, now: Instant) -> Option<HeldFor> {
        let mut moments: Vec<Instant> =
            self.reported.iter().filter_map(ReportedTtl::moment).collect();
        match not_exceeded_by(quorum, &mut moments)? {
            NEVER => {
                let nodes = self
                    .reported
                    .iter()
                    .filter(|&&reported| reported == ReportedTtl::NoTtl)
                    .count();
                Some(HeldFor::Ever { nodes })
            }
            // The key has expired, and another client may have it by now.
            at if at <= now => None,
            at => Some(HeldFor::Left(at.saturating_since(now))),
        }
    }

    /// When the key is free on `quorum` nodes; [`NEVER`] if fewer have reported it.
    pub fn free_on(&self, quorum: usize) -> Instant {
        let mut moments = [NEVER; MAX_NODES];
        let moments = &mut moments[..self.free_at.len()];
        moments.copy_from_slice(&self.free_at);
        not_exceeded_by(quorum, moments).unwrap_or(NEVER)
    }

    /// Adds the waiter to a fingerprint.
    #[cfg(feature = "testing")]
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        let Waiting {
            is_in_line,
            free_at,
            // This field matters only for the text of an error.
            reported: _,
            poll_at,
            polled_at,
            // This field is read only when the lock is handed out.
            was_alone: _,
            pauses: Pauses { longest, refused },
        } = self;
        fingerprint.add(u64::from(*is_in_line));
        if *is_in_line {
            for (index, &moment) in free_at.iter().enumerate() {
                // A moment that never comes would look nearer as time passes.
                let ahead = if moment == NEVER { u64::MAX } else { fingerprint.ahead(moment) };
                fingerprint.add_at(NodeId::new(index), ahead);
            }
            fingerprint.add(fingerprint.ahead(*poll_at));
            fingerprint.add(fingerprint.ago(*polled_at, Duration::from_millis(4)));
        }
        fingerprint.add(mix(longest.as_nanos() as u64, u64::from(*refused.min(&(PATIENCE + 1)))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn pauses_double_when_attempts_meet_and_become_short_again_when_the_nodes_agree() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.after(false, BOUNDS), (BOUNDS.0 / 2, BOUNDS.0), "the first one");
        let doubled: Vec<u128> = (0..5).map(|_| pauses.after(true, BOUNDS).1.as_millis()).collect();
        assert_eq!(doubled, [10, 20, 40, 50, 50]);
        let agreed: Vec<u128> =
            (0..u64::from(PATIENCE)).map(|_| pauses.after(false, BOUNDS).1.as_millis()).collect();
        assert_eq!(agreed, [40, 32, 25, 20, 16, 13, 10, 8]);
    }

    #[test]
    fn pauses_grow_to_their_bound_while_one_client_keeps_the_key() {
        let mut pauses = Pauses::default();
        (0..PATIENCE).for_each(|_| assert_eq!(pauses.after(false, BOUNDS).1, BOUNDS.0));
        let before = pauses;
        assert!(pauses.after(false, BOUNDS).1 > BOUNDS.0);
        (0..20).for_each(|_| {
            pauses.after(false, BOUNDS);
        });
        assert_eq!(pauses.longest, BOUNDS.1);
        assert_ne!(before, pauses);
    }

    #[test]
    fn time_left_is_that_until_a_majority_can_be_free() {
        let mut waiting = Waiting::new(3, at(0));
        let held_for = |waiting: &Waiting, now| waiting.held_for(2, at(now));
        assert_eq!(held_for(&waiting, 0), None);
        waiting.note_left(NodeId::new(0), Some(29), at(0));
        assert_eq!(held_for(&waiting, 0), None, "one report of two");
        waiting.note_left(NodeId::new(2), Some(19), at(0));
        let left = |millis| Some(HeldFor::Left(Duration::from_millis(millis)));
        assert_eq!(held_for(&waiting, 5), left(25), "the second of them decides");
        assert_eq!(held_for(&waiting, 29), left(1));
        assert_eq!(held_for(&waiting, 30), None, "it has expired");
        waiting.note_left(NodeId::new(0), Some(-1), at(0));
        assert_eq!(held_for(&waiting, 5), Some(HeldFor::Ever { nodes: 1 }));
        waiting.note_left(NodeId::new(1), Some(-1), at(0));
        assert_eq!(held_for(&waiting, 5), Some(HeldFor::Ever { nodes: 2 }));
    }

    #[test]
    fn key_is_free_when_a_majority_of_the_nodes_said_so() {
        let mut waiting = Waiting::new(3, at(0));
        assert_eq!(waiting.free_on(2), NEVER);
        assert_eq!(waiting.note_left(NodeId::new(0), Some(-2), at(7)), at(7), "it is gone");
        assert_eq!(waiting.note_left(NodeId::new(1), Some(9), at(7)), at(17));
        assert_eq!(waiting.note_left(NodeId::new(2), None, at(7)), NEVER, "it refused");
        assert_eq!((waiting.free_on(1), waiting.free_on(2)), (at(7), at(17)));
        waiting.forget_free_at();
        assert_eq!(waiting.free_on(1), NEVER);
    }
}
