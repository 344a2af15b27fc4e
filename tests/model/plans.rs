//! The plans of all searches: the quick ones, the larger ones, and those for planted faults.

use crate::bounds::{Bounds, Fences, Plan};
use crate::step::Step;
use crate::time::{SHORT_TTL, WAIT};

const NONE: Bounds = Bounds {
    acquires: [0; 3],
    extends: 0,
    releases: 0,
    cancels: 0,
    hand_offs: 0,
    adopts: 0,
    cuts: 0,
    restarts: 0,
    copies: 0,
    freezes: 0,
    frozen_moments: 0,
    flushes: 0,
    deletes: 0,
    forgotten_scripts: 0,
    delays: 0,
    stalls: 0,
};
const ALONE: Bounds = Bounds { acquires: [1, 0, 0], ..NONE };
const BOTH: Bounds = Bounds { acquires: [1, 1, 0], ..NONE };

/// The plans that every test run searches. All are complete within their bounds.
pub const QUICK: &[(&str, Plan)] = &[
    (
        "extend, release, flush of scripts",
        plan(Bounds { extends: 1, releases: 1, forgotten_scripts: 1, ..ALONE }),
    ),
    ("cut", plan(Bounds { cuts: 1, ..ALONE })),
    ("delay, cancel", plan(Bounds { delays: 1, cancels: 1, ..ALONE })),
    ("two clients, release", plan(Bounds { releases: 1, ..BOTH })),
    ("copy", plan(Bounds { copies: 1, ..ALONE })),
    ("fenced, cut, extend", fenced(Bounds { extends: 1, cuts: 1, ..ALONE }, UNEQUAL)),
    ("hand-over in flight, cancel", released(Bounds { cancels: 1, ..IN_LINE })),
    ("hand-over in flight, cut", released(Bounds { cuts: 1, ..IN_LINE })),
    ("hand-over in flight, freeze", released(Bounds { freezes: 1, frozen_moments: 3, ..IN_LINE })),
];

/// The plans that `.ci/run` searches in a release build. All are complete within their bounds.
pub const GATE: &[(&str, Plan)] = &[
    ("two acquire, cancel, release", plan(Bounds { cancels: 1, releases: 1, ..BOTH })),
    ("two extends, cut, release", plan(Bounds { extends: 2, cuts: 1, releases: 1, ..ALONE })),
    ("hand-off, adopt", plan(Bounds { hand_offs: 1, adopts: 1, ..BOTH })),
    ("restart, two acquire", plan(Bounds { restarts: 1, ..BOTH })),
    ("cut, two acquire", plan(Bounds { cuts: 1, ..BOTH })),
    ("copy, extend", plan(Bounds { copies: 1, extends: 1, ..ALONE })),
    ("extend of a copied key that had ended", after(COPIED_AFTER_ITS_END, EXTENDS_OF_COPY)),
    ("fenced, copy", fenced(Bounds { copies: 1, ..ALONE }, UNEQUAL)),
    ("two fenced, release", fenced(Bounds { releases: 1, ..BOTH }, UNEQUAL)),
    ("two fenced, delete", fenced(Bounds { deletes: 1, ..BOTH }, ONE_BEHIND)),
    ("fenced again, cut", again(Bounds { acquires: [2, 0, 0], cuts: 1, ..AGAIN })),
    ("fenced again, flush", again(Bounds { acquires: [2, 0, 0], flushes: 1, ..AGAIN })),
    ("two wait", waiting(BOTH)),
    ("wait, restart", Plan { prefix: GRANTED_LATE, ..waiting(Bounds { restarts: 1, ..BOTH }) }),
    ("hand-over", in_line(IN_LINE)),
    ("hand-over, cancel", in_line(Bounds { cancels: 1, ..IN_LINE })),
    ("hand-over in flight, restart", released(Bounds { restarts: 1, ..IN_LINE })),
    ("hand-over in flight, delay", released(Bounds { delays: 1, ..IN_LINE })),
    ("short hand-over, freeze", short(Bounds { freezes: 1, frozen_moments: 2, ..IN_LINE })),
    ("fenced hand-over", Plan { fences: Some(UNEQUAL), ..in_line(IN_LINE) }),
    ("three, hand-over in flight, cancel", three(Bounds { cancels: 1, ..THREE })),
    ("three, hand-over in flight, cut", three(Bounds { cuts: 1, ..THREE })),
    (
        "three, hand-over in flight, freeze",
        three(Bounds { freezes: 1, frozen_moments: 2, ..THREE }),
    ),
    (
        "three, lines that differ, cut",
        Plan { prefix: LINES_DIFFER, ..three(Bounds { cuts: 1, ..THREE }) },
    ),
    ("three, two hand-overs", three(Bounds { releases: 3, ..THREE })),
];

/// The plans that are searched before a release, besides those of `GATE`. All are complete within
/// their bounds.
pub const FULL: &[(&str, Plan)] = &[
    ("extend, flush, delay", plan(Bounds { extends: 1, flushes: 1, delays: 1, ..ALONE })),
    ("extend after a flush", after(DOUBTFUL, EXTEND_AFTER_FLUSH)),
    ("copy, two acquire", plan(Bounds { copies: 1, ..BOTH })),
    ("extend of a copied key", after(COPIED, EXTEND_OF_COPY)),
    ("fenced, flush in flight", FLUSHED_IN_FLIGHT),
    ("wait, release", waiting(Bounds { releases: 1, ..BOTH })),
    ("wait, cancel", waiting(Bounds { cancels: 1, ..BOTH })),
    (
        "three, lines that differ, freeze",
        Plan { prefix: LINES_DIFFER, ..three(Bounds { freezes: 1, frozen_moments: 2, ..THREE }) },
    ),
    ("three, hand-over in flight, restart", three(Bounds { restarts: 1, ..THREE })),
    ("fenced again, two acquire", again(Bounds { releases: 2, ..AGAIN })),
    ("fenced again, delete", again(Bounds { deletes: 1, ..AGAIN })),
    ("fenced beside plain", fenced(Bounds { releases: 2, ..BOTH }, BESIDE_PLAIN)),
];

/// Plans that are not complete: up to a million states of each are searched.
pub const WIDE: &[(&str, Plan)] = &[
    ("hand-over, delay", in_line(Bounds { delays: 1, ..IN_LINE })),
    ("hand-over, cut", in_line(Bounds { cuts: 1, ..IN_LINE })),
    ("hand-over, restart", in_line(Bounds { restarts: 1, ..IN_LINE })),
    ("extend after a flush, a step earlier", after(DOUBTFUL_SOON, EXTEND_AFTER_FLUSH)),
    ("hand-over in flight, restart, delay", released(Bounds { restarts: 1, delays: 1, ..IN_LINE })),
    ("short hand-over, restart", short(Bounds { restarts: 1, ..IN_LINE })),
    ("two fenced, restart", fenced(Bounds { restarts: 1, ..BOTH }, UNEQUAL)),
];

/// Plans that are too large to be complete: their depth and the number of states are bounded.
pub const DEEP: &[(&str, Plan)] = &[
    ("delay, two acquire", plan(Bounds { delays: 1, ..BOTH })),
    (
        "three, two hand-overs, restart, delay",
        three(Bounds { releases: 3, restarts: 1, delays: 1, ..THREE }),
    ),
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

/// Two clients, an extend and a flush. There would be two holders if the key of one client could
/// stand and count where the node forgot the other's key.
const EXTEND_AFTER_FLUSH: Bounds = Bounds { extends: 1, flushes: 1, delays: 2, ..BOTH };
const EXTEND_OF_COPY: Bounds = Bounds { copies: 1, extends: 1, delays: 2, ..BOTH };
const EXTENDS_OF_COPY: Bounds = Bounds { copies: 1, extends: 2, delays: 3, ..BOTH };

/// A fenced acquire is in flight when its node is flushed.
const FLUSHED_IN_FLIGHT: Plan = {
    let bounds = Bounds { acquires: [2, 1, 0], releases: 1, cancels: 1, flushes: 1, ..NONE };
    Plan { prefix: FLUSHED, ..fenced(bounds, UNEQUAL) }
};

/// Clients that wait for the lock in line.
const fn waiting(bounds: Bounds) -> Plan {
    Plan { waits: WAIT, ..plan(bounds) }
}

/// Client 1 holds the lock, and client 0 waits for it in line.
const fn in_line(bounds: Bounds) -> Plan {
    Plan { prefix: HELD_AND_IN_LINE, ..waiting(bounds) }
}

const fn released(bounds: Bounds) -> Plan {
    Plan { prefix: RELEASING, ..waiting(bounds) }
}

/// A plan after a pause so long that the node hands the key over with a short ttl.
const fn short(bounds: Bounds) -> Plan {
    Plan { prefix: RELEASING_LATE, hand_over_ttl: SHORT_TTL, ..waiting(bounds) }
}

/// Client 1 releases the lock, and clients 0 and 2 wait for it in line.
const fn three(bounds: Bounds) -> Plan {
    Plan { clients: 3, prefix: RELEASING_BEFORE_TWO, ..waiting(bounds) }
}

const fn after(prefix: &'static [Step], bounds: Bounds) -> Plan {
    Plan { prefix, ..plan(bounds) }
}

const fn fenced(bounds: Bounds, fences: Fences) -> Plan {
    Plan { fences: Some(fences), ..plan(bounds) }
}

/// Client 0 had a fencing number before, so it asks by a transaction.
const fn again(bounds: Bounds) -> Plan {
    Plan { prefix: &GIVEN, ..fenced(bounds, UNEQUAL) }
}

const AGAIN: Bounds = Bounds { acquires: [2, 1, 0], releases: 1, ..NONE };

/// The counters were started from a clock that is ahead, so a lost counter starts below them.
const UNEQUAL: Fences = Fences { clients: [true; 3], counters: &[5, 1, 1], from_clock: true };
const ONE_BEHIND: Fences = Fences { counters: &[5, 1, 5], ..UNEQUAL };
const BESIDE_PLAIN: Fences = Fences { clients: [true, false, true], ..UNEQUAL };

/// The plans that find a planted fault. Each of them alone finds it.
pub fn of_fault(fault: &str) -> Vec<Plan> {
    let one = match fault {
        "QuarantinedExtendCounts" => {
            return vec![
                after(DOUBTFUL, EXTEND_AFTER_FLUSH),
                after(COPIED, EXTEND_OF_COPY),
                after(COPIED_AFTER_ITS_END, EXTENDS_OF_COPY),
            ];
        }
        "QuorumOfHalf" => plan(ALONE),
        "DeadlineFromReply" => plan(Bounds { delays: 1, ..BOTH }),
        "QuarantinedGrantCounts" => plan(Bounds { restarts: 1, ..BOTH }),
        "HealInLostRound" => plan(Bounds { extends: 1, flushes: 1, delays: 1, ..ALONE }),
        "ReleaseWhileHeld" => plan(Bounds { extends: 1, cuts: 1, ..ALONE }),
        "AdoptKeepsToken" => plan(Bounds { hand_offs: 1, adopts: 2, ..ALONE }),
        "RepeatAfterRelease" => {
            plan(Bounds { extends: 1, releases: 1, forgotten_scripts: 1, ..ALONE })
        }
        "CutWithoutRelease" => plan(Bounds { cuts: 1, ..ALONE }),
        "NoWriteBack" => fenced(Bounds { releases: 1, ..BOTH }, UNEQUAL),
        "WriteBackWithoutToken" => fenced(Bounds { deletes: 1, ..BOTH }, ONE_BEHIND),
        "CounterWithoutFloor" => Plan { prefix: CANCELLED, ..FLUSHED_IN_FLIGHT },
        "DeniedTransactionCounts" => again(AGAIN),
        "AbsentCounterCounts" => Plan {
            prefix: RESTARTED,
            ..fenced(Bounds { acquires: [2, 0, 0], restarts: 1, releases: 1, ..NONE }, UNEQUAL)
        },
        "LostCounterFromZero" | "QuarantinedCounterCounts" => Plan {
            prefix: RESTARTED,
            ..fenced(Bounds { restarts: 1, releases: 1, ..BOTH }, UNEQUAL)
        },
        "DeadlineFromPush" | "OneBaseForAll" => released(Bounds { delays: 1, ..IN_LINE }),
        "QuarantinedPushCounts" => {
            Plan { prefix: GRANTED_LATE, ..waiting(Bounds { restarts: 1, ..BOTH }) }
        }
        "JoinsTwice" => in_line(IN_LINE),
        "JoinAfterWithdrawal" => in_line(Bounds { forgotten_scripts: 1, cancels: 1, ..IN_LINE }),
        _ => panic!("{fault} is no fault that the search looks for"),
    };
    vec![one]
}

/// The bounds for client 0 to get in line, and for a release after that.
const IN_LINE: Bounds = Bounds { acquires: [2, 1, 0], releases: 2, ..NONE };

const THREE: Bounds = Bounds { acquires: [2, 1, 1], ..IN_LINE };

/// Defines a function for each of these steps.
macro_rules! functions {
    ($($name:ident($($field:ident),*) = $step:ident;)*) => {
        $(const fn $name($($field: u8),*) -> Step {
            Step::$step { $($field),* }
        })*
    };
}

functions! {
    to(client, node) = ToNode;
    from(client, node) = ToClient;
    time() = Time;
    settle() = Settle;
    turn(client) = Turn;
    acquire(client) = Acquire;
    extend(client) = Extend;
    cancel(client) = Cancel;
    release(client) = Release;
    flush(node) = Flush;
    copy(node, from) = Copy;
}

/// An array of steps. In a plain array each step would be formatted onto a line of its own.
macro_rules! steps {
    ($($name:ident($($argument:literal),*))*) => { [$($name($($argument),*)),*] };
}

/// Client 1 waits in line for the lock of client 0, which releases it. Then client 0 waits in line
/// for client 1's lock, which that client hands over on release, because it won it in line.
const HELD_AND_IN_LINE: &[Step] =
    &steps![acquire(0) settle() acquire(1) settle() release(0) settle() acquire(0) settle()];

/// Client 0 waits in line, and the release of client 1 is in flight.
const RELEASING: &[Step] = &after_in_line::<9>(&steps![release(1)]);

/// The release of client 1 is in flight, and client 0 has not polled for the longest pause.
const RELEASING_LATE: &[Step] = &after_in_line::<10>(&steps![time() release(1)]);

/// The release of client 1 is in flight, and clients 0 and 2 wait in line.
const RELEASING_BEFORE_TWO: &[Step] = &after_in_line::<11>(&steps![
    acquire(2) settle() release(1)
]);

/// Clients 0 and 2 join the line for client 1's lock at the same time, and only on node 1 client 2
/// is the first. Then client 1 releases.
const LINES_DIFFER: &[Step] = &joined::<40>(
    HELD_AND_IN_LINE.split_at(6).0,
    &steps![
        acquire(0) to(0, 0) from(0, 0) to(0, 1) from(0, 1) to(0, 2) from(0, 2) to(0, 0) from(0, 0)
        to(0, 1) from(0, 1) to(0, 2) from(0, 2) acquire(2) to(2, 0) from(2, 0) to(2, 1) from(2, 1)
        to(2, 2) from(2, 2) to(2, 0) from(2, 0) to(2, 1) from(2, 1) to(2, 2) from(2, 2) to(0, 0)
        to(2, 1) to(0, 1) to(0, 2) to(2, 0) to(2, 2) settle() release(1)
    ],
);

const fn after_in_line<const ALL: usize>(more: &[Step]) -> [Step; ALL] {
    joined(HELD_AND_IN_LINE, more)
}

/// Client 0 holds nodes 0 and 1, and its `SET` for node 2 has not arrived. Client 1 waits in line
/// and has the key on node 2.
const GRANTED_LATE: &[Step] =
    &steps![acquire(0) to(0, 0) from(0, 0) to(0, 1) from(0, 1) acquire(1) to(1, 2) settle()];

/// Client 0 holds nodes 0 and 1. Node 2 grants client 1, is flushed, and then executes client 0's
/// late `SET`. A search from the first state does not get this far.
const DOUBTFUL: &[Step] = &steps![
    acquire(0) to(0, 0) from(0, 0) to(0, 1) from(0, 1) time() turn(0) acquire(1) to(1, 2) flush(2)
    to(0, 2) from(1, 2) from(0, 2) from(0, 2)
];

/// The same, one step earlier: client 0 has not read the answer of node 2.
const DOUBTFUL_SOON: &[Step] = DOUBTFUL.split_at(DOUBTFUL.len() - 1).0;

/// Client 0 holds nodes 0 and 1. Node 2 grants client 1 the key, and comes back as a copy of node
/// 1: with client 0's key, which it never granted.
const COPIED: &[Step] = &steps![
    acquire(0) to(0, 0) from(0, 0) to(0, 1) from(0, 1) time() turn(0) acquire(1) to(1, 2)
    copy(2, 1)
];

/// The same, but node 2 had granted client 0 the key earlier. That key expired, because an extend
/// reached only the other nodes.
const COPIED_AFTER_ITS_END: &[Step] = &steps![
    acquire(0) to(0, 0) to(0, 1) from(0, 1) to(0, 2) from(0, 2) time() turn(0) from(0, 0) extend(0)
    to(0, 0) from(0, 0) to(0, 1) from(0, 1) time() acquire(1) to(1, 2) copy(2, 1)
];

/// Client 0 gets the fencing number 6 from nodes 0 and 1, and releases.
const GIVEN: [Step; 16] = steps![
    acquire(0) to(0, 0) from(0, 0) to(0, 1) from(0, 1) to(0, 1) from(0, 1) release(0) to(0, 0)
    to(0, 1) to(0, 2) to(0, 2) from(0, 0) from(0, 1) from(0, 2) from(0, 2)
];

/// After `GIVEN`, node 1 restarts empty.
const RESTARTED: &[Step] = &after_given::<17>(&[Step::Restart { node: 1, empty: true }]);

/// After `GIVEN`, client 1 asks for the lock. Node 1 is flushed and then executes that request.
const FLUSHED: &[Step] = &after_given::<19>(&steps![acquire(1) flush(1) to(1, 1)]);

/// The same, and client 1 cancels its request.
const CANCELLED: &[Step] = &after_given::<32>(&steps![
    acquire(1) flush(1) to(1, 1) from(0, 1) to(0, 1) from(0, 1) to(1, 0) from(1, 0) from(1, 1)
    from(1, 1) to(1, 1) from(1, 1) to(1, 2) cancel(1) to(1, 0) from(1, 0)
]);

const fn after_given<const ALL: usize>(more: &[Step]) -> [Step; ALL] {
    joined(&GIVEN, more)
}

const fn joined<const ALL: usize>(first: &[Step], more: &[Step]) -> [Step; ALL] {
    let mut all = [Step::Time; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < first.len() { first[at] } else { more[at - first.len()] };
        at += 1;
    }
    all
}
