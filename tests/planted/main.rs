//! Plants faults into a copy of the tree, one at a time, and checks that a test finds each of them.
//! The library has none of these faults: they are a patch, `faults.patch`.
//!
//! ```text
//! cargo test --all-features --test planted                               # the patch applies
//! cargo test --all-features --test planted -- --ignored --nocapture      # each fault is found
//! PLANTED_ONLY=Join cargo test --all-features --test planted -- --ignored --nocapture    # some
//! bash tests/planted/edit                                                # changes the patch
//! ```
//!
//! The copy is `target/planted/tree`. It is built in `target/planted/build`, once for all faults:
//! the variable `PLANTED_FAULT` switches one on. It must not be built in `target`: cargo gives the
//! two trees the same names there, and could take the library of one for that of the other. The
//! copy has the files of the work tree, also those that are not committed, and the same
//! `Cargo.lock`; the build needs no network.
//!
//! The hazard is a check that fails for another reason than the fault. So the search, the
//! simulation and the tests of the core also run in the copy without a fault, and have to pass
//! there.

#![allow(clippy::disallowed_methods, reason = "it measures how long a check takes")]

mod patch;
mod tree;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use patch::Patch;
use tree::{Outcome, Tree};

/// A check that has to find a fault.
#[derive(Debug, Clone, Copy)]
enum Check {
    /// `tests/model` finds it, within the bounds of `of_fault` in its plans.
    Search,
    /// `tests/sim`: at least one of its first seeds fails.
    Simulation,
    /// This test of `tests/coordinator` fails. It plays an order that chance hardly ever finds.
    Core(&'static str),
    /// This test of `tests/members` fails.
    List(&'static str),
    /// `tests/members/random_changes.rs`: at least one of its first seeds fails.
    Lists,
}

/// For each fault: its name in the patch, what it breaks, and the checks that all have to find it.
/// The search cannot find `SplitOfMixedRounds`: a waiter that wrongly gives its nodes up for
/// another waiter joins the line again, which breaks no safety and ends well.
const FAULTS: [(&str, &str, &[Check]); 33] = [
    ("QuorumOfHalf", "half of the nodes are a quorum", &[Check::Search]),
    ("DeadlineFromReply", "the deadline counts from the reply to the question", &[Check::Search]),
    ("QuarantinedGrantCounts", "the grant of a node in quarantine counts", &[Check::Search]),
    (
        "QuarantinedExtendCounts",
        "the yes of a node in quarantine to an extend of an unproven key counts",
        &[Check::Search],
    ),
    ("HealInLostRound", "a lost extend heals the nodes that lost the key", &[Check::Search]),
    ("ReleaseWhileHeld", "a pending release is sent while the lock is held", &[Check::Search]),
    ("AdoptKeepsToken", "an adopt writes no new token", &[Check::Search]),
    (
        "RepeatAfterRelease",
        "an extend whose script the node forgot is repeated after the release",
        &[Check::Search],
    ),
    ("CutWithoutRelease", "a question of a lost connection has no release", &[Check::Search]),
    ("NoWriteBack", "a number counts before a majority has stored it", &[Check::Search]),
    ("WriteBackWithoutToken", "a write-back does not look at the token", &[Check::Search]),
    ("LostCounterFromZero", "a node that forgot its counter counts from zero", &[Check::Search]),
    ("QuarantinedCounterCounts", "a node in quarantine votes for numbers", &[Check::Search]),
    ("CounterWithoutFloor", "a counter that was started in quarantine counts", &[Check::Search]),
    ("AbsentCounterCounts", "a counter that `INCR` started gives a vote", &[Check::Search]),
    ("DeniedTransactionCounts", "a key that another client holds is a vote", &[Check::Search]),
    ("DeadlineFromPush", "a lock that is won in line counts from when the message was read", BOTH),
    ("QuarantinedPushCounts", "the message of a node in quarantine counts", BOTH),
    ("JoinsTwice", "a token stands in a line twice", BOTH),
    ("JoinAfterWithdrawal", "a token joins again after its withdrawal", BOTH),
    (
        "OneBaseForAll",
        "the latest base of any node counts for all",
        &[Check::Search, Check::Core(BASES)],
    ),
    ("SplitOfMixedRounds", "a split is judged from several polls", &[Check::Core(SPLITS)]),
    (
        "StepWithoutWait",
        "the list is changed again without a wait",
        &[Check::List(OLD_LIST), Check::Lists],
    ),
    ("WaitWithoutLease", "the wait of a step lacks the 15 s", &[Check::List(OLD_LIST)]),
    ("WaitWithoutTtl", "the wait of a step lacks `max_ttl`", &[Check::List(OLD_LIST)]),
    ("OneToldOnly", "a step needs only one member that was told", &[Check::List(ONE_TOLD)]),
    ("WaitWithoutRecheck", "members are not read again after the wait", &[Check::List(LOST_TOLD)]),
    ("UndoWithoutBallot", "an undo writes the list before back", &[Check::List(UNDO)]),
    ("IdBackUnread", "a client gives an id back and reads no others", &[Check::List(ID_BACK)]),
    ("ListForever", "a client never reads its list again", &[Check::List(STOOD_STILL)]),
    (
        "NewerListCounted",
        "a node with a newer list counts by the older one",
        &[Check::List(STOOD_STILL), Check::Lists],
    ),
    ("LearnerCounts", "a learner counts", &[Check::List(LEARNER), Check::Lists]),
    ("BlankNodeCounts", "a node without its list counts", &[Check::List(BLANK), Check::Lists]),
];
const BOTH: &[Check] = &[Check::Search, Check::Simulation];
const BASES: &str = "line::deadline_of_a_hand_over_counts_from_the_base_of_each_node";
const SPLITS: &str = "line_troubles::hand_over_does_not_count_after_a_later_poll_created_the_key";

const OLD_LIST: &str = "steps::lock_by_an_old_list_ends_before_the_list_is_two_steps_ahead";
const ONE_TOLD: &str = "steps::list_that_one_member_was_told_is_not_changed_again";
const LOST_TOLD: &str =
    "steps::member_that_lost_the_list_in_the_wait_is_told_again_and_the_wait_begins_anew";
const UNDO: &str = "steps::lists_after_an_undo_have_later_epochs_than_the_step_that_was_undone";
const ID_BACK: &str = "steps::master_that_lost_its_data_gets_no_list_back_that_is_two_steps_old";
const STOOD_STILL: &str =
    "changes::client_that_stood_still_reads_the_list_before_it_asks_for_a_lock";
const LEARNER: &str = "changes::learner_does_not_count";
const BLANK: &str = "changes::node_without_its_list_does_not_count";

/// The name of the test in the search, in the simulation and in the random changes of lists that
/// looks for the fault in `PLANTED_FAULT`.
const BY_NAME: &str = "planted_fault_is_found";

fn faults_patch() -> Patch {
    Patch::read(&std::fs::read_to_string(tree::root().join(PATCH)).expect("the patch is tracked"))
}

const PATCH: &str = "tests/planted/faults.patch";

#[test]
fn planted_faults_can_be_put_into_this_tree() {
    let patched = tree::patched(&faults_patch());
    assert!(!patched.is_empty(), "{PATCH} changes no file");
}

#[test]
fn planted_faults_are_those_of_the_patch() {
    let named: BTreeSet<String> = FAULTS.iter().map(|fault| fault.0.to_owned()).collect();
    assert_eq!(faults_patch().faults(), named, "{PATCH}, and the list here");
}

/// Takes some minutes, half of them for the build of the copy; `.ci/run` has a step for it.
#[test]
#[ignore = "needs minutes: cargo test --all-features --test planted -- --ignored --nocapture"]
fn planted_faults_are_found() {
    let tree = Tree::of(&faults_patch());
    tree.build();
    assert_passes(&tree, "model", "every_order_of_events_within_small_bounds_is_safe");
    assert_passes(&tree, "sim", "no_even_seed_finds_two_holders_or_anything_left");
    let only = std::env::var("PLANTED_ONLY").unwrap_or_default();
    let faults = FAULTS.into_iter().filter(|fault| fault.0.contains(&only));
    let wanted: Vec<_> = faults
        .flat_map(|(fault, breaks, checks)| checks.iter().map(move |&check| (fault, breaks, check)))
        .collect();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let look = || {
        while let Some(&(fault, breaks, check)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !finds(&tree, check, fault, breaks) {
                missed.lock().expect("no thread panics with it").push((fault, check));
            }
        }
    };
    // Most checks have one thread. A thread that panics makes the scope panic.
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, |count| count.get().min(4));
        (0..threads).for_each(|_| drop(scope.spawn(look)));
    });
    let missed = missed.into_inner().expect("no thread panics with it");
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Whether a check finds a fault. Prints the output of the check.
fn finds(tree: &Tree, check: Check, fault: &str, breaks: &str) -> bool {
    let start = Instant::now();
    let (found, output) = match check {
        Check::Search => found_by(tree, "model", fault),
        Check::Simulation => found_by(tree, "sim", fault),
        Check::Lists => found_by(tree, "members", fault),
        Check::Core(test) => fails(tree, "coordinator", test, fault),
        Check::List(test) => fails(tree, "members", test, fault),
    };
    let verdict = if found { "found" } else { "NOT found" };
    let time = start.elapsed();
    // The result lines of these runs are left out, so that no script adds them to the results of
    // the tests.
    let lines = output.lines().filter(|it| !it.contains("test result:"));
    let text: String = lines.map(|it| format!("{it}\n")).collect();
    // One call, because checks of other threads print as well.
    println!("{text}{fault} ({breaks}): {verdict} by {check:?} in {time:.1?}\n");
    found
}

/// Whether the test that looks for the fault finds it.
fn found_by(tree: &Tree, binary: &str, fault: &str) -> (bool, String) {
    let test = match binary {
        "sim" => format!("planted::{BY_NAME}"),
        "members" => format!("random_changes::{BY_NAME}"),
        _ => BY_NAME.to_owned(),
    };
    let (outcome, output) = tree.run(binary, &test, Some(fault));
    (outcome == Outcome::Passed, output)
}

/// Whether the test fails with the fault. Without it the test has to pass.
fn fails(tree: &Tree, binary: &str, test: &str, fault: &str) -> (bool, String) {
    assert_passes(tree, binary, test);
    let (outcome, output) = tree.run(binary, test, Some(fault));
    (outcome == Outcome::Failed, output)
}

fn assert_passes(tree: &Tree, binary: &str, test: &str) {
    let (outcome, output) = tree.run(binary, test, None);
    assert_eq!(outcome, Outcome::Passed, "without a fault, {binary} {test}:\n{output}");
}
