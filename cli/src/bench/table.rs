//! The table that a person reads: what was measured and how, and the figures.

use std::fmt::{Result, Write};

use hdrhistogram::Histogram;
use redlatch::majority;

use super::figures::{QUANTILES, Row, count, time};
use super::plan::{Mode, Plan};

/// What the table shows besides the figures.
#[derive(Debug)]
pub struct Setting<'a> {
    pub plan: &'a Plan,
    pub nodes: usize,
    pub ttl: std::time::Duration,
    /// The nodes that could not be used at the beginning, and why.
    pub unusable: &'a [String],
    /// A signal ended the run early.
    pub early: bool,
}

/// The whole text of the table.
pub fn text(setting: &Setting, rows: &[Row]) -> String {
    let mut text = String::new();
    write(&mut text, setting, rows).expect("a String takes whatever is written");
    text.truncate(text.trim_end().len());
    text
}

fn write(out: &mut String, setting: &Setting, rows: &[Row]) -> Result {
    head(out, setting)?;
    write!(
        out,
        "\n{:>9} {:>11} {:>11}  {:7}",
        in_flight_word(setting.plan.mode),
        "pairs/s",
        "pairs",
        ""
    )?;
    for (_, name, _) in QUANTILES {
        write!(out, " {name:>9}")?;
    }
    writeln!(out, " {:>9}", "max")?;
    for row in rows {
        let pairs = row.tally.pairs();
        let rate = count(row.pairs_per_s().round() as u64);
        write!(out, "{:>9} {rate:>11} {:>11}  ", row.in_flight, count(pairs))?;
        latencies(out, acquire_word(setting.plan.mode), &row.tally.acquire)?;
        write!(out, "{:33}  ", "")?;
        latencies(out, "release", &row.tally.release)?;
    }
    errors(out, setting, rows)
}

/// The word for the time from the request to the lock.
pub fn acquire_word(mode: Mode) -> &'static str {
    if mode == Mode::Contended { "wait" } else { "acquire" }
}

/// The word for what `--in-flight` counts.
pub fn in_flight_word(mode: Mode) -> &'static str {
    if mode == Mode::Contended { "clients" } else { "in flight" }
}

/// What the latencies measure, in one line.
pub fn method(mode: Mode) -> &'static str {
    match mode {
        Mode::Closed => "from the client's call until it has the answer",
        Mode::Open { .. } => {
            "acquire from when the pair should have begun, release from the call, until the answer"
        }
        Mode::Contended => {
            "wait from a client's call until it has the lock, release until the answer"
        }
    }
}

/// When pairs begin, in one line.
pub fn how_pairs_begin(mode: Mode) -> String {
    match mode {
        Mode::Closed => "closed loop: a pair begins when another has ended".into(),
        Mode::Open { rate: 1 } => "open loop: 1 pair begins a second".into(),
        Mode::Open { rate } => format!("open loop: {} pairs begin a second", count(rate)),
        Mode::Contended => "contended: clients want the same key and give it back at once".into(),
    }
}

fn head(out: &mut String, setting: &Setting) -> Result {
    let Setting { plan, nodes, ttl, unusable, early } = setting;
    let quorum = majority(*nodes);
    let (duration, warm_up) = (plan.duration, plan.warm_up);
    let early = if *early { ", ended early" } else { "" };
    let plural = if *nodes == 1 { "" } else { "s" };
    writeln!(
        out,
        "{nodes} node{plural}, quorum {quorum}; ttl {ttl:?}; {duration:?} after {warm_up:?} of \
         warm-up{early}"
    )?;
    writeln!(out, "{}", how_pairs_begin(plan.mode))?;
    writeln!(out, "latency: {}", method(plan.mode))?;
    unusable.iter().try_for_each(|node| writeln!(out, "without {node}"))
}

fn latencies(out: &mut String, what: &str, histogram: &Histogram<u64>) -> Result {
    write!(out, "{what:7}")?;
    for (_, _, quantile) in QUANTILES {
        write!(out, " {:>9}", shown(histogram, histogram.value_at_quantile(quantile)))?;
    }
    writeln!(out, " {:>9}", shown(histogram, histogram.max()))
}

fn shown(histogram: &Histogram<u64>, nanos: u64) -> String {
    if histogram.is_empty() { "-".to_owned() } else { time(nanos) }
}

fn errors(out: &mut String, setting: &Setting, rows: &[Row]) -> Result {
    let mut titled = false;
    for row in rows.iter().filter(|row| !row.tally.errors.is_empty()) {
        if !titled {
            writeln!(out, "\nerrors")?;
            titled = true;
        }
        let kinds = row.tally.errors.iter().map(|(kind, n)| format!("{} {kind}", count(*n)));
        writeln!(out, "{:>9}  {}", row.in_flight, kinds.collect::<Vec<_>>().join(", "))?;
    }
    let unfinished = rows.iter().any(|row| row.tally.errors.contains_key("unfinished"));
    if unfinished && matches!(setting.plan.mode, Mode::Open { .. }) {
        writeln!(out, "the nodes did not keep up with the rate; the figures are without the rest")?;
    }
    Ok(())
}
