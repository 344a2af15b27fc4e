//! A search through every order of events of the protocol that changes the list of masters one
//! node at a time, while locks are held. It shares no code with the library, which does not change
//! lists yet: nodes, tools and clients are small models of their own.
//!
//! ```text
//! cargo test --release --test list_search -- --nocapture
//! MODEL=full cargo test --release --test list_search full -- --nocapture    # minutes
//! ```
//!
//! **The rule**: no two clients believe in the same lock at the same time.
//!
//! **A list** has an epoch and members. **A node** keeps a text: a list and a stage. `told` is the
//! stage of a member that has a new list whose wait may not be over, `agreed` of one where it is,
//! `learner` of a node that will be a member. A node that lost its data has no text, and its votes
//! do not count for `max_ttl`. **A tool** gets the members to decide on the next list in ballots
//! (single-decree Paxos), writes it as `told` to the new node and to so many members that no
//! quorum is left without one, waits for `max_ttl` and the lease, and writes `agreed`. It may die
//! at every moment and start again, from what any node has.
//!
//! **Clients have no state of their own here.** A client may begin at any time and stand still for
//! any time, so in each state there can be a client with each list that a node ever had. It sends a
//! request to a node only if it read a fitting text of it within the lease, and believes until
//! `max_ttl` after the beginning of its attempt. So a node can have voted for a client if it had a
//! fitting text in the last `LEASE + TTL - 1` ticks ([`world::VOTES`]): a request may be under way
//! until the attempt ends. A node has one holder until then, so two attempts that both win have
//! disjoint votes, and attempts with disjoint votes do not touch each other. Two clients can hold
//! at once exactly if the nodes that can have voted have two disjoint quorums. The one thing that
//! clients write, the id of a node that lost its data, is a step: the client decides, and at any
//! later time the node gets the text.
//!
//! **Time** is counted in ticks: `max_ttl` and the lease have two each. An event has the tick in
//! which it happens. Clocks run at the same speed. A message is one step at its node; what a tool
//! read may be old when it acts.
//!
//! **Faults**: each trap of the protocol can be planted, and the search has to find two holders.
//!
//! Two rules have to be as strict as here. A tool no longer counts a node that it told, and that
//! lost its data before the end of the wait ([`Fault::LostCountsAsTold`]). A client gives an id
//! back only if it has read as many *others* as a quorum has nodes, so never in a list of one or
//! two ([`Fault::SmallListReadsAll`]).
//!
//! The hazard is a model that allows less than a real client, tool or node does.

#![allow(clippy::disallowed_methods, reason = "it measures how long a search takes")]

mod plans;
mod search;
mod steps;
mod world;

use std::time::Instant;

use plans::Plan;
use search::Found;
use world::{Fault, World};

/// The most states of a plan.
const MOST: usize = 20_000_000;

/// Searches a plan, and prints what it found.
fn run(name: &str, plan: &Plan, fault: Option<Fault>) -> Found {
    let start = Instant::now();
    let found = search::search(plan, fault, MOST);
    println!("{name}: {} states, depth {}, {:.1?}", found.states, found.depth, start.elapsed());
    found
}

/// Describes the steps to two holders.
fn trace(plan: &Plan, fault: Option<Fault>, found: &Found) -> String {
    let steps = plan.prefix.iter().chain(found.violation.iter().flatten());
    let mut world = World::new(plan.members, plan.losses);
    let mut text = String::new();
    for &step in steps {
        assert!(steps::take(&mut world, step, plan, fault), "{step:?} is not possible");
        text += &format!("{step:?}\n");
    }
    let holders = world.two_holders(fault).expect("the last step gave two holders");
    let [first, second] = holders.map(|(list, votes)| format!("{votes:#b} by {list:?}"));
    format!("{text}two clients can hold: with votes of {first}, and of {second}")
}

fn run_complete(plans: &[(&str, Plan)]) {
    for (name, plan) in plans {
        let found = run(name, plan, None);
        assert!(!found.cut_off, "{name} is not complete");
        assert!(found.violation.is_none(), "{name}:\n{}", trace(plan, None, &found));
    }
}

/// Plants a fault: the search finds two holders.
fn finds(fault: Fault) {
    let plan = plans::of_fault(fault);
    let found = run(&format!("{fault:?}"), &plan, Some(fault));
    assert!(found.violation.is_some(), "{fault:?} is not found");
    println!("{}", trace(&plan, Some(fault), &found));
}

#[test]
fn every_order_within_small_bounds() {
    run_complete(plans::QUICK);
}

/// In a release build only.
#[test]
fn every_order_within_larger_bounds() {
    if !cfg!(debug_assertions) {
        run_complete(plans::RELEASE);
    }
}

/// With `MODEL=full` only: minutes in a release build.
#[test]
fn every_order_within_the_full_bounds() {
    if std::env::var("MODEL").is_ok_and(|which| which == "full") {
        run_complete(plans::FULL);
    }
}

/// A test for each fault of the protocol: with it the search finds two holders.
macro_rules! finds {
    ($($test:ident: $fault:ident,)*) => {
        $(
            #[test]
            fn $test() {
                finds(Fault::$fault);
            }
        )*
    };
}

finds! {
    next_list_without_ballots_gives_two_holders: NoBallots,
    list_that_only_one_member_has_gives_two_holders: OneToldOnly,
    next_step_without_a_wait_gives_two_holders: NoWait,
    wait_without_the_lease_gives_two_holders: WaitWithoutLease,
    wait_without_the_ttl_gives_two_holders: WaitWithoutTtl,
    learner_that_counts_gives_two_holders: LearnerCounts,
    node_that_counts_with_a_newer_list_gives_two_holders: NewerListCounted,
    id_that_is_given_back_without_reading_others_gives_two_holders: ReturnedWithoutOthers,
    id_that_is_given_back_in_a_list_of_one_gives_two_holders: SmallListReadsAll,
    member_that_lost_the_list_and_counts_as_told_gives_two_holders: LostCountsAsTold,
    ballot_of_a_node_that_lost_its_promises_gives_two_holders: ReturnedVotesInBallots,
    node_that_counts_without_a_list_gives_two_holders: BlankCounts,
    node_that_goes_back_an_epoch_gives_two_holders: EpochGoesBack,
    client_that_never_reads_again_gives_two_holders: NoLease,
}

/// Also a list of two, where the client has read the one other member.
#[test]
fn id_that_is_given_back_in_a_list_of_two_gives_two_holders_in_the_full_bounds() {
    if std::env::var("MODEL").is_ok_and(|which| which == "full") {
        let (fault, plan) = (Fault::SmallListReadsAll, plans::GROW_AND_REPLACE);
        let found = run("a list of two", &plan, Some(fault));
        assert!(found.violation.is_some(), "{fault:?} is not found in a list of two");
        println!("{}", trace(&plan, Some(fault), &found));
    }
}
