//! The options of the bench, read from its command line.

use std::time::Duration;

use super::lan::{Kind, TTL};

/// The options of the bench.
#[derive(Debug)]
pub struct Options {
    pub contenders: Vec<usize>,
    pub holds: Vec<Duration>,
    pub kinds: Vec<Kind>,
    /// The length of a run; `None`: as long as each contender needs for its turns.
    pub length: Option<Duration>,
    pub seeds: u64,
}

/// With more contenders one run takes minutes.
const MOST_CONTENDERS: usize = 1000;

/// The longest hold: half of the ttl is left of a lock that was handed over.
const LONGEST_HOLD: Duration = Duration::from_secs(4);

/// The longest run: it ends long before the first probe of a client.
const LONGEST: Duration = Duration::from_secs(900);

impl Options {
    /// Reads the arguments after the program's name.
    pub fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            contenders: vec![2, 4, 8, 16, 32, 64],
            holds: [0, 1, 10].map(Duration::from_millis).to_vec(),
            kinds: Kind::USUAL.to_vec(),
            length: None,
            seeds: 3,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--contenders" => options.contenders = list(&value()?, contenders)?,
                "--hold" => options.holds = list(&value()?, hold)?,
                "--only" => options.kinds = list(&value()?, Kind::named)?,
                "--seconds" => options.length = Some(seconds(&value()?)?),
                "--seeds" => options.seeds = seeds(&value()?)?,
                // `cargo bench` passes `--bench` to every bench.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "unknown option {other}; there are --contenders, --hold, --only, \
                         --seconds and --seeds"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// How long a run is. Unless a length is set, each contender could have had twenty turns.
    pub fn length(&self, contenders: usize, hold: Duration) -> Duration {
        let turn = contenders as u32 * (hold + Duration::from_micros(500));
        self.length.unwrap_or_else(|| (20 * turn).clamp(Duration::from_secs(1), LONGEST))
    }
}

fn list<T>(text: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(one).collect()
}

fn contenders(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=MOST_CONTENDERS).contains(n));
    number.ok_or(format!("\"{text}\" is no number of contenders from 1 to {MOST_CONTENDERS}"))
}

fn hold(text: &str) -> Result<Duration, String> {
    length(text, 1e-3).filter(|&hold| hold <= LONGEST_HOLD).ok_or(format!(
        "\"{text}\" is no hold in milliseconds from 0 to {}: the ttl is {TTL:?}",
        LONGEST_HOLD.as_millis()
    ))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = length(text, 1.0).filter(|&length| !length.is_zero() && length <= LONGEST);
    seconds.ok_or(format!("\"{text}\" is no number of seconds above 0, up to {LONGEST:?}"))
}

fn seeds(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&n| n > 0);
    number.ok_or(format!("\"{text}\" is no number of seeds above 0"))
}

fn length(text: &str, unit: f64) -> Option<Duration> {
    let number = text.parse().ok().map(|number: f64| number * unit);
    number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
