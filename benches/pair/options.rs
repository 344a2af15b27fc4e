//! The options of the bench.

use kit::Rounds;
use kit::clap::{self, Parser, ValueEnum};

/// One acquire and release of a free key, beside the least that any program has to do.
#[derive(Debug, Parser)]
pub struct Options {
    /// A closed loop with so many keys in flight; may be repeated.
    #[arg(long = "case", value_name = "N", value_parser = kit::positive)]
    pub cases: Vec<usize>,
    /// An open loop with so many pairs a second (20000), or with that part of the floor's pairs a
    /// second in a closed loop (50%); may be repeated.
    #[arg(long = "open-loop", value_name = "RATE", value_parser = rate)]
    pub open_loops: Vec<Rate>,
    #[command(flatten)]
    pub rounds: Rounds<15, 400>,
    /// A client with one frozen node, beside the client of healthy nodes.
    #[arg(long)]
    pub frozen: bool,
    /// Fenced locks beside plain ones.
    #[arg(long)]
    pub fenced: bool,
    /// Print a line of JSON for each case.
    #[arg(long)]
    pub json: bool,
    /// One contender alone, for a profiler.
    #[arg(long)]
    pub only: Option<Only>,
    /// How locks are released: by default native if the nodes have it.
    #[arg(long)]
    pub delete: Option<Way>,
}

/// The command line asks for one contender alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Only {
    Ours,
    Floor,
}

/// How a lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    Script,
    Native,
}

/// How many pairs begin in an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    PerSecond(f64),
    /// A part of what the floor does in a closed loop: 0.5 is half of it.
    OfCapacity(f64),
}

impl Options {
    /// With every load if the command line names none.
    pub fn or_every_load(mut self) -> Options {
        if self.cases.is_empty() && self.open_loops.is_empty() {
            self.cases = vec![1, 16, 64, 512];
            self.open_loops = vec![Rate::OfCapacity(0.5)];
        }
        self
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    let positive = |text: &str| text.parse().ok().filter(|&n: &f64| n > 0.0 && n.is_finite());
    let rate = match text.strip_suffix('%') {
        Some(percent) => positive(percent).map(|percent| Rate::OfCapacity(percent / 100.0)),
        None => positive(text).map(Rate::PerSecond),
    };
    rate.ok_or("it is neither pairs a second nor a percentage of the capacity".to_owned())
}
