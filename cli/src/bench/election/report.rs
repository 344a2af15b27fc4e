//! What `bench --election` prints: the table for people, and the JSON for scripts.

use std::fmt::Write;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use redlatch::majority;
use serde_json::{Value, json};

use super::super::Options;
use super::super::figures::{QUANTILES, latencies, time};
use super::Way;
use crate::output::{self, Refusal};
use crate::wall_clock::millis;

/// The times until another candidate led, after the leader went in this way.
#[derive(Debug)]
pub struct Row {
    pub way: Way,
    pub took: Histogram<u64>,
}

impl Row {
    fn name(&self) -> String {
        self.way.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Prints what was measured. `nodes` is `None` for candidates of another program.
pub fn print(
    options: &Options,
    nodes: Option<usize>,
    rows: &[Row],
    early: bool,
) -> Result<(), Refusal> {
    let text = if options.common.output.json {
        rows.iter().map(|row| json_of(options, nodes, row)).collect::<Value>().to_string()
    } else {
        table(options, nodes, rows, early)
    };
    output::print(&text)
}

fn json_of(options: &Options, nodes: Option<usize>, row: &Row) -> Value {
    json!({
        "nodes": nodes,
        "candidates": options.election.candidates,
        "ttl_ms": millis(options.common.timing.ttl),
        "leader_goes_by": row.name(),
        "changes": row.took.len(),
        "next_leader_us": latencies(&row.took),
    })
}

fn table(options: &Options, nodes: Option<usize>, rows: &[Row], early: bool) -> String {
    let candidates = options.election.candidates;
    let mut text = match nodes {
        Some(nodes) => format!("{nodes} nodes, quorum {}; ", majority(nodes)),
        None => String::new(),
    };
    let early = if early { ", ended early" } else { "" };
    text += &format!(
        "ttl {:?}; {candidates} candidates{early}\nlatency: from the signal to the leader until \
         another candidate leads\n\n{:>14} {:>9}",
        options.common.timing.ttl, "leader goes by", "changes"
    );
    QUANTILES.iter().for_each(|(_, name, _)| text += &format!(" {name:>9}"));
    text += &format!(" {:>9}", "max");
    for row in rows {
        let _ = write!(text, "\n{:>14} {:>9}", row.name(), row.took.len());
        let quantiles =
            QUANTILES.iter().map(|&(.., quantile)| row.took.value_at_quantile(quantile));
        for nanos in quantiles.chain([row.took.max()]) {
            let shown = if row.took.is_empty() { "-".to_owned() } else { time(nanos) };
            let _ = write!(text, " {shown:>9}");
        }
    }
    text
}
