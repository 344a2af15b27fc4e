//! The checker, which knows nothing of Redis or of the library, and reads only the sheets.
//!
//! No two holds of one key may overlap. A hold lasts from the beginning of its use until its end,
//! or until the deadline that the library reported, if that is earlier or no end was written. All
//! moments are on `CLOCK_BOOTTIME` of one machine, so they can be compared between processes.
//!
//! The hazard is that the clients go on while the sheets are read one after the other: a hold that
//! ended in the meantime would seem to overlap with the next. So a check takes only the holds that
//! began before the check. A holder writes its end before it releases, so the ends of all earlier
//! holds of the same key are already written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use redlatch::clock;

use super::sheet::{Count, Hold, Page};

/// A process and its sheet.
#[derive(Debug, Clone)]
pub struct Source {
    /// The name of the worker. A process that replaces a killed one has the same name.
    pub worker: String,
    pub kind: &'static str,
    pub path: PathBuf,
}

/// What the checker found on all sheets.
#[derive(Debug, Default)]
pub struct Summary {
    /// Holds by kind of holder.
    pub holds: BTreeMap<&'static str, u64>,
    /// How often each counted event of the sheets happened, by kind of holder.
    pub counts: BTreeMap<&'static str, Vec<u64>>,
    /// The last moment at which a hold began, by worker and by key.
    pub last_of_worker: BTreeMap<String, u64>,
    pub last_of_key: BTreeMap<u64, u64>,
    /// The pairs of holds that overlap.
    pub overlaps: Vec<String>,
    /// The longest hold, in nanoseconds.
    pub longest: u64,
    /// The longest time without a holder, by key.
    pub gaps: BTreeMap<u64, Gap>,
}

/// A time in which no worker held a key, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    pub length: u64,
    /// When the hold before it ended.
    pub begin: u64,
}

impl Summary {
    pub fn total(&self) -> u64 {
        self.holds.values().sum()
    }

    pub fn count(&self, kind: &str, what: Count) -> u64 {
        self.counts.get(kind).and_then(|counts| counts.get(what as usize)).copied().unwrap_or(0)
    }
}

/// Reads all sheets and looks for overlaps.
pub fn check(sources: &[Source]) -> Summary {
    let mut summary = Summary::default();
    let start = clock::now().as_nanos();
    let mut by_key: BTreeMap<u64, Vec<(usize, Hold)>> = BTreeMap::new();
    for (at, source) in sources.iter().enumerate() {
        let page = Page::read(&source.path);
        *summary.holds.entry(source.kind).or_default() += page.holds.len() as u64;
        let counts = summary.counts.entry(source.kind).or_default();
        counts.resize(page.counts.len(), 0);
        counts.iter_mut().zip(&page.counts).for_each(|(sum, count)| *sum += count);
        let last = summary.last_of_worker.entry(source.worker.clone()).or_default();
        for hold in page.holds {
            *last = (*last).max(hold.begin);
            let last_of_key = summary.last_of_key.entry(hold.key).or_default();
            *last_of_key = (*last_of_key).max(hold.begin);
            summary.longest = summary.longest.max(hold.until().saturating_sub(hold.begin));
            if hold.begin < start {
                by_key.entry(hold.key).or_default().push((at, hold));
            }
        }
    }
    for (&key, holds) in &mut by_key {
        let overlaps = overlapping(holds);
        summary.gaps.insert(key, longest_gap(holds, start));
        summary.overlaps.extend(overlaps.iter().map(|(a, b)| describe(sources, a, b)));
    }
    summary
}

type Placed = (usize, Hold);

/// The pairs that overlap among the holds of one key.
fn overlapping(holds: &mut [Placed]) -> Vec<(Placed, Placed)> {
    holds.sort_unstable_by_key(|(_, hold)| hold.begin);
    let mut found = Vec::new();
    let mut latest: Option<Placed> = None;
    for &next in &*holds {
        if let Some(before) = latest.filter(|before| next.1.begin < before.1.until()) {
            found.push((before, next));
        }
        if latest.is_none_or(|before| next.1.until() > before.1.until()) {
            latest = Some(next);
        }
    }
    found
}

/// The longest time between two of the holds of one key, or after the last until `now`. They are in
/// the order in which they began.
fn longest_gap(holds: &[Placed], now: u64) -> Gap {
    let Some(mut until) = holds.first().map(|(_, first)| first.until()) else {
        return Gap::default();
    };
    let mut longest = Gap::default();
    let begins = holds.iter().map(|(_, hold)| (hold.begin, hold.until()));
    for (begin, end) in begins.skip(1).chain([(now, now)]) {
        longest = longest.max(Gap { length: begin.saturating_sub(until), begin: until });
        until = until.max(end);
    }
    longest
}

fn describe(sources: &[Source], first: &Placed, second: &Placed) -> String {
    let zero = first.1.begin;
    let ms = |moment: u64| (moment as f64 - zero as f64) / 1e6;
    let one = |(at, hold): &Placed| {
        let Source { worker, path, .. } = &sources[*at];
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let end = if hold.end == 0 { "none".into() } else { format!("{:.3}", ms(hold.end)) };
        format!(
            "{worker} (sheet {name}, hold {}): begin {:.3} ms, deadline {:.3} ms, end {end}",
            hold.number,
            ms(hold.begin),
            ms(hold.deadline),
        )
    };
    format!("key {}: {}; {}", first.1.key, one(first), one(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(holds: &[(u64, u64, u64)]) -> usize {
        let hold = |&(begin, deadline, end)| (0, Hold { key: 7, begin, deadline, end, number: 0 });
        overlapping(&mut holds.iter().map(hold).collect::<Vec<_>>()).len()
    }

    #[test]
    fn the_checker_finds_overlaps_and_no_others() {
        // One hold ends at the same nanosecond at which another begins.
        assert_eq!(overlaps(&[(10, 100, 20), (20, 120, 30)]), 0);
        assert_eq!(overlaps(&[(10, 100, 21), (20, 120, 30)]), 1);
        // A hold without an end lasts until its deadline.
        assert_eq!(overlaps(&[(10, 100, 0), (99, 200, 150)]), 1);
        assert_eq!(overlaps(&[(10, 100, 0), (100, 200, 150)]), 0);
        // An end after the deadline is ignored, because the hold ended at the deadline.
        assert_eq!(overlaps(&[(10, 100, 180), (110, 200, 150)]), 0);
        // One hold overlaps with both others. The order of the sheets does not matter.
        assert_eq!(overlaps(&[(40, 140, 50), (10, 100, 0), (20, 120, 30)]), 2);
    }

    #[test]
    fn the_checker_finds_the_longest_time_without_a_holder() {
        let gap = |holds: &[(u64, u64, u64)], now| {
            let hold = |&(begin, deadline, end)| Hold { key: 7, begin, deadline, end, number: 0 };
            let placed: Vec<Placed> = holds.iter().map(|it| (0, hold(it))).collect();
            let Gap { length, begin } = longest_gap(&placed, now);
            (length, begin)
        };
        assert_eq!(gap(&[(10, 100, 20), (25, 100, 30), (50, 150, 60)], 70), (20, 30));
        // A hold without an end lasts until its deadline, and another one in it ends nothing.
        assert_eq!(gap(&[(10, 100, 0), (25, 60, 0), (103, 200, 110)], 112), (3, 100));
        // Nobody got the key again.
        assert_eq!(gap(&[(10, 100, 20), (25, 100, 30)], 130), (100, 30));
    }
}
