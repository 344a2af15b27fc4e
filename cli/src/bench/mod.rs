//! `redlatch bench`: latency and throughput of locks on the user's own nodes.
//!
//! This file makes the measurements one after the other, cleans up, and reports. The bench asks
//! only for its own keys, which no other client uses. If a node forgot one of them, no client would
//! be harmed, so the restart guard is off, unless replicas are counted: they need it.

mod chart;
mod closed;
mod contended;
mod driver;
pub mod election;
mod figures;
mod files;
mod hgrm;
mod measure;
mod open;
mod pacer;
mod pairs;
mod plan;
mod progress;
mod ready;
mod table;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use redlatch::{Config, LockOptions, RestartGuard, clock};
use serde_json::Value;

use crate::arguments::{Common, duration};
use crate::output::{self, Refusal};
use crate::{exit, nodes};
use closed::Closed;
use contended::Contended;
use driver::Driver;
use election::ElectionOptions;
use figures::Row;
use files::Files;
use measure::{Load, Measured, Times, measure};
use open::Open;
use pairs::Pairs;
use plan::{Mode, Plan};
use progress::Progress;
use table::Setting;

/// How long the nodes may take at the end to release everything.
const SETTLE: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  redlatch bench                              one lock at a time, for 10 s
  redlatch bench --in-flight 1,8,64 --svg bench.svg
                                              more and more at once, with a picture
  redlatch bench --rate 500                   500 pairs a second, whatever the nodes do
  redlatch bench --contended --in-flight 8    8 clients that want one key: how long they wait
  redlatch bench --election -t 10s            8 candidates: how long there is no leader after one
                                              resigns, is killed, or is stopped

A pair is one lock, taken and given back. Latencies are the client's: they have the network, the \
nodes, and this program in them. A closed loop (without --rate) begins the next pair when one has \
ended, so a stall of the nodes counts once for each pair in flight; with --rate it counts for \
everybody who would have come meanwhile.

Keys begin with redlatch-bench:, are used by no other program, and are gone at the end; the \
counter and the address of an election expire. The load is real, though: other users of the nodes \
feel it. Ctrl-C ends it early and prints what was measured until then.";

/// Measure latency and throughput on your nodes
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("persistent_nodes", |arg| arg.hide(true)))]
pub struct Options {
    /// How many pairs are in flight at once; several, by commas, are measured in turn
    ///
    /// 1 unless given. With --contended: how many clients contend, 4 unless given. With --rate: how
    /// many at most, 1024 unless given; a pair that finds no place waits, which counts.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub in_flight: Vec<usize>,

    /// How long each measurement takes, after a short warm-up that does not count
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "10s")]
    pub duration: Duration,

    /// Begin so many pairs a second, however long each takes (an open loop)
    ///
    /// Latency is counted from when a pair should have begun.
    #[arg(long, value_name = "N", conflicts_with = "contended")]
    pub rate: Option<u64>,

    /// How many keys are taken in turn [default: as many as pairs; with --contended 1]
    #[arg(long, value_name = "N")]
    pub keys: Option<usize>,

    /// Several clients that want the same key: how long they wait for it
    #[arg(long)]
    pub contended: bool,

    /// Draw the percentiles, and of several --in-flight the throughput
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write the percentiles in HdrHistogram's format, in milliseconds
    ///
    /// FILE gets the latencies of acquire, and one beside it, named ...-release, those of release.
    /// Several --in-flight get files of their own: ...-8, ...-8-release.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    #[command(flatten)]
    pub election: ElectionOptions,

    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    if options.election.election {
        return election::run(options);
    }
    output::end(bench(options), &options.common.output)
}

fn bench(options: &Options) -> Result<u8, Refusal> {
    let plan = Plan::new(options)?;
    let config = nodes::config(&options.common.nodes, &options.common.timing)?;
    let config = match config.get_settings().replicas {
        0 => config.restart_guard(RestartGuard::Off),
        _ => config,
    };
    let files = Files::new(options, &plan)?;
    let mut bench = Bench {
        options,
        plan: &plan,
        nodes: config.get_settings().nodes.len(),
        config,
        prefix: prefix()?,
        progress: Progress::new(options.common.output.quiet),
        rows: Vec::new(),
        unusable: Vec::new(),
        signal: None,
    };
    let measured = bench.measure_all();
    bench.progress.clear();
    measured?;
    bench.print(&files)
}

/// The prefix of all keys of this run. It is random, because two runs with the same keys would wait
/// for each other.
fn prefix() -> Result<String, Refusal> {
    use rand::TryRng;

    let run = rand::rngs::SysRng.try_next_u32();
    let run = run.map_err(|error| Refusal::internal(format!("random numbers: {error}")))?;
    Ok(format!("redlatch-bench:{run:08x}"))
}

/// A run of the verb.
struct Bench<'a> {
    options: &'a Options,
    plan: &'a Plan,
    config: Config,
    nodes: usize,
    prefix: String,
    progress: Progress,
    rows: Vec<Row>,
    /// Nodes that could not be used at the beginning, and why.
    unusable: Vec<String>,
    /// The signal that ended the run early.
    signal: Option<i32>,
}

impl Bench<'_> {
    fn measure_all(&mut self) -> Result<(), Refusal> {
        let mut driver = None;
        for (round, &in_flight) in self.plan.in_flight.iter().enumerate() {
            let clients = self.plan.clients(in_flight);
            let reused = driver.take().filter(|driver: &Driver| driver.clients() == clients);
            let mut ready = match reused {
                Some(ready) => ready,
                None => match self.connect(clients)? {
                    Some(ready) => ready,
                    None => return Ok(()),
                },
            };
            let measured = self.measure(&mut ready, in_flight, round as u64);
            // `settle` releases everything, also after an error.
            let left = ready::settle(&mut ready, SETTLE)?;
            let Measured { tally, took, signal } = measured?;
            if left > 0 && !self.options.common.output.quiet {
                let message = "locks may stay until their ttl is over: some nodes do not answer";
                output::complain(&format!("redlatch: {left} {message}"));
            }
            self.rows.push(Row { nodes: self.nodes, in_flight, took, tally });
            self.signal = signal;
            if signal.is_some() {
                return Ok(());
            }
            driver = Some(ready);
        }
        Ok(())
    }

    /// Connects the clients, and acquires and releases one lock to see whether locks can be had.
    /// Returns `None` if a signal came.
    fn connect(&mut self, clients: usize) -> Result<Option<Driver>, Refusal> {
        let mut driver = Driver::new(&self.config, clients)?;
        self.signal = ready::gather(&mut driver)?;
        if self.signal.is_none() {
            let key = format!("{}:rehearsal", self.prefix);
            self.signal = ready::rehearse(&mut driver, &key, self.options.common.timing.ttl)?;
        }
        if self.signal.is_some() {
            ready::settle(&mut driver, SETTLE)?;
            return Ok(None);
        }
        self.unusable = driver.unusable_nodes();
        if self.options.common.output.json && !self.options.common.output.quiet {
            // The table would show these nodes, but JSON has no field for them.
            self.unusable
                .iter()
                .for_each(|node| output::complain(&format!("redlatch: without {node}")));
        }
        Ok(Some(driver))
    }

    fn measure(
        &mut self,
        driver: &mut Driver,
        in_flight: usize,
        round: u64,
    ) -> Result<Measured, Refusal> {
        let keys = self.plan.keys(in_flight);
        let names = (0..keys).map(|number| format!("{}:{number}", self.prefix)).collect();
        let timing = &self.options.common.timing;
        let wait = timing.longest_wait().unwrap_or(Duration::MAX);
        let mut pairs = Pairs::new(names, LockOptions::new(timing.ttl).wait(wait), round);
        let start = clock::now();
        let mut load: Box<dyn Load> = match self.plan.mode {
            Mode::Closed => Box::new(Closed::new(in_flight, keys)),
            Mode::Open { rate } => Box::new(Open::new(rate, start, keys.min(in_flight))),
            Mode::Contended => Box::new(Contended::new(in_flight, keys)),
        };
        let times = Times {
            warm_up: self.plan.warm_up,
            duration: self.plan.duration,
            node_timeout: timing.node_timeout,
        };
        self.progress.begin(format!("{in_flight} in flight"));
        let progress = &mut self.progress;
        let measured = measure(driver, &mut pairs, load.as_mut(), start, times, progress);
        measured.map_err(|error| Refusal::from(ready::poller_failed(&error)))
    }

    /// Prints the results, and returns the exit code.
    fn print(&self, files: &Files) -> Result<u8, Refusal> {
        if !self.rows.is_empty() {
            let setting = Setting {
                plan: self.plan,
                nodes: self.nodes,
                ttl: self.options.common.timing.ttl,
                unusable: &self.unusable,
                early: self.signal.is_some(),
            };
            let text = if self.options.common.output.json {
                self.json().to_string()
            } else {
                table::text(&setting, &self.rows)
            };
            // The files are written first, so that they exist even if stdout has no reader.
            files.write(&setting, &self.rows)?;
            output::print(&text)?;
        }
        if let Some(signal) = self.signal {
            return Ok(exit::by_signal(signal));
        }
        let nothing = self.rows.iter().all(|row| row.tally.pairs() == 0);
        Ok(if nothing { exit::NO_QUORUM } else { exit::DONE })
    }

    /// One object if there was one measurement, a list of objects if there were several.
    fn json(&self) -> Value {
        let mut rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        if self.plan.is_sweep() { rows.into() } else { rows.remove(0) }
    }
}
