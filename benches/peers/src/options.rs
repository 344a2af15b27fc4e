//! The options of the bench, read from its command line.

use std::path::PathBuf;
use std::time::Duration;

/// The options of the bench.
#[derive(Debug)]
pub struct Options {
    pub cases: Vec<Case>,
    pub rounds: usize,
    pub length: Duration,
    /// Parts of the names of the contenders that are wanted; empty: all of them.
    only: Vec<String>,
    pub json: bool,
    /// Where the figures are recorded, if that is wanted.
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
    /// Reads the arguments after the program's name.
    pub fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            rounds: 9,
            length: Duration::from_millis(250),
            only: Vec::new(),
            json: false,
            record: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--free" => options.cases.push(Case::Free(positive(&value()?)?)),
                "--frozen" => options.cases.push(Case::Frozen(positive(&value()?)?)),
                "--one-key" => options.cases.push(Case::OneKey(positive(&value()?)?)),
                "--rounds" => options.rounds = positive(&value()?)?,
                "--seconds-per-round" => options.length = seconds(&value()?)?,
                "--only" => options.only.push(value()?),
                "--json" => options.json = true,
                "--record" => options.record = Some(value()?.into()),
                other => return Err(format!("unknown option {other}")),
            }
        }
        if options.cases.is_empty() {
            options.cases = CASES.to_vec();
        }
        Ok(options)
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("{text} is not a positive number"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let length = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    length.ok_or(format!("{text} is not a number of seconds"))
}
