//! `redlatch bench --election`: how long an election has no leader after the leader resigned, was
//! killed, or was stopped.
//!
//! Each candidate is a process, as in production. The time counts from just before the leader gets
//! the signal until the bench reads from another candidate that it leads. The hazard is a figure
//! that depends on when the leader renewed its lock last. So each change begins after a random
//! pause.

pub mod candidate;
mod candidates;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use rand::RngExt;
use rand::rngs::StdRng;
use redlatch::{clock, clock::Instant};
use rustix::process::Signal;

use super::tally::{empty, record};
use super::{Options, prefix};
use crate::output::{self, Refusal};
use crate::{exit, nodes};
use candidates::{Candidates, Event};
use report::Row;

/// How long the candidates are left alone between two changes, besides a random part of the ttl: so
/// long a new process needs until it stands in line.
const REST: Duration = Duration::from_millis(500);

/// How long a change may take, besides three ttls.
const LONGEST_CHANGE: Duration = Duration::from_secs(30);

/// The limits for --candidates and --changes.
const MOST_CANDIDATES: usize = 64;
const MOST_CHANGES: u32 = 100_000;

/// The options that measure pairs.
const OF_PAIRS: [&str; 7] = ["contended", "rate", "in_flight", "keys", "duration", "svg", "hgrm"];

/// The options of `bench --election`.
#[derive(Debug, clap::Args)]
pub struct ElectionOptions {
    /// Candidates of an election: how long until the next one leads
    ///
    /// Each candidate is a process. The leader resigns, is killed or is stopped; a process that was
    /// killed or stopped is then started anew.
    #[arg(long, conflicts_with_all = OF_PAIRS)]
    pub election: bool,

    /// How many candidates there are
    #[arg(long, value_name = "N", default_value_t = 8, requires = "election")]
    pub candidates: usize,

    /// How often the leader changes in each way
    #[arg(long, value_name = "N", default_value_t = 20, requires = "election")]
    pub changes: u32,

    /// In which ways the leader goes: resign, kill (SIGKILL), stop (SIGSTOP) [default: all]
    #[arg(long, value_name = "WAY", value_delimiter = ',', requires = "election")]
    pub leader_goes_by: Vec<Way>,

    /// Run CMD with sh as each candidate: another program, to compare with
    ///
    /// It finds the names of the election and of the candidate in $ELECTION and $CANDIDATE, prints
    /// a line that begins with "leading" each time it begins to lead, and steps down on SIGUSR1.
    /// Let sh exec the candidate, so that the signals reach it.
    #[arg(long, value_name = "CMD", requires = "election")]
    pub candidate_cmd: Option<String>,
}

/// How a leader goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    Resign,
    Kill,
    Stop,
}

impl Way {
    const ALL: [Way; 3] = [Way::Resign, Way::Kill, Way::Stop];

    fn signal(self) -> Signal {
        match self {
            Way::Resign => Signal::USR1,
            Way::Kill => Signal::KILL,
            Way::Stop => Signal::STOP,
        }
    }
}

/// Runs the bench.
pub fn run(options: &Options) -> ExitCode {
    output::end(bench(options), &options.common.output)
}

fn bench(options: &Options) -> Result<u8, Refusal> {
    let own = &options.election;
    check(own)?;
    let timing = &options.common.timing;
    let nodes = match &own.candidate_cmd {
        Some(_) => None,
        None => {
            let config = nodes::config(&options.common.nodes, timing)?;
            Some(config.get_settings().nodes.len())
        }
    };
    let candidates = Candidates::new(format!("{}:election", prefix()?), own.candidate_cmd.clone())?;
    let mut measuring =
        Measuring { candidates, leader: 0, ttl: timing.ttl, random: rand::make_rng::<StdRng>() };
    let mut rows = Vec::new();
    let ended = measuring.measure(own, &mut rows);
    measuring.candidates.end(measuring.leader);
    let signal = ended?;
    report::print(options, nodes, &rows, signal.is_some())?;
    Ok(signal.map_or(exit::DONE, exit::by_signal))
}

fn check(own: &ElectionOptions) -> Result<(), Refusal> {
    if !(2..=MOST_CANDIDATES).contains(&own.candidates) {
        let message = format!("--candidates {}: it can be 2 to {MOST_CANDIDATES}", own.candidates);
        return Err(Refusal::config(message));
    }
    if !(1..=MOST_CHANGES).contains(&own.changes) {
        let message = format!("--changes {}: it can be 1 to {MOST_CHANGES}", own.changes);
        return Err(Refusal::config(message));
    }
    Ok(())
}

/// The candidates, and which of them leads.
struct Measuring {
    candidates: Candidates,
    leader: usize,
    ttl: Duration,
    random: StdRng,
}

/// A wait that was ended by a signal to the bench, or went to its end.
enum Wait<T> {
    Signal(i32),
    Done(T),
}

impl Measuring {
    /// Measures all ways, and returns the signal that ended this early, if any.
    fn measure(
        &mut self,
        own: &ElectionOptions,
        rows: &mut Vec<Row>,
    ) -> Result<Option<i32>, Refusal> {
        // One candidate alone at first: what refuses it is reported once.
        self.candidates.add()?;
        if let Wait::Signal(signal) = self.until_another_leads(None)? {
            return Ok(Some(signal));
        }
        for _ in 1..own.candidates {
            self.candidates.add()?;
        }
        let ways = if own.leader_goes_by.is_empty() { &Way::ALL } else { &own.leader_goes_by[..] };
        for &way in ways {
            rows.push(Row { way, took: empty() });
            for _ in 0..own.changes {
                let took = &mut rows.last_mut().expect("it was pushed").took;
                if let Some(signal) = self.change(way, took)? {
                    return Ok(Some(signal));
                }
            }
        }
        Ok(None)
    }

    /// Lets the leader go, and records how long it took until another one led.
    fn change(&mut self, way: Way, took: &mut Histogram<u64>) -> Result<Option<i32>, Refusal> {
        let rest = REST + self.ttl.mul_f64(self.random.random_range(0.0..1.0));
        if let Some(signal) = self.rest(clock::now().saturating_add(rest))? {
            return Ok(Some(signal));
        }
        let (gone, start) = (self.leader, clock::now());
        self.candidates.signal(gone, way.signal())?;
        match self.until_another_leads(Some(gone))? {
            Wait::Signal(signal) => return Ok(Some(signal)),
            Wait::Done(seen) => record(took, seen.saturating_since(start)),
        }
        if way != Way::Resign {
            self.candidates.replace(gone)?;
        }
        Ok(None)
    }

    /// Lets the candidates be until `end`, and notes who leads meanwhile. Returns the signal that
    /// ended this early, if any.
    fn rest(&mut self, end: Instant) -> Result<Option<i32>, Refusal> {
        while clock::now() < end {
            for event in self.candidates.turn(end)?.0 {
                match event {
                    Event::Leads(index) => self.leader = index,
                    Event::Ended(index) => self.candidates.replace(index)?,
                    Event::Signal(signal) => return Ok(Some(signal)),
                }
            }
        }
        Ok(None)
    }

    /// Waits until a candidate other than `gone` leads. If none is `gone`, waits for as long as it
    /// takes: new nodes may be in quarantine.
    fn until_another_leads(&mut self, gone: Option<usize>) -> Result<Wait<Instant>, Refusal> {
        let limit = 3 * self.ttl + LONGEST_CHANGE;
        let end =
            gone.map_or(Instant::from_nanos(u64::MAX), |_| clock::now().saturating_add(limit));
        loop {
            let (events, now) = self.candidates.turn(end)?;
            for event in events {
                match event {
                    Event::Leads(index) if Some(index) != gone => {
                        self.leader = index;
                        return Ok(Wait::Done(now));
                    }
                    // Its error is on stderr.
                    Event::Ended(_) if gone.is_none() => {
                        return Err(Refusal::config("the first candidate ended before it led"));
                    }
                    Event::Ended(index) if Some(index) != gone => self.candidates.replace(index)?,
                    Event::Leads(_) | Event::Ended(_) => {}
                    Event::Signal(signal) => return Ok(Wait::Signal(signal)),
                }
            }
            if now >= end {
                let message = format!("no candidate has led for {limit:?} since the leader went");
                return Err(Refusal { code: exit::NO_QUORUM, ..Refusal::internal(message) });
            }
        }
    }
}
