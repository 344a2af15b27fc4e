//! The options of the bench.

use std::ops::RangeInclusive;
use std::time::Duration;

use kit::clap::builder::RangedU64ValueParser;
use kit::clap::{self, Parser, value_parser};

use super::lan::{Kind, TTL};

/// Contenders for the same keys on a LAN in simulated time.
#[derive(Debug, Parser)]
pub struct Options {
    /// How many contenders there are.
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [2, 4, 8, 16, 32, 64],
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_CONTENDERS)
    )]
    pub contenders: Vec<usize>,
    /// How long each of them holds its lock, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,1,10", value_parser = hold)]
    pub hold: Vec<Duration>,
    /// `plain`, or some of `bare`, `fenced` and keys such as `2of10`, joined by `+`.
    #[arg(
        long = "only",
        value_name = "KIND",
        value_delimiter = ',',
        default_values_t = Kind::USUAL,
        value_parser = Kind::named
    )]
    pub kinds: Vec<Kind>,
    /// The simulated time of a run; by default twenty turns of each contender, and at least 1.
    #[arg(long = "seconds", value_parser = seconds)]
    pub length: Option<Duration>,
    /// The runs of each setting.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..))]
    pub seeds: u64,
}

/// With more contenders one run takes minutes.
const MOST_CONTENDERS: u64 = 1000;

/// Half of the ttl is left of a lock that was handed over, at the end of the longest hold.
const HOLDS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(4);

/// The longest run ends long before the first probe of a client.
const LENGTHS: RangeInclusive<Duration> = Duration::from_nanos(1)..=Duration::from_secs(900);

impl Options {
    /// How long a run is. Unless a length is set, each contender could have had twenty turns.
    pub fn length(&self, contenders: usize, hold: Duration) -> Duration {
        let turn = contenders as u32 * (hold + Duration::from_micros(500));
        self.length.unwrap_or_else(|| (20 * turn).clamp(Duration::from_secs(1), *LENGTHS.end()))
    }
}

fn hold(text: &str) -> Result<Duration, String> {
    kit::time_within(HOLDS, Duration::from_millis(1), text)
        .map_err(|why| format!("{why}: the ttl is {TTL:?}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    kit::time_within(LENGTHS, Duration::from_secs(1), text)
}
