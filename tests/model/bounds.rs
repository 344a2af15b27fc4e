//! What a search may do, and how often: its bounds. Everything that is not bounded here may happen
//! in any order and as often as it can.

use crate::step::Step;

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
    /// Nodes that are flushed.
    pub flushes: u8,
    /// Nodes that forget their scripts.
    pub forgotten_scripts: u8,
    /// How often time passes while messages are on their way, or a connection is being opened. Time
    /// passes freely when nothing is.
    pub delays: u8,
    /// Moments at which a client does not run although something is due: the process is stopped.
    pub stalls: u8,
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
    /// The steps that every run begins with.
    pub prefix: &'static [Step],
    /// No state is looked at that is more steps away from the first.
    pub depth: usize,
}

impl Plan {
    /// Two clients and three nodes, to any depth.
    pub const fn two_by_three(bounds: Bounds) -> Plan {
        Plan { clients: 2, nodes: 3, bounds, prefix: &[], depth: usize::MAX }
    }
}
