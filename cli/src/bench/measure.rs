//! One measurement: a warm-up that does not count, the time that counts, and the wait for the pairs
//! that began in it.
//!
//! The hazard is a tail that is cut off. So slow pairs are awaited at the end, and those that still
//! do not end are counted as unfinished, never left out.

use std::io;
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::driver::Driver;
use super::pairs::{Begin, Ended, Pairs, Window};
use super::progress::Progress;
use super::tally::Tally;

/// How long pairs in flight are awaited at the end, beyond the longest time of a release.
const DRAIN: Duration = Duration::from_secs(1);

/// When pairs begin.
pub trait Load {
    /// The next pair that is to begin now; none after the end.
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin>;

    /// When the next pair may begin, unless it waits for another to end.
    fn due(&self) -> Option<Instant>;

    /// A pair has ended.
    fn ended(&mut self, ended: Ended, now: Instant);

    /// How many pairs should have begun before the end, and did not.
    fn late(&self, end: Instant) -> u64;
}

/// The times of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub warm_up: Duration,
    pub duration: Duration,
    /// How long a release may take.
    pub node_timeout: Duration,
}

/// The result of a measurement.
#[derive(Debug)]
pub struct Measured {
    pub tally: Tally,
    /// From the end of the warm-up to the end of the last pair that counts.
    pub took: Duration,
    /// The signal that ended the measurement early.
    pub signal: Option<i32>,
}

struct Measurement<'a> {
    driver: &'a mut Driver,
    pairs: &'a mut Pairs,
    load: &'a mut dyn Load,
    window: Window,
    /// From then on no pair is awaited.
    over: Instant,
    drain: Duration,
    measured: Measured,
}

/// Runs a measurement from `start` on.
///
/// # Errors
/// The system's poller fails.
pub fn measure(
    driver: &mut Driver,
    pairs: &mut Pairs,
    load: &mut dyn Load,
    start: Instant,
    times: Times,
    progress: &mut Progress,
) -> io::Result<Measured> {
    let begin = start.saturating_add(times.warm_up);
    let end = begin.saturating_add(times.duration);
    let drain = DRAIN.saturating_add(times.node_timeout);
    let measured = Measured { tally: Tally::new(), took: times.duration, signal: None };
    let window = Window { begin, end };
    let over = end.saturating_add(drain);
    let mut it = Measurement { driver, pairs, load, window, over, drain, measured };
    let now = it.run(progress)?;
    // Pairs of the warm-up count as well: if no pair ends any more, the result has to show that.
    let unfinished = it.pairs.abandon(it.driver) + it.load.late(it.window.end);
    it.measured.tally.unfinished(unfinished);
    it.measured.took = now.max(it.window.end).saturating_since(begin);
    Ok(it.measured)
}

impl Measurement<'_> {
    /// Returns when the measurement was over.
    fn run(&mut self, progress: &mut Progress) -> io::Result<Instant> {
        loop {
            let now = clock::now();
            self.begin_due(now);
            let asked = now < self.window.end || self.load.late(self.window.end) > 0;
            if (!asked && self.pairs.under_way() == 0) || now >= self.over {
                return Ok(now);
            }
            let tick = progress.show(now, &self.window, &self.measured.tally);
            let end = if now < self.window.end { self.window.end } else { self.over };
            let due = [Some(end), self.load.due(), tick].into_iter().flatten().min();
            self.driver.turn(due.unwrap_or(end))?;
            while let Some(done) = self.driver.completion() {
                let (window, tally) = (&self.window, &mut self.measured.tally);
                if let Some(ended) = self.pairs.take(self.driver, done, window, tally) {
                    self.load.ended(ended, clock::now());
                }
            }
            while let Some(signal) = self.driver.signal() {
                self.end_early(signal);
            }
        }
    }

    fn begin_due(&mut self, now: Instant) {
        while let Some(begin) = self.load.next(now, self.window.end) {
            if let Err((from, error)) = self.pairs.begin(self.driver, begin) {
                if self.window.counts(from) {
                    self.measured.tally.refused(&error);
                }
                let Begin { client, key, .. } = begin;
                self.load.ended(Ended { client, key, failed: true }, now);
            }
        }
    }

    /// The first signal ends the time that counts, the second one the wait for pairs in flight.
    fn end_early(&mut self, signal: i32) {
        let now = clock::now();
        if self.measured.signal.replace(signal).is_some() {
            self.over = now;
        } else if now < self.window.end {
            self.window.end = now.max(self.window.begin);
            self.over = now.saturating_add(self.drain);
        }
    }
}
