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

/// Every recorded row is in the table of its case.
pub fn tables(figures: &str, readme: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for row in record(figures).rows {
        let head = format!("| {} | acquire p50, us |", row.case);
        let lines = readme.lines().skip_while(|line| !line.starts_with(&head));
        let mut lines = lines.take_while(|line| line.starts_with('|'));
        let cells = row.cells();
        let has = |line: &str| {
            let found: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells.len() <= found.len()
                && cells.iter().zip(found).all(|(cell, found)| found.starts_with(cell.as_str()))
        };
        if !lines.any(has) {
            let (case, contender) = (&row.case, &row.contender);
            findings.push(format!("benches/README.md:1: {case}: {contender} is not as recorded"));
        }
    }
    findings
}

fn record(figures: &str) -> Record {
    let record = Record::read(figures).unwrap_or_else(|why| panic!("{FIGURES}: {why}"));
    assert_eq!(record.write(), figures, "{FIGURES} is not as `peers --record` writes it");
    record
}
