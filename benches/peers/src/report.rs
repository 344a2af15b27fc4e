//! The figures of the rounds, as Markdown, as JSON and as a record for the pictures.

use std::path::Path;

use kit::{Measured, Round, Table, json, load};

use super::OVERTIME;
use super::figures::{Figures as Recorded, Record, Row, grouped};
use super::options::{Case, Options};
use super::support::Server;

/// The percentiles in JSON.
const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// A case that was measured.
pub struct Shown {
    pub case: Case,
    /// The names of the contenders, in the order of the rounds' figures.
    pub names: Vec<String>,
    pub rounds: Measured<Round>,
    /// Rounds from which the hypervisor took too much.
    pub left_out: usize,
    /// Contenders whose round did not come to its end.
    pub too_slow: Vec<String>,
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
pub fn show(shown: &Shown, options: &Options) {
    if options.json {
        (0..shown.names.len()).for_each(|which| println!("{}", as_json(shown, which)));
        return;
    }
    let title = format!(":{}", shown.case.title());
    let figures = ["acquire p50, us", "p99, us", "CPU a pair, us", "pairs a second"];
    let columns = [title.as_str()].into_iter().chain(figures);
    let table = Table::new(columns.zip([33, 16, 18, 14, 14]));
    println!();
    println!("{}", table.head());
    for (which, name) in shown.names.iter().enumerate() {
        let cell = |figure: fn(&Round) -> f64, digits: usize| {
            let value = grouped(shown.rounds.median(which, figure), digits);
            format!("{value} ({:.2})", shown.rounds.ratio(which, 0, figure))
        };
        let cells = [
            name.clone(),
            cell(Round::p50_us, 0),
            cell(Round::p99_us, 0),
            cell(Round::cpu_us, 1),
            cell(Round::pairs_per_s, 0),
        ];
        println!("{}", table.row(cells));
    }
    for name in &shown.too_slow {
        println!("{}", table.row([name.clone(), too_slow()]));
    }
    for (which, name) in shown.names.iter().enumerate() {
        let lost: usize = shown.rounds.of(which).iter().map(Round::lost).sum();
        if lost > 0 {
            println!("\n{name}: {lost} attempts on a free key were lost, in all rounds.");
        }
    }
    if shown.left_out > 0 {
        println!("\nRounds left out, because of steal: {}.", shown.left_out);
    }
}

fn as_json(shown: &Shown, which: usize) -> String {
    let quantile = |percent: f64| shown.rounds.median(which, |it| it.quantile_us(percent / 100.0));
    let percentiles = PERCENTILES.map(|percent| (format!("p{percent}"), quantile(percent)));
    let figure = |name, figure: fn(&Round) -> f64| (name, shown.rounds.median(which, figure));
    format!(
        "{{\"case\":\"{}\",\"contender\":\"{}\",\"acquire_us\":{{{}}},{},\"rounds\":{},\
         \"left_out\":{}}}",
        shown.case.title(),
        shown.names[which],
        json(percentiles),
        json([figure("cpu_us", Round::cpu_us), figure("pairs_per_s", Round::pairs_per_s)]),
        shown.rounds.rounds(),
        shown.left_out
    )
}

/// Records the cases with free keys, for the pictures.
pub fn record(all: &[Shown], options: &Options, path: &Path) {
    let free = all.iter().filter(|it| !matches!(it.case, Case::OneKey(_)));
    let rows = free.flat_map(|shown| {
        let ended = shown.names.iter().enumerate();
        let ended = ended.map(|(which, name)| (name, Ok(medians(&shown.rounds, which))));
        let too_slow = shown.too_slow.iter().map(|name| (name, Err(too_slow())));
        ended.chain(too_slow).map(|(name, figures)| {
            let (case, contender) = (shown.case.title(), name.clone());
            Row { case, contender, figures }
        })
    });
    let record = Record { about: about(options), rows: rows.collect() };
    if let Err(error) = std::fs::write(path, record.write()) {
        eprintln!("{}: {error}", path.display());
    }
}

fn medians(rounds: &Measured<Round>, which: usize) -> Recorded {
    Recorded {
        p50_us: rounds.median(which, Round::p50_us),
        p99_us: rounds.median(which, Round::p99_us),
        cpu_us: rounds.median(which, Round::cpu_us),
        pairs_per_s: rounds.median(which, Round::pairs_per_s),
    }
}

fn too_slow() -> String {
    format!("no round ended within {} s", OVERTIME.as_secs())
}

/// The server and the rounds.
fn about(options: &Options) -> String {
    let Server { valkey, version: (major, minor), .. } = Server::get();
    let server = if *valkey { "Valkey" } else { "Redis" };
    format!("{server} {major}.{minor}, {}", options.rounds)
}
