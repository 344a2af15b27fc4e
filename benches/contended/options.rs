//! The options of the bench, and the values that they can have.

use std::time::Duration;

use kit::Rounds;
use kit::clap::{self, Parser, ValueEnum};

/// One key that several contenders want.
#[derive(Debug, Parser)]
pub struct Options {
    /// Many contenders, two that take turns, or many inside one engine; by default all of them.
    #[arg(long)]
    case: Option<Case>,
    /// How many contenders there are.
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [2, 8, 16, 32, 64],
        value_parser = kit::positive
    )]
    pub contenders: Vec<usize>,
    /// How long each of them holds the key.
    #[arg(long = "hold-ms", value_delimiter = ',', default_value = "0,1,10", value_parser = millis)]
    pub holds: Vec<Duration>,
    /// The pause between giving back and asking again.
    #[arg(long = "rest-ms", default_value = "0", value_parser = millis)]
    pub rest: Duration,
    /// How many masters; the settings are measured on each of these numbers.
    #[arg(long, value_delimiter = ',', default_values_t = [5], value_parser = kit::positive)]
    pub nodes: Vec<usize>,
    #[command(flatten)]
    pub rounds: Rounds<3, 1_000>,
    /// Only these ways of waiting.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    only: Vec<Kind>,
    /// Print a line of JSON for each row.
    #[arg(long)]
    pub json: bool,
}

/// The kind of contention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Processes that ask again as soon as they have given back.
    Contended,
    /// Two processes that take turns: one that gave back asks again when the other has it.
    Turns,
    /// Requests inside one engine.
    Inside,
}

/// How a contender waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The library with its defaults.
    Ours,
    /// The library with a fenced lock.
    Fenced,
    /// The library for a user whom the nodes refuse their lines.
    Refused,
    /// Raw sockets, and another try 2.5 to 5 ms after each denial.
    Bare,
    /// A bare loop that asks again 100 to 200 ms after each denial.
    Slow,
    /// The library with its defaults, and a lock over two keys.
    Sets,
    /// Raw sockets, and one script that takes two keys or none, 2.5 to 5 ms after each denial.
    #[value(name = "bare-set")]
    BareSets,
}

impl Case {
    /// The ways of waiting that can be compared.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Case::Contended => Kind::value_variants(),
            Case::Turns => &Kind::OF_ONE_KEY,
            Case::Inside => &[Kind::Ours, Kind::Refused],
        }
    }

    pub fn contenders(self, options: &Options) -> &[usize] {
        if self == Case::Turns { &[2] } else { &options.contenders }
    }

    pub fn holds(self, options: &Options) -> &[Duration] {
        match self {
            Case::Contended => &options.holds,
            // The hold is so long that the other contender is waiting by then.
            Case::Turns => const { &[Duration::from_millis(10)] },
            Case::Inside => const { &[Duration::ZERO] },
        }
    }
}

impl Kind {
    const OF_ONE_KEY: [Kind; 5] = [Kind::Ours, Kind::Fenced, Kind::Refused, Kind::Bare, Kind::Slow];

    /// The bare program that this way of waiting is compared with; `None`: it is that program.
    pub fn compared_with(self) -> Option<Kind> {
        match self {
            Kind::Bare | Kind::BareSets => None,
            Kind::Sets => Some(Kind::BareSets),
            _ => Some(Kind::Bare),
        }
    }

    /// How many keys one lock has.
    pub fn keys(self) -> usize {
        if matches!(self, Kind::Sets | Kind::BareSets) { 2 } else { 1 }
    }
}

impl Options {
    pub fn cases(&self) -> &[Case] {
        self.case.as_ref().map_or(Case::value_variants(), std::slice::from_ref)
    }

    /// The wanted ways of waiting in this case.
    pub fn kinds(&self, case: Case) -> Vec<Kind> {
        let wanted = |kind: &Kind| self.only.is_empty() || self.only.contains(kind);
        case.kinds().iter().copied().filter(wanted).collect()
    }
}

/// The name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_owned()
}

/// A time in milliseconds.
fn millis(text: &str) -> Result<Duration, String> {
    let range = Duration::ZERO..=Duration::from_secs(3_600);
    kit::time_within(range, Duration::from_millis(1), text)
}
