//! Writes a histogram in the text format that the plotters of HdrHistogram read. A line has a
//! value, its percentile, how many values are no greater, and 1/(1-percentile).
//!
//! Values are milliseconds, which those plotters assume unless another unit is set.

use std::fmt::{Result, Write};

use hdrhistogram::Histogram;

/// How many lines there are each time that the distance to 100 % halves: as many as other writers
/// of the format use.
const LINES_PER_HALVING: u32 = 5;

const MILLI: f64 = 1e6;

/// The whole text for a histogram of nanoseconds.
pub fn text(histogram: &Histogram<u64>) -> String {
    let mut text = String::new();
    write(&mut text, histogram).expect("a String takes whatever is written");
    text
}

fn write(out: &mut String, histogram: &Histogram<u64>) -> Result {
    let [value, percentile] = ["Value", "Percentile"];
    writeln!(
        out,
        "{value:>12} {percentile:>14} {:>10} {:>14}\n",
        "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for step in histogram.iter_quantiles(LINES_PER_HALVING) {
        total += step.count_since_last_iteration();
        let value = step.value_iterated_to() as f64 / MILLI;
        let quantile = step.quantile_iterated_to();
        write!(out, "{value:12.6} {quantile:14.12} {total:10}")?;
        // The last line has no fourth column: its value would be infinite.
        if quantile < 1.0 {
            write!(out, " {:14.2}", 1.0 / (1.0 - quantile))?;
        }
        writeln!(out)?;
    }
    let (mean, deviation) = (histogram.mean() / MILLI, histogram.stdev() / MILLI);
    writeln!(out, "#[Mean    = {mean:12.6}, StdDeviation   = {deviation:12.6}]")?;
    let (max, count) = (histogram.max() as f64 / MILLI, histogram.len());
    writeln!(out, "#[Max     = {max:12.6}, Total count    = {count:12}]")?;
    let halves = (2 * 10_u32.pow(histogram.sigfig().into())).next_power_of_two();
    writeln!(out, "#[Buckets = {:12}, SubBuckets     = {halves:12}]", histogram.buckets())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected lines are those of the reference implementation, except for the digits of a
    /// value.
    #[test]
    fn hgrm_has_the_format_of_hdr_histogram_plotters() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for micros in [100, 200, 300, 400] {
            histogram.record(micros * 1000).unwrap();
        }
        let text = text(&histogram);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        assert_eq!(lines[2], "    0.100031 0.000000000000          1           1.00");
        let last = lines.iter().rfind(|line| !line.starts_with('#')).unwrap();
        assert_eq!(*last, "    0.400127 1.000000000000          4");
        assert!(lines.contains(&"#[Max     =     0.400127, Total count    =            4]"));
        assert!(lines.last().unwrap().contains("SubBuckets     =         2048]"), "{text}");
    }
}
