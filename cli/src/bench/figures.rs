//! The figures of a measurement: a row of the table, an object of the JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::tally::Tally;

/// The percentiles that are reported: the name in JSON, the name for people, the quantile.
pub const QUANTILES: [(&str, &str, f64); 4] =
    [("p50", "p50", 0.5), ("p90", "p90", 0.9), ("p99", "p99", 0.99), ("p999", "p99.9", 0.999)];

/// The figures of a measurement and its settings.
#[derive(Debug)]
pub struct Row {
    pub nodes: usize,
    pub in_flight: usize,
    pub took: Duration,
    pub tally: Tally,
}

impl Row {
    pub fn pairs_per_s(&self) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 { self.tally.pairs() as f64 / seconds } else { 0.0 }
    }

    /// The JSON object; scripts rely on its fields.
    pub fn json(&self) -> Value {
        json!({
            "nodes": self.nodes,
            "in_flight": self.in_flight,
            "seconds": rounded(self.took.as_secs_f64(), 1e3),
            "pairs": self.tally.pairs(),
            "pairs_per_s": rounded(self.pairs_per_s(), 1e1),
            "acquire_us": latencies(&self.tally.acquire),
            "release_us": latencies(&self.tally.release),
            "errors": self.tally.errors,
        })
    }
}

/// The percentiles in microseconds.
pub fn latencies(histogram: &Histogram<u64>) -> Value {
    let micros = |nanos: u64| json!(rounded(nanos as f64 / 1e3, 1e1));
    let fields = QUANTILES.iter().map(|&(name, _, quantile)| {
        (name.to_owned(), micros(histogram.value_at_quantile(quantile)))
    });
    let max = ("max".to_owned(), micros(histogram.max()));
    Value::Object(fields.chain([max]).collect())
}

/// Rounded to a multiple of `1 / parts`.
fn rounded(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

/// A time in nanoseconds with three digits, in the unit that shows it best.
pub fn time(nanos: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e3, "µs"), (1e6, "ms"), (1e9, "s")];
    let nanos = nanos as f64;
    // A time that would round to a thousand of a unit is shown in the next unit.
    let fits = |&&(unit, _): &&(f64, &str)| nanos < 999.5 * unit;
    let &(unit, name) = UNITS.iter().find(fits).unwrap_or(&UNITS[2]);
    let number = nanos / unit;
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.digits$} {name}")
}

/// A number with its thousands separated.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch::ReleaseOutcome;

    #[test]
    fn times_have_three_digits() {
        let cases = [
            (0, "0.00 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (82_149, "82.1 µs"),
            (99_960, "100 µs"),
            (999_600, "1.00 ms"),
            (50_700_000, "50.7 ms"),
            (1_034_000_000, "1.03 s"),
            (3_600_000_000_000, "3600 s"),
        ];
        for (nanos, shown) in cases {
            assert_eq!(time(nanos), shown);
        }
    }

    #[test]
    fn thousands_are_separated() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, shown) in cases {
            assert_eq!(count(number), shown);
        }
    }

    #[test]
    fn json_has_what_scripts_rely_on_and_nothing_else() {
        let mut tally = Tally::new();
        let (acquire, release) = (Duration::from_micros(100), Duration::from_micros(50));
        tally.pair(acquire, release, ReleaseOutcome::AlreadyExpired);
        let row = Row { nodes: 5, in_flight: 8, took: Duration::from_secs(2), tally };
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let json = row.json();
        let mut top = names(&json);
        top.sort();
        let fields = ["acquire_us", "errors", "in_flight", "nodes", "pairs", "pairs_per_s"];
        assert_eq!(top, [&fields[..], &["release_us", "seconds"]].concat());
        let mut latencies = names(&json["release_us"]);
        latencies.sort();
        assert_eq!(latencies, ["max", "p50", "p90", "p99", "p999"]);
        assert_eq!(json["pairs_per_s"], 0.5);
        assert_eq!(json["acquire_us"]["p50"], 100.0);
        assert_eq!(json["errors"], json!({"release_expired": 1}));
    }
}
