//! The parts of the bench `pair` that compute: arrivals, the end of a round, ratios and options.
//!
//! A bench has no test harness of its own, so its files are included here. No server is started.

#![cfg(feature = "net")]
#![allow(dead_code, reason = "the parts that need servers run only in the bench")]
#![allow(clippy::disallowed_methods, reason = "the bench measures real time")]

#[path = "../benches/pair/arrivals.rs"]
mod arrivals;
#[path = "../benches/pair/delete.rs"]
mod delete;
#[path = "../benches/pair/options.rs"]
mod options;
#[path = "../benches/pair/report.rs"]
mod report;
mod support;
#[path = "../benches/pair/tally.rs"]
mod tally;

use std::time::{Duration, Instant};

use kit::Measured;

use arrivals::Arrivals;
use options::{Options, Rate};
use report::{Case, Load, Side};
use tally::Tally;

/// The number of nodes that the bench gives to its report.
const NODES: usize = 5;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn arrivals_of_one_seed_are_always_the_same() {
    let draw = |seed| Arrivals::draw(seed, 1_000.0, SECOND).collect::<Vec<_>>();
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn arrivals_are_in_order_and_end_with_the_round() {
    let arrivals: Vec<Duration> = Arrivals::draw(1, 20_000.0, SECOND).collect();
    assert!(arrivals.windows(2).all(|pair| pair[0] <= pair[1]));
    assert!(*arrivals.last().expect("20,000 are expected") < SECOND);
}

/// The bounds are five standard deviations wide; the seeds are fixed, so the test cannot fail by
/// chance.
#[test]
fn arrivals_are_a_poisson_process_of_the_rate_that_was_asked_for() {
    const RATE: f64 = 20_000.0;
    for seed in 0..20 {
        let arrivals: Vec<f64> =
            Arrivals::draw(seed, RATE, SECOND).map(|at| at.as_secs_f64()).collect();
        let count = arrivals.len() as f64;
        assert!((count - RATE).abs() < 5.0 * RATE.sqrt(), "seed {seed}: {count} arrivals");
        // Of exponential gaps the part that is longer than t times the mean is e^-t.
        for times in [0.1, 1.0, 3.0] {
            let long = arrivals.windows(2).filter(|pair| pair[1] - pair[0] > times / RATE).count();
            let expected = (-times).exp();
            let deviation = (expected * (1.0 - expected) / count).sqrt();
            let part = long as f64 / count;
            assert!((part - expected).abs() < 5.0 * deviation, "seed {seed}: {part} > {times}");
        }
    }
}

#[test]
fn percentiles_of_a_round_are_those_of_its_acquires() {
    let mut tally = Tally::begin(SECOND);
    let now = Instant::now();
    for millis in 1..=1_000 {
        tally.acquired(now - Duration::from_millis(millis));
        tally.completed();
    }
    tally.end();
    let round = tally.round();
    let near = |micros: f64, millis: f64| (micros / (millis * 1e3) - 1.0).abs() < 0.02;
    assert!(near(round.p50_us(), 500.0), "{round:?}");
    assert!(near(round.p99_us(), 990.0), "{round:?}");
    assert_eq!(round.pairs(), 1_000.0);
}

#[test]
fn answers_after_the_end_of_a_round_do_not_count() {
    let mut tally = Tally::begin(Duration::from_millis(1));
    let now = Instant::now();
    while tally.released().is_some() {
        tally.acquired(now);
    }
    assert_eq!(tally.released(), None);
    tally.acquired(now - 3 * SECOND);
    let round = tally.round();
    assert!(round.quantile_us(1.0) < 1e6, "{round:?}");
}

#[test]
fn a_ratio_is_shown_if_both_of_its_sides_were_measured() {
    let round = |_, _| {
        let mut tally = Tally::begin(SECOND);
        tally.end();
        tally.round()
    };
    // The floor has no figures with a frozen node here.
    let sides = [Side::Ours, Side::Floor, Side::OursFrozen].into_iter();
    let case = Case::new(Load::Closed(1), sides, Measured::in_turns(3, 3, round));
    let names: Vec<&str> = case.rows().iter().map(|row| row.name).collect();
    assert_eq!(names, ["ours", "floor", "ours frozen", "ratio", "ours frozen/healthy"]);
}

fn read(line: &str) -> Result<Options, String> {
    let words = ["pair"].into_iter().chain(line.split_whitespace());
    let options = kit::read_from::<Options>(words.map(str::to_owned));
    options.map(Options::or_every_load).map_err(|error| error.to_string())
}

#[test]
fn open_loops_are_named_by_rate_or_by_a_part_of_the_capacity() {
    let options = read("--open-loop 20000 --open-loop 50%").expect("two open loops");
    assert_eq!(options.open_loops, [Rate::PerSecond(20_000.0), Rate::OfCapacity(0.5)]);
    assert!(options.cases.is_empty());
    for wrong in ["0", "-1", "0%", "inf", "nan%", "half", "%", ""] {
        assert!(read(&format!("--open-loop {wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn without_a_case_every_load_is_measured() {
    let options = read("--rounds 3").expect("a number of rounds");
    assert_eq!(options.cases, [1, 16, 64, 512]);
    assert_eq!(options.open_loops, [Rate::OfCapacity(0.5)]);
    assert!(read("--case 16").expect("one case").open_loops.is_empty());
}
