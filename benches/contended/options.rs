//! The options of the bench, read from its command line, and the values that they can have.

use std::time::Duration;

/// The options of the bench.
#[derive(Debug)]
pub struct Options {
    pub cases: Vec<Case>,
    pub contenders: Vec<usize>,
    pub holds: Vec<Duration>,
    pub rest: Duration,
    /// How many masters; the settings are measured on each of these numbers.
    pub nodes: Vec<usize>,
    pub rounds: usize,
    pub length: Duration,
    pub only: Option<Vec<Kind>>,
    pub json: bool,
}

/// The kind of contention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Processes that ask again as soon as they have given back.
    Contended,
    /// Two processes that take turns: one that gave back asks again when the other has it.
    Turns,
    /// Requests inside one engine.
    Inside,
}

/// How a contender waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    BareSets,
}

impl Case {
    const ALL: [Case; 3] = [Case::Contended, Case::Turns, Case::Inside];

    pub fn name(self) -> &'static str {
        match self {
            Case::Contended => "contended",
            Case::Turns => "turns",
            Case::Inside => "inside",
        }
    }

    /// The ways of waiting that can be compared.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Case::Contended => &Kind::ALL,
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
    pub const ALL: [Kind; 7] = [
        Kind::Ours,
        Kind::Fenced,
        Kind::Refused,
        Kind::Bare,
        Kind::Slow,
        Kind::Sets,
        Kind::BareSets,
    ];

    const OF_ONE_KEY: [Kind; 5] = [Kind::Ours, Kind::Fenced, Kind::Refused, Kind::Bare, Kind::Slow];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Ours => "ours",
            Kind::Fenced => "fenced",
            Kind::Refused => "refused",
            Kind::Bare => "bare",
            Kind::Slow => "slow",
            Kind::Sets => "sets",
            Kind::BareSets => "bare-set",
        }
    }

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

    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Options {
    /// Reads the arguments after the program's name.
    pub fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            cases: Case::ALL.to_vec(),
            contenders: vec![2, 8, 16, 32, 64],
            holds: [0, 1, 10].map(Duration::from_millis).to_vec(),
            rest: Duration::ZERO,
            nodes: vec![5],
            rounds: 3,
            length: Duration::from_secs(1),
            only: None,
            json: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--case" => options.cases = vec![case(&value()?)?],
                "--contenders" => options.contenders = list(&value()?, positive)?,
                "--hold-ms" => options.holds = list(&value()?, |text| length(text, 1e-3))?,
                "--rest-ms" => options.rest = length(&value()?, 1e-3)?,
                "--nodes" => options.nodes = list(&value()?, positive)?,
                "--rounds" => options.rounds = positive(&value()?)?,
                "--seconds-per-round" => options.length = length(&value()?, 1.0)?,
                "--only" => options.only = Some(list(&value()?, kind)?),
                "--json" => options.json = true,
                // `cargo bench` passes `--bench` to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(options)
    }
}

fn case(text: &str) -> Result<Case, String> {
    let found = Case::ALL.into_iter().find(|case| case.name() == text);
    found.ok_or(format!("{text} is none of contended, turns and inside"))
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::named(text)
        .ok_or(format!("{text} is none of ours, fenced, refused, bare, slow, sets and bare-set"))
}

fn list<T>(text: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(one).collect()
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("{text} is not a positive number"))
}

fn length(text: &str, unit: f64) -> Result<Duration, String> {
    let number = text.parse().ok().map(|number: f64| number * unit);
    let length = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    length.ok_or(format!("{text} is not a length of time"))
}
