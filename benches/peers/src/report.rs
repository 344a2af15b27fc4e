//! The figures of the rounds, as Markdown, as JSON and as a record for the pictures.
//!
//! Each figure is the median of its rounds, and each ratio, in brackets, the median of the ratios
//! within a round to the first contender: what disturbs the machine for longer than a round
//! disturbs all of them.

use std::path::Path;

use super::OVERTIME;
use super::figures::{Figures as Recorded, Record, Row, grouped};
use super::options::{Case, Options};
use super::support::Server;
use super::tally::{Figures, PERCENTILES, median};

/// A case that was measured.
pub struct Measured {
    pub case: Case,
    /// The names of the contenders.
    pub names: Vec<String>,
    /// In each round the figures of the contenders, in the order of their names.
    pub rounds: Vec<Vec<Figures>>,
    /// Rounds from which the hypervisor took too much.
    pub left_out: usize,
    /// Contenders whose round did not come to its end.
    pub too_slow: Vec<String>,
}

impl Measured {
    fn median(&self, which: usize, field: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| field(&round[which])))
    }

    fn ratio(&self, which: usize, field: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| field(&round[which]) / field(&round[0])))
    }
}

/// What goes before the first case.
pub fn begin(options: &Options) {
    if options.json {
        return;
    }
    println!("{}, five masters; medians of the rounds;", about(options));
    println!("in brackets: the median of the rounds' ratios to the first row");
    println!("load before: {}", load());
}

/// What is printed after the last one.
pub fn end(options: &Options) {
    if !options.json {
        println!();
        println!("load after: {}", load());
    }
}

/// One case, on stdout.
pub fn show(measured: &Measured, options: &Options) {
    if options.json {
        (0..measured.names.len()).for_each(|which| println!("{}", json(measured, which)));
        return;
    }
    println!();
    println!(
        "| {} | acquire p50, us | p99, us | CPU a pair, us | pairs a second |",
        measured.case.title()
    );
    println!("|:--|--:|--:|--:|--:|");
    for (which, name) in measured.names.iter().enumerate() {
        let cell = |field: fn(&Figures) -> f64, digits: usize| {
            let (value, ratio) = (measured.median(which, field), measured.ratio(which, field));
            format!("{} ({ratio:.2})", grouped(value, digits))
        };
        println!(
            "| {name} | {} | {} | {} | {} |",
            cell(Figures::p50_us, 0),
            cell(Figures::p99_us, 0),
            cell(|f| f.cpu_us, 1),
            cell(|f| f.pairs_per_s, 0)
        );
    }
    for name in &measured.too_slow {
        println!("| {name} | {} | | | |", too_slow());
    }
    let failed = |which: usize| measured.rounds.iter().map(|round| round[which].failed).sum();
    for (which, name) in measured.names.iter().enumerate() {
        let failed: f64 = failed(which);
        if failed > 0.0 {
            println!();
            println!("{name}: {failed:.0} attempts on a free key were lost, in all rounds.");
        }
    }
    if measured.left_out > 0 {
        println!();
        println!("Rounds left out, because of steal: {}.", measured.left_out);
    }
}

fn json(measured: &Measured, which: usize) -> String {
    let percentiles: Vec<String> = PERCENTILES
        .iter()
        .enumerate()
        .map(|(at, percent)| {
            format!("\"p{percent}\":{:.1}", measured.median(which, |f| f.percentiles_us[at]))
        })
        .collect();
    format!(
        "{{\"case\":\"{}\",\"contender\":\"{}\",\"acquire_us\":{{{}}},\"cpu_us\":{:.3},\
         \"pairs_per_s\":{:.1},\"rounds\":{},\"left_out\":{}}}",
        measured.case.title(),
        measured.names[which],
        percentiles.join(","),
        measured.median(which, |f| f.cpu_us),
        measured.median(which, |f| f.pairs_per_s),
        measured.rounds.len(),
        measured.left_out
    )
}

/// Records the cases with free keys, for the pictures.
pub fn record(all: &[Measured], options: &Options, path: &Path) {
    let free = all.iter().filter(|it| !matches!(it.case, Case::OneKey(_)));
    let rows = free.flat_map(|measured| {
        let case = measured.case.title();
        let row = move |contender: &String, figures| Row {
            case: case.clone(),
            contender: contender.clone(),
            figures,
        };
        let ended = measured.names.iter().enumerate();
        let ended = ended.map(|(which, name)| (name, Ok(medians(measured, which))));
        let too_slow = measured.too_slow.iter().map(|name| (name, Err(too_slow())));
        ended.chain(too_slow).map(move |(name, figures)| row(name, figures))
    });
    let record = Record { about: about(options), rows: rows.collect() };
    if let Err(error) = std::fs::write(path, record.write()) {
        eprintln!("{}: {error}", path.display());
    }
}

fn medians(measured: &Measured, which: usize) -> Recorded {
    Recorded {
        p50_us: measured.median(which, Figures::p50_us),
        p99_us: measured.median(which, Figures::p99_us),
        cpu_us: measured.median(which, |it| it.cpu_us),
        pairs_per_s: measured.median(which, |it| it.pairs_per_s),
    }
}

fn too_slow() -> String {
    format!("no round ended within {} s", OVERTIME.as_secs())
}

/// The server and the rounds.
fn about(options: &Options) -> String {
    let Server { valkey, version: (major, minor), .. } = Server::get();
    let server = if *valkey { "Valkey" } else { "Redis" };
    let Options { rounds, length, .. } = options;
    format!("{server} {major}.{minor}, {rounds} rounds of {length:?}")
}

/// How many processes want the processors: over one, five and fifteen minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<&str> = text.split(' ').take(3).collect();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    format!("{} on {cpus} processors", numbers.join(" "))
}
