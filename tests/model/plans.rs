//! What is searched: by default in a few seconds, in full, and for each planted fault.

use crate::bounds::{Bounds, Plan};
#[cfg(redlatch_planted_faults)]
use crate::step::Step;

const NONE: Bounds = Bounds {
    acquires: [0; 3],
    extends: 0,
    releases: 0,
    cancels: 0,
    hand_offs: 0,
    adopts: 0,
    cuts: 0,
    restarts: 0,
    flushes: 0,
    forgotten_scripts: 0,
    delays: 0,
    stalls: 0,
};
const ALONE: Bounds = Bounds { acquires: [1, 0, 0], ..NONE };
const BOTH: Bounds = Bounds { acquires: [1, 1, 0], ..NONE };

/// Searched by every test run. All are complete within their bounds.
pub const QUICK: &[(&str, Plan)] = &[
    (
        "extend, release, flush of scripts",
        plan(Bounds { extends: 1, releases: 1, forgotten_scripts: 1, ..ALONE }),
    ),
    ("cut", plan(Bounds { cuts: 1, ..ALONE })),
    ("delay, cancel", plan(Bounds { delays: 1, cancels: 1, ..ALONE })),
];

/// Searched in a release build. All are complete within their bounds.
pub const FULL: &[(&str, Plan)] = &[
    ("two acquire, cancel, release", plan(Bounds { cancels: 1, releases: 1, ..BOTH })),
    ("two extends, cut, release", plan(Bounds { extends: 2, cuts: 1, releases: 1, ..ALONE })),
    ("hand-off, adopt", plan(Bounds { hand_offs: 1, adopts: 1, ..BOTH })),
    ("extend, flush, delay", plan(Bounds { extends: 1, flushes: 1, delays: 1, ..ALONE })),
    ("restart, two acquire", plan(Bounds { restarts: 1, ..BOTH })),
    ("cut, two acquire", plan(Bounds { cuts: 1, ..BOTH })),
];

/// Too large to be complete: bounded by the depth, and by the number of states.
pub const DEEP: &[(&str, Plan)] = &[
    ("delay, two acquire", plan(Bounds { delays: 1, ..BOTH })),
    (
        "five nodes",
        Plan { nodes: 5, depth: 16, ..plan(Bounds { cuts: 1, restarts: 1, extends: 1, ..BOTH }) },
    ),
    (
        "three clients",
        Plan { clients: 3, depth: 12, ..plan(Bounds { acquires: [1, 1, 1], restarts: 1, ..NONE }) },
    ),
];

const fn plan(bounds: Bounds) -> Plan {
    Plan::two_by_three(bounds)
}

/// In which bounds each planted fault is found.
#[cfg(redlatch_planted_faults)]
pub fn of_fault(fault: redlatch::proto::planted::Fault) -> Plan {
    use redlatch::proto::planted::Fault;
    match fault {
        Fault::QuorumOfHalf => plan(ALONE),
        Fault::DeadlineFromReply => plan(Bounds { delays: 1, ..BOTH }),
        Fault::QuarantinedGrantCounts => plan(Bounds { restarts: 1, ..BOTH }),
        Fault::QuarantinedExtendCounts => {
            Plan { prefix: DOUBTFUL, ..plan(Bounds { extends: 1, flushes: 1, delays: 3, ..BOTH }) }
        }
        Fault::HealInLostRound => plan(Bounds { extends: 1, flushes: 1, delays: 1, ..ALONE }),
        Fault::ReleaseWhileHeld => plan(Bounds { extends: 1, cuts: 1, ..ALONE }),
        Fault::AdoptKeepsToken => plan(Bounds { hand_offs: 1, adopts: 2, ..ALONE }),
        Fault::RepeatAfterRelease => {
            plan(Bounds { extends: 1, releases: 1, forgotten_scripts: 1, ..ALONE })
        }
        Fault::CutWithoutRelease => plan(Bounds { cuts: 1, ..ALONE }),
    }
}

/// Client 0 holds nodes 0 and 1. Node 2 grants client 1, is flushed, and executes the late `SET` of
/// client 0: a search from the first state does not come so far.
#[cfg(redlatch_planted_faults)]
const DOUBTFUL: &[Step] = &[
    Step::Acquire { client: 0 },
    Step::ToNode { client: 0, node: 0 },
    Step::ToClient { client: 0, node: 0 },
    Step::ToNode { client: 0, node: 1 },
    Step::ToClient { client: 0, node: 1 },
    Step::Time,
    Step::Turn { client: 0 },
    Step::Acquire { client: 1 },
    Step::ToNode { client: 1, node: 2 },
    Step::Flush { node: 2 },
    Step::ToNode { client: 0, node: 2 },
    Step::ToClient { client: 1, node: 2 },
    Step::ToClient { client: 0, node: 2 },
    Step::ToClient { client: 0, node: 2 },
];
