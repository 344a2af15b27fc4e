//! The figures of the rounds, as a table that can be pasted into documentation.
//!
//! Each figure is the median of its rounds, and each ratio, in brackets, the median of the ratios
//! within a round to the first door: what disturbs the machine for longer than a round disturbs all
//! of them.

use super::options::Options;
use super::support::{Fleet, Server};
use super::tally::Figures;

/// What goes before the first case.
pub fn begin(options: &Options, fleet: &Fleet) {
    let Server { binary, version: (major, minor), .. } = Server::get();
    let Options { rounds, length, .. } = options;
    println!("acquire and release of a free key on {} masters, by door", fleet.len());
    println!("{binary} {major}.{minor}; medians of {rounds} rounds of {length:?};");
    println!("in brackets: the median of the rounds' ratios to the first door");
    println!("load before: {}", load());
}

/// What is printed after the last one.
pub fn end() {
    println!();
    println!("load after: {}", load());
}

/// The rounds of one number of keys in flight, in each round the doors by their names.
pub fn show(in_flight: usize, names: &[&str], rounds: &[Vec<Figures>]) {
    println!();
    println!(
        "| {:<33} | {:>14} | {:>14} | {:>14} | {:>12} | {:>14} |",
        format!("{in_flight} in flight"),
        "p50 us",
        "p99 us",
        "cpu us/pair",
        "switches",
        "pairs/s"
    );
    println!("|:--|--:|--:|--:|--:|--:|");
    for (index, name) in names.iter().enumerate() {
        let cell = |field: fn(&Figures) -> f64, digits: usize| {
            let value = median(rounds.iter().map(|round| field(&round[index])));
            let ratio = median(rounds.iter().map(|it| field(&it[index]) / field(&it[0])));
            format!("{value:.digits$} ({ratio:.2})")
        };
        println!(
            "| {name:<33} | {:>14} | {:>14} | {:>14} | {:>12} | {:>14} |",
            cell(|f| f.p50_us, 0),
            cell(|f| f.p99_us, 0),
            cell(|f| f.cpu_us, 1),
            format!("{:.1}", median(rounds.iter().map(|round| round[index].switches))),
            cell(|f| f.pairs_per_s, 0),
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// How many processes want the processors: over one, five and fifteen minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<&str> = text.split(' ').take(3).collect();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    format!("{} on {cpus} processors", numbers.join(" "))
}
