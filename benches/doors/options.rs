//! The options of the bench, read from its command line.

use std::time::Duration;

/// The options of the bench.
#[derive(Debug)]
pub struct Options {
    /// How many keys are in flight, case by case.
    pub cases: Vec<usize>,
    pub rounds: usize,
    pub length: Duration,
    /// Parts of the names of the doors that are wanted; empty: all doors.
    only: Vec<String>,
}

impl Options {
    /// Reads the arguments after the program's name.
    pub fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            cases: vec![1, 8, 64],
            rounds: 15,
            length: Duration::from_millis(400),
            only: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--case" => options.cases = vec![positive(&value()?)?],
                "--rounds" => options.rounds = positive(&value()?)?,
                "--seconds-per-round" => options.length = seconds(&value()?)?,
                "--only" => options.only.push(value()?),
                // `cargo bench` passes `--bench` to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other}")),
            }
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
