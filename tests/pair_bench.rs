//! The parts of the bench `pair` that only compute: arrivals, percentiles, medians and options.
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

use arrivals::Arrivals;
use options::{Options, Rate};
use report::{Case, Load, Side};
use tally::{Figures, Tally};

/// The number of nodes that the bench would report.
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

/// The bounds are five standard deviations wide. The seeds are fixed, so the test cannot fail by
/// chance.
#[test]
fn arrivals_are_a_poisson_process_of_the_rate_that_was_asked_for() {
    const RATE: f64 = 20_000.0;
    for seed in 0..20 {
        let arrivals: Vec<f64> =
            Arrivals::draw(seed, RATE, SECOND).map(|at| at.as_secs_f64()).collect();
        let count = arrivals.len() as f64;
        assert!((count - RATE).abs() < 5.0 * RATE.sqrt(), "seed {seed}: {count} arrivals");
        // The fraction e^-t of exponential gaps is longer than t times the mean.
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
    let figures = tally.figures();
    let near = |micros: f64, millis: f64| (micros / (millis * 1e3) - 1.0).abs() < 0.02;
    assert!(near(figures.p50_us, 500.0), "{figures:?}");
    assert!(near(figures.p99_us, 990.0), "{figures:?}");
}

fn figures(p50_us: f64) -> Figures {
    Figures { p50_us, p99_us: 4.0, cpu_us: 2.0, pairs_per_s: 1.0 }
}

#[test]
fn the_median_of_an_even_number_of_rounds_is_between_the_middle_ones() {
    let median = |values: &[f64]| {
        Figures::median(&values.iter().map(|&value| figures(value)).collect::<Vec<_>>()).p50_us
    };
    assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), 3.0);
}

#[test]
fn a_ratio_is_the_median_of_the_ratios_within_a_round() {
    let mut case = Case::new(Load::Closed(1), [Side::Ours, Side::Floor].into_iter());
    // The ratios within the rounds are 1, 2 and 3. The ratio of the medians would be 3.
    for (ours, floor) in [(10.0, 10.0), (200.0, 100.0), (30.0, 10.0)] {
        case.add(0, figures(ours));
        case.add(1, figures(floor));
    }
    let ratio = case.ratio("ratio").expect("both sides were measured");
    assert_eq!(ratio.p50_us, 2.0);
    assert_eq!(ratio.pairs_per_s, 1.0);
    assert!(case.ratio("ours frozen/healthy").is_none());
}

fn read(line: &str) -> Result<Options, String> {
    Options::read(line.split_whitespace().map(str::to_owned))
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
