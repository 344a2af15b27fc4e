//! The figures of the rounds, as a table or as JSON.
//!
//! Each figure is the median of its rounds, and each ratio the median of the ratios within a round:
//! what disturbs the machine for longer than a round disturbs both sides of it.

use super::options::Options;
use super::support::{Fleet, Server};
use super::tally::Figures;

/// The rounds of one number of keys in flight.
pub struct Case {
    pub in_flight: usize,
    /// Ours and the floor's; one is missing if only the other was wanted.
    pub rounds: Vec<(Option<Figures>, Option<Figures>)>,
}

/// What goes before the first case.
pub fn begin(options: &Options, fleet: &Fleet) {
    if options.json {
        return;
    }
    let Server { binary, version: (major, minor), .. } = Server::get();
    let state = if options.frozen { ", one of them frozen" } else { "" };
    println!("acquire and release of a free key on {} masters{state}", fleet.len());
    let Options { rounds, length, .. } = options;
    println!("{binary} {major}.{minor}; medians of {rounds} rounds of {length:?};");
    println!("ratio: the median of the rounds' ratios");
    println!();
    println!(
        "{:>9}  {:<7} {:>11} {:>11} {:>11} {:>11}",
        "in flight", "", "p50 us", "p99 us", "cpu us/pair", "pairs/s"
    );
}

/// One case, on stdout.
pub fn show(case: &Case, options: &Options) {
    let rows = case.rows();
    if options.json {
        println!("{}", json(case.in_flight, &rows));
        return;
    }
    for (index, row) in rows.iter().enumerate() {
        let label = if index == 0 { case.in_flight.to_string() } else { String::new() };
        let Row { name, figures: f } = row;
        let digits = if *name == "ratio" { 2 } else { 1 };
        println!(
            "{label:>9}  {name:<7} {:>11.digits$} {:>11.digits$} {:>11.2} {:>11.*}",
            f.p50_us,
            f.p99_us,
            f.cpu_us,
            if *name == "ratio" { 2 } else { 0 },
            f.pairs_per_s,
        );
    }
    println!();
}

struct Row {
    name: &'static str,
    figures: Figures,
}

impl Case {
    fn rows(&self) -> Vec<Row> {
        let ours: Vec<Figures> = self.rounds.iter().filter_map(|round| round.0).collect();
        let floor: Vec<Figures> = self.rounds.iter().filter_map(|round| round.1).collect();
        let pairs = ours.iter().zip(&floor);
        let ratios: Vec<Figures> = pairs.map(|(ours, floor)| ours.over(floor)).collect();
        let rows = [("ours", ours), ("floor", floor), ("ratio", ratios)];
        rows.into_iter()
            .filter(|(_, rounds)| !rounds.is_empty())
            .map(|(name, rounds)| Row { name, figures: Figures::median(&rounds) })
            .collect()
    }
}

impl Figures {
    fn over(&self, other: &Figures) -> Figures {
        Figures {
            p50_us: self.p50_us / other.p50_us,
            p99_us: self.p99_us / other.p99_us,
            cpu_us: self.cpu_us / other.cpu_us,
            pairs_per_s: self.pairs_per_s / other.pairs_per_s,
        }
    }

    fn median(rounds: &[Figures]) -> Figures {
        let of = |field: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            if values.len() % 2 == 1 {
                values[middle]
            } else {
                (values[middle - 1] + values[middle]) / 2.0
            }
        };
        Figures {
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            cpu_us: of(|f| f.cpu_us),
            pairs_per_s: of(|f| f.pairs_per_s),
        }
    }
}

fn json(in_flight: usize, rows: &[Row]) -> String {
    let parts: Vec<String> = rows
        .iter()
        .map(|Row { name, figures: f }| {
            let unit = if *name == "ratio" { "" } else { "_us" };
            format!(
                "\"{name}\":{{\"p50{unit}\":{:.3},\"p99{unit}\":{:.3},\"cpu{unit}\":{:.3},\
                 \"pairs_per_s\":{:.3}}}",
                f.p50_us, f.p99_us, f.cpu_us, f.pairs_per_s
            )
        })
        .collect();
    format!("{{\"case\":\"{in_flight}\",{}}}", parts.join(","))
}
