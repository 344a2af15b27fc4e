//! The options of the bench, read from its command line.

use std::time::Duration;

/// The options of the bench.
#[derive(Debug)]
pub struct Options {
    /// How many keys are in flight, case by case.
    pub cases: Vec<usize>,
    /// The rates of the open loops.
    pub open_loops: Vec<Rate>,
    pub rounds: usize,
    pub length: Duration,
    pub frozen: bool,
    pub fenced: bool,
    pub json: bool,
    pub only: Option<Only>,
    /// `script` or `native`; `None`: native if the nodes have it.
    pub delete: Option<String>,
}

/// The command line asks for one contender alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    Ours,
    Floor,
}

/// How many pairs begin in an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    PerSecond(f64),
    /// A part of what the floor does in a closed loop: 0.5 is half of it.
    OfCapacity(f64),
}

/// What is measured if the command line does not say.
const CASES: [usize; 4] = [1, 16, 64, 512];
const OPEN_LOOP: Rate = Rate::OfCapacity(0.5);

impl Options {
    /// Reads the arguments after the program's name.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            open_loops: Vec::new(),
            rounds: 15,
            length: Duration::from_millis(400),
            frozen: false,
            fenced: false,
            json: false,
            only: None,
            delete: None,
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--case" => options.cases.push(positive(&value()?)?),
                "--open-loop" => options.open_loops.push(rate(&value()?)?),
                "--rounds" => options.rounds = positive(&value()?)?,
                "--seconds-per-round" => options.length = seconds(&value()?)?,
                "--frozen" => options.frozen = true,
                "--fenced" => options.fenced = true,
                "--json" => options.json = true,
                "--delete" => options.delete = Some(delete(value()?)?),
                "--only" => options.only = Some(only(&value()?)?),
                // `cargo bench` passes `--bench` to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other}")),
            }
        }
        if options.cases.is_empty() && options.open_loops.is_empty() {
            options.cases = CASES.to_vec();
            options.open_loops = vec![OPEN_LOOP];
        }
        Ok(options)
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

fn rate(text: &str) -> Result<Rate, String> {
    let positive = |text: &str| text.parse().ok().filter(|&n: &f64| n > 0.0 && n.is_finite());
    let rate = match text.strip_suffix('%') {
        Some(percent) => positive(percent).map(|percent| Rate::OfCapacity(percent / 100.0)),
        None => positive(text).map(Rate::PerSecond),
    };
    rate.ok_or(format!("{text} is neither pairs a second nor a percentage of the capacity"))
}

fn delete(text: String) -> Result<String, String> {
    match text.as_str() {
        "script" | "native" => Ok(text),
        other => Err(format!("{other} is neither script nor native")),
    }
}

fn only(text: &str) -> Result<Only, String> {
    match text {
        "ours" => Ok(Only::Ours),
        "floor" => Ok(Only::Floor),
        other => Err(format!("{other} is neither ours nor floor")),
    }
}
