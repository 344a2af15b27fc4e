//! The pictures and the tables of benches/README.md show the recorded figures.
//!
//! The hazard is a picture that shows older figures: so each picture is drawn again, and has to be
//! the same byte for byte.

#[path = "../../benches/pictures/mod.rs"]
mod peers;

use peers::figures::Record;
use peers::{latency, throughput};

/// The file of the recorded figures.
pub const FIGURES: &str = "benches/pictures/peers.txt";

/// The command that draws the pictures again.
pub const REDRAW: &str = "REDLATCH_REDRAW=1 cargo test --all-features --test tidy pictures";

/// The path of each picture, and the content that it has to have.
pub fn drawn(figures: &str) -> [(&'static str, String); 2] {
    let record = record(figures);
    [
        ("benches/pictures/latency.svg", latency::svg(&record)),
        ("benches/pictures/throughput.svg", throughput::svg(&record)),
    ]
}

/// The cases in the table of benches/README.md, and their names there.
const IN_TABLE: [(&str, &str); 2] = [("1 in flight", "1"), ("64 in flight", "64")];

/// Every recorded row of these cases is in the table, with the median, the CPU time and the pairs a
/// second. In the table a ratio may follow each figure.
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

/// The short name of a contender, as the table has it.
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
