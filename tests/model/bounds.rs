//! The bounds of a search: which things may happen, and how often. Whatever has no bound here may
//! happen in any order and any number of times.

use std::time::Duration;

use crate::step::Step;
use crate::time::TTL;

/// How often each thing may happen in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bounds {
    /// Acquires of each client.
    pub acquires: [u8; 3],
    /// Extends, of all clients together. All numbers below are for all clients together, too.
    pub extends: u8,
    /// Releases by the caller. A lock that is not released ends at its deadline.
    pub releases: u8,
    /// Cancels of an acquire that is in flight.
    pub cancels: u8,
    /// Locks that are given away.
    pub hand_offs: u8,
    /// Attempts to adopt the lock that was given away.
    pub adopts: u8,
    /// Connections that break. What was sent on them may still arrive.
    pub cuts: u8,
    /// Restarts of a node, with all of its data or with none.
    pub restarts: u8,
    /// Nodes that an operator starts again with the data of another node. At most one in a run: see
    /// `names`.
    pub copies: u8,
    /// Nodes that are stopped for a while: they execute nothing.
    pub freezes: u8,
    /// How often time passes while a node is stopped. That costs nothing of `delays`, unless
    /// something else is in flight.
    pub frozen_moments: u8,
    /// Nodes that are flushed.
    pub flushes: u8,
    /// Keys of the lock that an operator deletes on a node. Then two clients may hold the lock, but
    /// their fencing numbers must still differ.
    pub deletes: u8,
    /// Nodes that forget their scripts.
    pub forgotten_scripts: u8,
    /// How often time passes while messages are in flight, or a connection is being opened.
    /// Otherwise time passes without limit.
    pub delays: u8,
    /// How often time passes while a client has something due and does not run, because its process
    /// is stopped.
    pub stalls: u8,
}

/// Fencing numbers in a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fences {
    /// Whether each client asks for a fencing number. The others are clients that know no fencing.
    pub clients: [bool; 3],
    /// The counter of each node when a run begins; 0 for none.
    pub counters: &'static [u64],
    /// Whether the counters were started from a clock that is ahead of all nodes by a fifth of
    /// `max_ttl`; the most that a client accepts is a fourth.
    pub from_clock: bool,
}

/// A search: its clients, nodes and bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How many clients there are.
    pub clients: usize,
    /// How many nodes there are.
    pub nodes: usize,
    /// What may happen.
    pub bounds: Bounds,
    /// Which clients ask for fencing numbers, if any does.
    pub fences: Option<Fences>,
    /// How long an acquire waits for the lock: zero, or in line.
    pub waits: Duration,
    /// The ttl of a key that is handed over to a waiter that has not polled for a while.
    pub hand_over_ttl: Duration,
    /// The steps that every run begins with.
    pub prefix: &'static [Step],
    /// The search goes no further from a state that is this many steps from the first one.
    pub depth: usize,
}

impl Plan {
    /// Whether a counter may be started from a clock within a run.
    pub fn loses_counters(&self) -> bool {
        let absent = |fences: Fences| fences.counters.iter().take(self.nodes).any(|&it| it == 0);
        let forgets = self.bounds.restarts + self.bounds.copies + self.bounds.flushes > 0;
        self.fences.is_some_and(|fences| forgets || absent(fences))
    }

    /// A plan for two clients and three nodes, to any depth.
    pub const fn two_by_three(bounds: Bounds) -> Plan {
        Plan {
            clients: 2,
            nodes: 3,
            bounds,
            fences: None,
            waits: Duration::ZERO,
            hand_over_ttl: TTL,
            prefix: &[],
            depth: usize::MAX,
        }
    }
}
