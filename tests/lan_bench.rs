//! The bench `lan`: its options, its table, and the simulation that it measures.
//!
//! A bench has no test harness of its own, so its files are included here. Time is simulated.

#[path = "support/lan/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod lan;
#[path = "../benches/lan/options.rs"]
mod options;
#[path = "../benches/lan/report.rs"]
mod report;

use std::time::Duration;

use lan::{Counts, Figures, Kind, Setting};
use options::Options;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn read(line: &str) -> Result<Options, String> {
    let words = ["lan"].into_iter().chain(line.split_whitespace());
    kit::read_from(words.map(str::to_owned)).map_err(|error| error.to_string())
}

fn run(kind: Kind, contenders: usize, hold: u64, length: u64) -> Counts {
    let (hold, length) = (millis(hold), millis(length));
    lan::run(&Setting { kind, contenders, hold, length }, 1)
}

#[test]
fn bad_options_are_refused_and_the_error_says_why() {
    for (line, part) in [
        ("--contenders 2,x", "'x' for '--contenders"),
        ("--contenders 0", "0 is not in 1..=1000"),
        ("--contenders 1001", "1001 is not in 1..=1000"),
        ("--hold=-1", "it is no time from 0ns to 4s, in units of 1ms"),
        ("--hold 4001", "the ttl is 10s"),
        ("--seconds 0", "'0' for '--seconds"),
        ("--seconds inf", "it is no time from 1ns to 900s"),
        ("--seeds 0", "0 is not in 1.."),
        ("--seeds", "a value is required for '--seeds"),
        ("--only fare", "\"fare\" is neither bare nor fenced"),
        ("--only plain+fenced", "\"plain\" is neither"),
        ("--only 3of2", "1 to 64 keys"),
        ("--only 0of2", "1 to 64 keys"),
        ("--only 1of1001", "from 1000 at most"),
        ("--only bare+fenced", "is not fenced"),
        ("--rounds 3", "unexpected argument '--rounds'"),
    ] {
        let problem = read(line).expect_err(line);
        assert!(problem.contains(part), "{line}: {problem}");
    }
}

#[test]
fn each_kind_has_a_name_by_which_it_is_asked_for() {
    for kind in Kind::USUAL {
        assert_eq!(Kind::named(&kind.to_string()), Ok(kind));
        assert!(Kind::USUAL.contains(&kind.bare()), "{kind}");
    }
    let options = read("--only plain,fenced,bare+2of10 --hold 0.5").expect("three kinds");
    assert_eq!(options.kinds, [Kind::PLAIN, Kind::FENCED, Kind::BARE.keys(2, 10)]);
    assert_eq!(options.hold, [Duration::from_micros(500)]);
}

#[test]
fn a_run_is_long_enough_for_twenty_turns_unless_its_length_is_set() {
    let usual = read("").expect("no option");
    assert_eq!(usual.length(2, millis(0)), millis(1_000));
    assert_eq!(usual.length(64, millis(10)), millis(20 * 64 * 10 + 20 * 32));
    let set = read("--seconds 0.25").expect("a length");
    assert_eq!(set.length(64, millis(10)), millis(250));
}

/// The counts of two contenders in one second: one had the lock three times, the other once.
fn counts() -> Counts {
    Counts {
        length: millis(1_000),
        wins: vec![3, 1],
        commands: 5 * 8,
        hand_overs: vec![2_000, 1_000, 9_000],
        waits: vec![100, 100, 40_000, 200],
        gaps: vec![700, 300],
    }
}

#[test]
fn figures_are_those_of_the_counts() {
    let figures = Figures::of(&[counts()]);
    let expected = Figures {
        acquisitions_per_s: 4.0,
        hand_overs_per_s: 3.0,
        commands: 2.0,
        gap_p50_us: 0.3,
        gap_p99_us: 0.7,
        // A turn takes 4,000 ns: two contenders times 2,000 ns.
        wait_p99_turns: 10.0,
        jain: 16.0 / 20.0,
        without: 0.0,
    };
    assert_eq!(figures, expected);
    let idle = Counts { wins: vec![4, 0], ..counts() };
    let both = Figures::of(&[counts(), idle]);
    assert_eq!((both.acquisitions_per_s, both.jain, both.without), (4.0, 0.65, 0.5));
}

#[test]
fn a_row_has_the_ratios_to_the_bare_loop_of_the_same_keys() {
    let ours = Figures::of(&[counts()]);
    let bare = Figures { acquisitions_per_s: 2.0, hand_overs_per_s: 0.0, ..ours };
    let kinds = [(Kind::PLAIN, ours), (Kind::PLAIN.keys(2, 10), ours), (Kind::BARE, bare)];
    let cells = |row: &String| -> Vec<String> {
        row.split('|').map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<Vec<String>> = report::rows(8, millis(10), &kinds).iter().map(cells).collect();
    assert_eq!(rows[0][..7], ["8", "10", "plain", "4", "2.00", "3", "-"]);
    assert_eq!(rows[1][..7], ["8", "10", "2of10", "4", "-", "3", "-"], "no such loop was measured");
    let head = report::begin(&read("").expect("no option"));
    assert_eq!(head.lines().last().map(|rule| rule.matches('|').count()), Some(rows[0].len() + 1));
}

#[test]
fn every_kind_gets_locks_and_one_seed_comes_to_the_same_counts() {
    let fenced_sets = Kind::FENCED.keys(2, 3);
    for kind in Kind::USUAL.into_iter().chain([fenced_sets]) {
        for (contenders, hold) in [(2, 0), (6, 1)] {
            let counts = run(kind, contenders, hold, 60);
            let served = contenders - counts.without();
            assert!(served > 1, "{kind}, {contenders} contenders: {counts:?}");
            assert_eq!(counts, run(kind, contenders, hold, 60), "{kind}");
        }
    }
}

#[test]
fn contenders_hold_different_keys_at_one_time() {
    let [shared, apart] =
        [(2, 2), (2, 10)].map(|(n, of)| run(Kind::PLAIN.keys(n, of), 6, 10, 200).acquisitions());
    assert!(apart > 2 * shared, "{apart} {shared}");
}

/// A message takes 0.1 ms on average. The claim of a fenced lock adds a round trip, and another one
/// writes the number back if the counters of the nodes differ.
#[test]
fn waiter_has_the_lock_a_round_trip_after_its_release() {
    let gap = |kind| Figures::of(&[run(kind, 4, 1, 100)]).gap_p50_us;
    let [plain, fenced] = [Kind::PLAIN, Kind::FENCED].map(gap);
    assert!((150.0..250.0).contains(&plain), "{plain}");
    assert!((350.0..750.0).contains(&fenced), "{fenced}");
}

#[test]
fn waiters_have_the_lock_as_often_as_each_other() {
    for kind in [Kind::PLAIN, Kind::FENCED] {
        let counts = run(kind, 8, 1, 200);
        assert!(counts.jain() >= 990, "{kind}: {counts:?}");
    }
}
