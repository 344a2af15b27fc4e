//! Durations as people write them: in a file, in a variable, after a flag.

use std::fmt;
use std::time::Duration;

/// The units, each with its nanoseconds.
const UNITS: [(&[&str], u128); 7] = [
    (&["ns", "nsec"], 1),
    (&["us", "µs", "usec"], 1_000),
    (&["ms", "msec", "millis"], 1_000_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
];

const SECOND: u128 = 1_000_000_000;

/// A text that is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidDuration;

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a duration: write it like 500ms, 10s or 1m30s; a bare number is seconds")
    }
}

impl std::error::Error for InvalidDuration {}

/// Reads a duration: `500ms`, `10s`, `1m30s`, `1.5h`. A bare number is seconds.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(redlatch::parse_duration("1m30s"), Ok(Duration::from_secs(90)));
/// assert_eq!(redlatch::parse_duration("0.5"), Ok(Duration::from_millis(500)));
/// ```
///
/// # Errors
/// If the text is no duration, or a longer one than a [`Duration`] can be.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let mut rest = text.trim();
    let mut nanos: u128 = 0;
    let mut parts = 0;
    loop {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        let after = after.trim_start();
        let letters = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "" if parts == 0 && after.is_empty() => SECOND,
            unit => unit_of(unit).ok_or(InvalidDuration)?,
        };
        nanos = part(digits, unit).and_then(|it| nanos.checked_add(it)).ok_or(InvalidDuration)?;
        (rest, parts) = (after.trim_start(), parts + 1);
        if rest.is_empty() {
            break;
        }
    }
    let seconds = u64::try_from(nanos / SECOND).map_err(|_| InvalidDuration)?;
    Ok(Duration::new(seconds, (nanos % SECOND) as u32))
}

fn unit_of(name: &str) -> Option<u128> {
    UNITS.iter().find(|(names, _)| names.contains(&name)).map(|(_, nanos)| *nanos)
}

/// This many units, in nanoseconds; a part below a nanosecond is dropped.
fn part(digits: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if fraction.contains('.') {
        return None;
    }
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = fraction.parse().ok()?;
    whole.checked_mul(unit)?.checked_add(fraction.checked_mul(unit)? / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let good = [
            ("500ms", 500_000),
            ("10s", 10_000_000),
            ("1m30s", 90_000_000),
            ("1h 30m", 5_400_000_000),
            ("10", 10_000_000),
            ("0.5", 500_000),
            ("1.5m", 90_000_000),
            ("250us", 250),
            ("250µs", 250),
            ("0", 0),
            (" 2 s ", 2_000_000),
            ("1day", 86_400_000_000),
            ("0.0000000000000000000001s", 0),
        ];
        for (text, micros) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        assert_eq!(parse_duration("18446744073709551615s"), Ok(Duration::from_secs(u64::MAX)));
        let bad = [
            "",
            " ",
            "x",
            "s",
            "-1",
            "+1",
            "1e9",
            "3.033333333333333333.1",
            "1e99",
            "inf",
            "NaN",
            "10 parsecs",
            "5s5",
            "1.2.3",
            "1.",
            ".5",
            "1s-",
            "18446744073709551616s",
            "99999999999999999999999999999999999999d",
            "1,5s",
        ];
        for text in bad {
            assert_eq!(parse_duration(text), Err(InvalidDuration), "{text}");
        }
    }
}
