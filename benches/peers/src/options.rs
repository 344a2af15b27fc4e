//! The options of the bench.

use std::path::PathBuf;

use kit::clap::{self, Parser};
use kit::{Only, Rounds};

/// Acquire and release on five masters: this library beside other crates.
#[derive(Debug, Parser)]
pub struct Options {
    /// This many keys in flight, each of them free; may be repeated.
    #[arg(long, value_name = "N", value_parser = kit::positive)]
    free: Vec<usize>,
    /// The same with one frozen node; may be repeated.
    #[arg(long, value_name = "N", value_parser = kit::positive)]
    frozen: Vec<usize>,
    /// One key, and this many contenders that want it; may be repeated.
    #[arg(long = "one-key", value_name = "N", value_parser = kit::positive)]
    one_key: Vec<usize>,
    #[command(flatten)]
    pub rounds: Rounds<9, 250>,
    #[command(flatten)]
    pub only: Only,
    /// Print a line of JSON for each row.
    #[arg(long)]
    pub json: bool,
    /// Writes the figures that benches/pictures are drawn from.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// What the contenders do in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// This many keys in flight, each of them free.
    Free(usize),
    /// This many keys in flight, each of them free, with one frozen node.
    Frozen(usize),
    /// One key, and this many contenders that want it.
    OneKey(usize),
}

impl Case {
    pub fn in_flight(self) -> usize {
        let (Case::Free(number) | Case::Frozen(number) | Case::OneKey(number)) = self;
        number
    }

    pub fn title(self) -> String {
        match self {
            Case::Free(number) => format!("{number} in flight"),
            Case::Frozen(number) => format!("{number} in flight, one node frozen"),
            Case::OneKey(number) => format!("{number} contenders on one key"),
        }
    }
}

const CASES: [Case; 7] = [
    Case::Free(1),
    Case::Free(8),
    Case::Free(64),
    Case::Free(512),
    Case::Frozen(1),
    Case::Frozen(64),
    Case::OneKey(16),
];

impl Options {
    /// The wanted cases; by default a set of all three kinds.
    pub fn cases(&self) -> Vec<Case> {
        let free = self.free.iter().copied().map(Case::Free);
        let frozen = self.frozen.iter().copied().map(Case::Frozen);
        let one_key = self.one_key.iter().copied().map(Case::OneKey);
        let cases: Vec<Case> = free.chain(frozen).chain(one_key).collect();
        if cases.is_empty() { CASES.to_vec() } else { cases }
    }
}
