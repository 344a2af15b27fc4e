//! The options of the benches: what several of them have, and how values are read.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Args, Error, Parser};

/// Longer than any bench runs.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Reads the command line. The process ends after `--help` and after a bad option.
pub fn read<O: Parser>() -> O {
    read_from(std::env::args()).unwrap_or_else(|error| error.exit())
}

/// Reads these arguments, of which the first is the name of the program.
pub fn read_from<O: Parser>(arguments: impl Iterator<Item = String>) -> Result<O, Error> {
    // `cargo bench` passes `--bench` to every bench.
    O::try_parse_from(arguments.filter(|argument| argument != "--bench"))
}

/// How many rounds there are, and how long they are: unless the command line says otherwise,
/// `COUNT` of them, each of `MILLIS` milliseconds.
#[derive(Debug, Clone, Copy, Args)]
pub struct Rounds<const COUNT: usize, const MILLIS: u64> {
    /// Rounds of each contender.
    #[arg(long = "rounds", value_name = "N", default_value_t = COUNT, value_parser = positive)]
    pub count: usize,
    /// The length of a round.
    #[arg(
        long = "seconds-per-round",
        value_name = "SECONDS",
        default_value = (MILLIS as f64 / 1e3).to_string(),
        value_parser = seconds
    )]
    pub length: Duration,
}

impl<const COUNT: usize, const MILLIS: u64> fmt::Display for Rounds<COUNT, MILLIS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds of {:?}", self.count, self.length)
    }
}

/// Which contenders are wanted.
#[derive(Debug, Args)]
pub struct Only {
    /// Only what has this text in its name; may be repeated.
    #[arg(long = "only", value_name = "TEXT")]
    parts: Vec<String>,
}

impl Only {
    pub fn wants(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| name.contains(part.as_str()))
    }
}

/// A number above zero.
pub fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("it is no number above 0".to_owned())
}

/// A time in seconds, above zero.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time_within(Duration::from_nanos(1)..=LONGEST, Duration::from_secs(1), text)
}

/// A time in this unit.
pub fn time_within(
    range: RangeInclusive<Duration>,
    unit: Duration,
    text: &str,
) -> Result<Duration, String> {
    let number = text.parse().ok().map(|number: f64| number * unit.as_secs_f64());
    let time = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| range.contains(time)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("it is no time from {least:?} to {most:?}, in units of {unit:?}")
    })
}
