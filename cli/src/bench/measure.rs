//! One measurement: a warm-up that does not count, the time that does, and the end of those that
//! began in it.
//!
//! The hazard is a tail that is cut off: pairs that are slow at the end are waited for, and those
//! that do not end even so are counted as unfinished, never left out.

use std::io;
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::driver::Driver;
use super::pairs::{Begin, Ended, Pairs, Window};
use super::progress::Progress;
use super::tally::Tally;

/// How long the pairs that are under way at the end are waited for, beyond what a release takes at
/// most.
const DRAIN: Duration = Duration::from_secs(1);

/// When pairs begin.
pub trait Load {
    /// The next pair that is to begin now; none behind the end.
    fn next(&mut self, now: Instant, end: Instant) -> Option<Begin>;

    /// When there may be a next one, where it does not take the end of another.
    fn due(&self) -> Option<Instant>;

    /// A pair has ended.
    fn ended(&mut self, ended: Ended, now: Instant);

    /// How many should have begun before the end, and did not.
    fn late(&self, end: Instant) -> u64;
}

/// How long it takes.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub warm_up: Duration,
    pub duration: Duration,
    /// How long a release may take.
    pub node_timeout: Duration,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    pub tally: Tally,
    /// From the end of the warm-up to that of the last pair that counts.
    pub took: Duration,
    /// The signal that ended it early.
    pub signal: Option<i32>,
}

struct Measurement<'a> {
    driver: &'a mut Driver,
    pairs: &'a mut Pairs,
    load: &'a mut dyn Load,
    window: Window,
    /// Nobody is waited for any longer.
    over: Instant,
    drain: Duration,
    measured: Measured,
}

/// Measures from `start` on.
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
    // Those that began with the warm-up, too: where nothing ends any more, that is to be seen.
    let unfinished = it.pairs.abandon(it.driver) + it.load.late(it.window.end);
    it.measured.tally.unfinished(unfinished);
    it.measured.took = now.max(it.window.end).saturating_since(begin);
    Ok(it.measured)
}

impl Measurement<'_> {
    /// Returns when it was over.
    fn run(&mut self, progress: &mut Progress) -> io::Result<Instant> {
        loop {
            let now = clock::now();
            self.begin_due(now);
            let asked = now < self.window.end || self.load.late(self.window.end) > 0;
            if (!asked && self.pairs.under_way() == 0) || now >= self.over {
                return Ok(now);
            }
            let tick = progress.tell(now, &self.window, &self.measured.tally);
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

    /// The first signal ends the time that counts, the second one the waiting for what is under
    /// way.
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
