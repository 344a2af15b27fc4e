//! One measurement: a warm-up that is not recorded, the measured time, and the wait for the pairs
//! that began in it.
//!
//! The hazard is to leave out the slowest pairs. So the measurement waits for slow pairs at the
//! end, and counts those that still do not end as unfinished.

use std::io;
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::driver::Driver;
use super::pairs::{Begin, Ended, Pairs, Window};
use super::progress::Progress;
use super::tally::Tally;

/// How long the measurement waits at the end for pairs in flight, besides the node timeout, which
/// is the longest time of a release.
const DRAIN: Duration = Duration::from_secs(1);

/// Decides when pairs begin.
pub trait Load {
    /// A pair that has to begin now, if any. After `end` no pair begins.
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin>;

    /// When the next pair begins; `None` if it has to wait until another pair ends.
    fn due(&self) -> Option<Instant>;

    /// Records that a pair has ended, so that its key and place are free.
    fn ended(&mut self, ended: Ended, now: Instant);

    /// How many pairs should have begun before `end`, but have not begun.
    fn late(&self, end: Instant) -> u64;
}

/// How long the parts of a measurement take.
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
    /// From the end of the warm-up to the end of the last recorded pair.
    pub took: Duration,
    /// The signal that ended the measurement early.
    pub signal: Option<i32>,
}

struct Measurement<'a> {
    driver: &'a mut Driver,
    pairs: &'a mut Pairs,
    load: &'a mut dyn Load,
    window: Window,
    /// When the measurement stops waiting for pairs in flight.
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
    // Unfinished pairs of the warm-up count too: if no pair ended at all, the result has to show
    // it.
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
            if (!asked && self.pairs.in_flight() == 0) || now >= self.over {
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

    /// The first signal ends the measured time, the second the wait for pairs in flight.
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
