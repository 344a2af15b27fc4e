//! What all benches share: medians, quantiles, the order of turns, options and tables.
//!
//! No server is started.

#![allow(clippy::disallowed_methods, reason = "benches measure real time")]

use std::time::{Duration, Instant};

use kit::clap::{self, Parser};
use kit::{Measured, Meter, Only, Rounds, Samples, Table, median, number, order, quantile};

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds<7, 250>,
    #[command(flatten)]
    only: Only,
}

fn read(line: &str) -> Result<Options, String> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    kit::read_from(words.map(str::to_owned)).map_err(|error| error.to_string())
}

#[test]
fn median_of_an_even_number_of_values_is_between_the_middle_ones() {
    assert_eq!(median([9.0, 1.0, 2.0]), 2.0);
    assert_eq!(median([9.0, 1.0, 2.0, 4.0]), 3.0);
    assert_eq!(median([f64::NAN, 1.0]), 1.0);
    assert!(median([]).is_nan());
}

#[test]
fn quantile_is_the_least_value_that_its_part_does_not_exceed() {
    let sorted: Vec<u64> = (1..=200).collect();
    let expected = [(0.5, 100.0), (0.99, 198.0), (0.991, 199.0), (1.0, 200.0), (0.0, 1.0)];
    for (part, value) in expected {
        assert_eq!(quantile(&sorted, part), value, "{part}");
    }
    assert!(quantile(&[], 0.5).is_nan());
}

#[test]
fn ratio_is_the_median_of_the_ratios_within_a_round() {
    let mut measured = Measured::new(2);
    // The ratios are 1, 2 and 3; the ratio of the medians would be 3.
    for round in [[10.0, 10.0], [200.0, 100.0], [30.0, 10.0]] {
        measured.add(round.into_iter().enumerate());
    }
    assert_eq!(measured.ratio(0, 1, |it| *it), 2.0);
    assert_eq!(measured.median(0, |it| *it), 30.0);
    assert_eq!((measured.rounds(), measured.of(1)), (3, &[10.0, 100.0, 10.0][..]));
}

#[test]
fn each_contender_stands_in_each_place_equally_often() {
    for contenders in 1..=6 {
        let mut places = vec![vec![0; contenders]; contenders];
        for number in 0..2 * contenders {
            for (place, which) in order(number, contenders).enumerate() {
                places[which][place] += 1;
            }
        }
        assert!(places.iter().flatten().all(|&times| times == 2), "{places:?}");
    }
}

#[test]
fn contenders_run_in_reverse_order_in_every_second_round() {
    let rounds = [0, 1, 2, 3].map(|number| order(number, 3).collect::<Vec<_>>());
    assert_eq!(rounds, [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
}

#[test]
fn round_has_the_figures_of_its_acquires_and_releases() {
    let meter = Meter::start();
    let mut samples = Samples::default();
    let (began, mut other) = (Instant::now(), Samples::default());
    samples.acquired(began - Duration::from_secs(2));
    other.acquired(began - Duration::from_secs(1));
    other.lost();
    other.cut_short();
    samples.append(other);
    let round = meter.stop(samples);
    assert!((1e6..1.5e6).contains(&round.p50_us()), "{round:?}");
    assert!((2e6..2.5e6).contains(&round.p99_us()), "{round:?}");
    assert_eq!((round.pairs(), round.lost(), round.is_whole()), (2.0, 1, false));
    let empty = Meter::start().stop(Samples::default());
    assert_eq!((empty.pairs(), empty.lost(), empty.is_whole()), (1.0, 0, true));
}

#[test]
fn switches_of_a_round_are_also_those_of_threads_that_are_gone() {
    let meter = Meter::start();
    let sleeps = || (0..20).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
    std::thread::spawn(sleeps).join().expect("it only sleeps");
    let round = meter.stop_after(1, Samples::default());
    assert!(round.switches() >= 20.0, "{round:?}");
}

#[test]
fn options_have_the_defaults_of_their_bench() {
    let usual = read("--bench").expect("what cargo passes");
    assert_eq!(usual.rounds.to_string(), "7 rounds of 250ms");
    assert!(usual.only.wants("anything"));
    let set = read("--rounds 2 --seconds-per-round 0.02 --only on --only two").expect("options");
    assert_eq!(set.rounds.to_string(), "2 rounds of 20ms");
    assert_eq!(["one", "two", "three"].map(|name| set.only.wants(name)), [true, true, false]);
    for bad in ["--rounds 0", "--rounds x", "--seconds-per-round 0", "--seconds-per-round nan"] {
        let option = bad.split(' ').next().expect("it has two words");
        let problem = read(bad).expect_err(bad);
        assert!(problem.contains(option), "{bad}: {problem}");
    }
}

#[test]
fn table_is_markdown_with_aligned_columns() {
    let table = Table::new([(":name", 6), ("a long title", 3)]);
    assert_eq!(table.head(), "| name   | a long title |\n|:-------|-------------:|");
    let row = table.row(["x".to_owned(), number(1.256, 2)]);
    assert_eq!(row, "| x      |         1.26 |");
    assert_eq!(number(f64::INFINITY, 2), "-");
    let fields = kit::json([("a", 1.5), ("b", f64::NAN)]);
    assert_eq!(fields, "\"a\":1.5000,\"b\":0.0000");
}
