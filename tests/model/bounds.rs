//! What a search may do, and how often: its bounds. Everything that is not bounded here may happen
//! in any order and as often as it can.

use std::time::Duration;

use crate::step::Step;
use crate::time::TTL;

/// How often each thing may happen in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bounds {
    /// Acquires of each client.
    pub acquires: [u8; 3],
    /// Extends, of all clients together; as all numbers below.
    pub extends: u8,
    /// Releases by the caller. A lock that is not released ends at its deadline.
    pub releases: u8,
    /// Cancels of an acquire that is in flight.
    pub cancels: u8,
    /// Locks that are given away.
    pub hand_offs: u8,
    /// Attempts to adopt the lock that was given away.
    pub adopts: u8,
    /// Connections that break. What was sent may still arrive.
    pub cuts: u8,
    /// Restarts of a node, with all of its data or with none.
    pub restarts: u8,
    /// Nodes that an operator restores from the data of another node, and starts again. At most one
    /// in a run: see `names`.
    pub copies: u8,
    /// Nodes that are stopped for a while: they execute nothing.
    pub freezes: u8,
    /// How often time passes while a node is stopped: that costs none of the `delays`, unless
    /// something else is on its way.
    pub frozen_moments: u8,
    /// Nodes that are flushed.
    pub flushes: u8,
    /// Keys of the lock that an operator deletes on a node. Then two clients may hold the lock, but
    /// their fencing numbers differ all the same.
    pub deletes: u8,
    /// Nodes that forget their scripts.
    pub forgotten_scripts: u8,
    /// How often time passes while messages are on their way, or a connection is being opened. Time
    /// passes freely when nothing is.
    pub delays: u8,
    /// Moments at which a client does not run although something is due: the process is stopped.
    pub stalls: u8,
}

/// Fencing numbers in a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fences {
    /// Whether each client asks for them. The others are clients that know no fences.
    pub clients: [bool; 3],
    /// The counter of each node when a run begins; 0 for none.
    pub counters: &'static [u64],
    /// Whether the counters were started from a clock that is ahead of all nodes, by a fifth of
    /// `max_ttl`: a fourth is the most that a client accepts.
    pub from_clock: bool,
}

/// What is searched.
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
    /// How long an acquire waits for the lock: not at all, or in line.
    pub waits: Duration,
    /// How long a key lives that is handed over to a waiter that has not polled a moment ago.
    pub hand_over_ttl: Duration,
    /// The steps that every run begins with.
    pub prefix: &'static [Step],
    /// The search looks at no state that is more steps away from the first one.
    pub depth: usize,
}

impl Plan {
    /// Whether a counter may be started from a clock in a run.
    pub fn loses_counters(&self) -> bool {
        let absent = |fences: Fences| fences.counters.iter().take(self.nodes).any(|&it| it == 0);
        let forgets = self.bounds.restarts + self.bounds.copies + self.bounds.flushes > 0;
        self.fences.is_some_and(|fences| forgets || absent(fences))
    }

    /// Two clients and three nodes, to any depth.
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
