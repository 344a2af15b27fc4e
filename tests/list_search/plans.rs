//! The bounds of the searches: who may do what, and how often. Each plan is complete within them.
//!
//! In all plans a tool may die at every moment and start again, one node at most loses its data
//! (or one after the other does), and clients with every list that was ever told to a node may
//! count the nodes. A set of nodes is a number with one bit for each: `0b0111` is the first three.

use crate::steps::Step;
use crate::world::{Fault, Set};

/// The bounds of a search.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many nodes there are.
    pub nodes: u8,
    /// The members of the first list.
    pub members: Set,
    /// For each tool: the lists that it may be asked for when it starts.
    pub targets: &'static [&'static [Set]],
    /// Whether a tool also makes a step if it finds the list that it is asked for. This is an undo:
    /// the next list is the present one.
    pub undo: bool,
    /// The highest epoch.
    pub epochs: u8,
    /// How many ballots there may be for each next list.
    pub ballots: u8,
    /// Which nodes may lose their data.
    pub losers: Set,
    /// How often a node does.
    pub losses: u8,
    /// Steps that come first.
    pub prefix: &'static [Step],
}

/// 3 -> 4 -> 3: the third of three nodes is replaced. One tool, no losses, one ballot for each
/// list.
const REPLACE: Plan = Plan {
    nodes: 4,
    members: 0b0111,
    targets: &[&[0b1011]],
    undo: false,
    epochs: 3,
    ballots: 1,
    losers: 0b1111,
    losses: 0,
    prefix: &[],
};

/// The same with two ballots.
const REPLACE_BALLOTS: Plan = Plan { ballots: 2, ..REPLACE };

/// One ballot, and the first node, which stays a member, loses its data once.
const REPLACE_LOSE_FIRST: Plan = Plan { losers: 0b0001, losses: 1, ..REPLACE };

/// The same, and the first and the second node lose their data, or one of them twice.
const REPLACE_LOSE_TWICE: Plan = Plan { losers: 0b0011, losses: 2, ..REPLACE };

/// One of the four nodes loses its data once.
const REPLACE_LOSE_ANY: Plan = Plan { losers: 0b1111, ..REPLACE_LOSE_FIRST };

/// The third node is replaced by two tools at once, with one ballot for each list.
const REPLACE_TWO_TOOLS: Plan = Plan { targets: &[&[0b1011], &[0b1011]], ballots: 1, ..REPLACE };

/// 1 -> 2 -> 3 by one tool; a node loses its data, and then the
/// same or another does.
const GROW: Plan =
    Plan { nodes: 3, members: 0b001, targets: &[&[0b111]], losers: 0b111, losses: 2, ..REPLACE };

/// 1 -> 2 -> 3 by one tool, while another undoes it. No losses, two ballots for each list.
const UNDO: Plan =
    Plan { targets: &[&[0b111], &[0b001]], undo: true, losses: 0, ballots: 2, ..GROW };

/// The same, and a node loses its data. One ballot.
const UNDO_LOSE: Plan = Plan { losses: 1, ballots: 1, ..UNDO };

/// 1 -> 2 -> 3 by one tool, while another wants the first and the third node only: 1 -> 2.
const TWO_TARGETS: Plan = Plan { targets: &[&[0b111], &[0b101]], undo: false, ..UNDO_LOSE };

/// 2 -> 3 -> 4 -> 3 by one tool, and any node loses its data.
pub const GROW_AND_REPLACE: Plan =
    Plan { members: 0b0011, targets: &[&[0b1101]], epochs: 4, ..REPLACE_LOSE_ANY };

/// For a fault only: a member that has accepted the list of one tool loses its data, gets its id
/// back, and accepts the list of the other. What comes after that is searched.
const ACCEPTED_TWICE: Plan = Plan {
    targets: &[&[0b1011], &[0b0111]],
    undo: true,
    losers: 0b0010,
    losses: 1,
    ballots: 2,
    prefix: &[
        Step::Start { tool: 0, node: 0, target: 0b1011 },
        Step::Promise { tool: 0, node: 0 },
        Step::Promise { tool: 0, node: 1 },
        Step::Accept { tool: 0, node: 0 },
        Step::Accept { tool: 0, node: 1 },
        Step::Lose { node: 1 },
        Step::Offer { node: 1, list: 0 },
        Step::Return { node: 1, list: 0 },
        Step::Start { tool: 1, node: 2, target: 0b0111 },
        Step::Promise { tool: 1, node: 1 },
        Step::Promise { tool: 1, node: 2 },
        Step::Accept { tool: 1, node: 1 },
        Step::Accept { tool: 1, node: 2 },
        Step::Tell { tool: 1, node: 2 },
        Step::Tell { tool: 0, node: 3 },
        Step::Tell { tool: 0, node: 0 },
        Step::Tell { tool: 0, node: 2 },
        Step::Tick,
        Step::Tick,
        Step::Tick,
        Step::Agree { tool: 0, node: 0 },
    ],
    ..REPLACE
};

/// What every test run searches.
pub const QUICK: &[(&str, Plan)] = &[
    ("replace", REPLACE),
    ("grow", GROW),
    ("undo", UNDO),
    ("undo, a node loses its data", UNDO_LOSE),
    ("two targets", TWO_TARGETS),
];

/// What each run of a release build searches. A debug build takes minutes for it.
pub const RELEASE: &[(&str, Plan)] =
    &[("replace, the first node loses its data", REPLACE_LOSE_FIRST)];

/// What only `MODEL=full` searches.
pub const FULL: &[(&str, Plan)] = &[
    ("replace, two ballots", REPLACE_BALLOTS),
    ("replace, any node loses its data", REPLACE_LOSE_ANY),
    ("replace, two nodes lose their data", REPLACE_LOSE_TWICE),
    ("replace, two tools", REPLACE_TWO_TOOLS),
    ("grow and replace, any node loses its data", GROW_AND_REPLACE),
];

/// The plan in which a fault shows.
pub const fn of_fault(fault: Fault) -> Plan {
    match fault {
        Fault::NoBallots | Fault::EpochGoesBack => UNDO,
        Fault::OneToldOnly
        | Fault::NoWait
        | Fault::WaitWithoutLease
        | Fault::WaitWithoutTtl
        | Fault::NoLease => REPLACE,
        Fault::LostCountsAsTold | Fault::ReturnedWithoutOthers => REPLACE_LOSE_FIRST,
        Fault::ReturnedVotesInBallots => ACCEPTED_TWICE,
        Fault::LearnerCounts
        | Fault::NewerListCounted
        | Fault::SmallListReadsAll
        | Fault::BlankCounts => GROW,
    }
}
