//! The figures of the rounds, as Markdown, as JSON and as pictures.
//!
//! Each figure is the median of its rounds, and each ratio, in brackets, the median of the ratios
//! within a round to the first contender: what disturbs the machine for longer than a round
//! disturbs all of them.

use std::path::Path;

use super::OVERTIME;
use super::options::{Case, Options};
use super::picture::{Line, Panel, draw as drawing};
use super::support::Server;
use super::tally::{Figures, PERCENTILES, median};

/// A case that was measured.
pub struct Measured {
    pub case: Case,
    /// Of the contenders.
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
    let Server { valkey, version: (major, minor), .. } = Server::get();
    let server = if *valkey { "Valkey" } else { "Redis" };
    let Options { rounds, length, .. } = options;
    println!("{server} {major}.{minor}, five masters; medians of {rounds} rounds of {length:?};");
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
        println!("| {name} | no round ended within {OVERTIME:?} | | | |");
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

/// A number with commas between its thousands.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (at, character) in text.chars().enumerate() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
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

/// Writes the pictures: percentiles of an acquire, and throughput and CPU by keys in flight.
pub fn draw(all: &[Measured], folder: &Path) {
    let free: Vec<&Measured> = all.iter().filter(|it| matches!(it.case, Case::Free(_))).collect();
    let frozen = all.iter().filter(|it| matches!(it.case, Case::Frozen(_)));
    let latency: Vec<Panel> = free.iter().copied().chain(frozen).map(percentiles).collect();
    let pairs = panel(&free, "pairs a second", |figures| figures.pairs_per_s);
    let cpu = panel(&free, "CPU of the client, us a pair", |figures| figures.cpu_us);
    let write = |name: &str, panels: &[Panel]| {
        let path = folder.join(name);
        if let Err(error) = std::fs::write(&path, drawing(panels)) {
            eprintln!("{}: {error}", path.display());
        }
    };
    write("latency.svg", &latency);
    write("throughput.svg", &[pairs, cpu]);
}

/// One case: the time of an acquire by percentile.
fn percentiles(measured: &Measured) -> Panel {
    let values = |which| {
        let at = |at: usize| measured.median(which, |figures| figures.percentiles_us[at]);
        (0..PERCENTILES.len()).map(|place| Some(at(place))).collect()
    };
    let line = |(which, name): (usize, &String)| Line { name: name.clone(), values: values(which) };
    Panel {
        title: format!("acquire, us: {}", measured.case.title()),
        below: "percentile".to_owned(),
        places: PERCENTILES.map(|percent| percent.to_string()).to_vec(),
        lines: measured.names.iter().enumerate().map(line).collect(),
    }
}

/// One figure by keys in flight.
fn panel(free: &[&Measured], title: &str, field: fn(&Figures) -> f64) -> Panel {
    let mut names: Vec<&String> = Vec::new();
    for name in free.iter().flat_map(|measured| &measured.names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let value = |measured: &Measured, name: &String| {
        let which = measured.names.iter().position(|it| it == name)?;
        Some(measured.median(which, field))
    };
    let line = |name: &&String| Line {
        name: (*name).clone(),
        values: free.iter().map(|measured| value(measured, name)).collect(),
    };
    Panel {
        title: title.to_owned(),
        below: "in flight".to_owned(),
        places: free.iter().map(|it| it.case.in_flight().to_string()).collect(),
        lines: names.iter().map(line).collect(),
    }
}

/// How many processes want the processors: over one, five and fifteen minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<&str> = text.split(' ').take(3).collect();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    format!("{} on {cpus} processors", numbers.join(" "))
}
