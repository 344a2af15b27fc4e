//! The pictures and the tables of benches/README.md show the recorded figures.
//!
//! The hazard is a picture that looks new and is not: each is drawn again, and has to be the same
//! byte for byte.

#[path = "../../benches/pictures/mod.rs"]
mod peers;

use peers::figures::Record;
use peers::{latency, throughput};

/// The recorded figures.
pub const FIGURES: &str = "benches/pictures/peers.txt";

/// Draws the pictures from the recorded figures again.
pub const REDRAW: &str = "REDLATCH_REDRAW=1 cargo test --all-features --test tidy pictures";

/// The paths of the pictures, and what they have to be.
pub fn drawn(figures: &str) -> [(&'static str, String); 2] {
    let record = record(figures);
    [
        ("benches/pictures/latency.svg", latency::svg(&record)),
        ("benches/pictures/throughput.svg", throughput::svg(&record)),
    ]
}

/// The cases that the table of benches/README.md has, and what stands for them there.
const IN_TABLE: [(&str, &str); 2] = [("1 in flight", "1"), ("64 in flight", "64")];

/// Every recorded row of these cases is in the table: the median, the CPU and the pairs a second,
/// each with its ratio after it or alone.
pub fn tables(figures: &str, readme: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for row in record(figures).rows {
        let in_table = |(case, _): &&(&str, &str)| *case == row.case;
        let Some((case, in_flight)) = IN_TABLE.iter().find(in_table) else { continue };
        let name = short_name(&row.contender);
        let figures: Vec<String> = row.cells().iter().map(|it| alone(it).to_owned()).collect();
        let Some([_, p50, _, cpu, pairs]) = figures.get(..5) else { continue };
        let expected = [*in_flight, name, p50, cpu, pairs];
        let has = |line: &str| {
            let found = line.trim_matches('|').split('|').map(|cell| alone(cell.trim()));
            line.starts_with('|') && found.eq(expected)
        };
        if !readme.lines().any(has) {
            findings.push(format!("benches/README.md:1: {case}: {name} is not {expected:?}"));
        }
    }
    findings
}

/// The name of a contender in the table.
fn short_name(contender: &str) -> &str {
    let name = contender.strip_prefix("redlatch, ").unwrap_or(contender);
    name.split(',').next().and_then(|name| name.split(" on ").next()).unwrap_or(name)
}

/// A figure without its ratio.
fn alone(cell: &str) -> &str {
    cell.split(" (").next().unwrap_or(cell)
}

fn record(figures: &str) -> Record {
    let record = Record::read(figures).unwrap_or_else(|why| panic!("{FIGURES}: {why}"));
    assert_eq!(record.write(), figures, "{FIGURES} is not as `peers --record` writes it");
    record
}
