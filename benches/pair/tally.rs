//! The pairs of one round, and when the round is over.
//!
//! In a closed loop the figures are taken at the first look at the clock after the round's end.
//! Requests that are still in flight then are completed, and not counted. In an open loop every
//! request counts. The processor time is that of the thread.

use std::time::{Duration, Instant};

use kit::{Meter, Round, Samples};

/// Counts one round.
#[derive(Debug)]
pub struct Tally {
    /// Until the round is over.
    meter: Option<Meter>,
    samples: Samples,
    pairs: usize,
    started: Instant,
    until: Instant,
    round: Option<Round>,
}

impl Tally {
    /// Begins a round of this length, now.
    pub fn begin(length: Duration) -> Tally {
        let meter = Meter::start_of_thread();
        let (started, until) = (meter.started(), meter.until(length));
        let (meter, samples) = (Some(meter), Samples::default());
        Tally { meter, samples, pairs: 0, started, until, round: None }
    }

    /// Counts an acquire that was requested at `asked` and has been answered.
    pub fn acquired(&mut self, asked: Instant) {
        self.samples.acquired(asked);
    }

    /// A pair is complete. Returns the moment at which the next one begins, or `None` at the
    /// round's end.
    pub fn released(&mut self) -> Option<Instant> {
        self.meter.as_ref()?;
        self.pairs += 1;
        let now = Instant::now();
        if now < self.until {
            return Some(now);
        }
        self.end();
        None
    }

    /// When the round began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// A pair of an open loop is complete. Each of them counts: those that are complete only after
    /// the round's end are the slow ones.
    pub fn completed(&mut self) {
        self.pairs += 1;
    }

    /// Notes that the last pair is complete.
    pub fn end(&mut self) {
        let samples = std::mem::take(&mut self.samples);
        self.round = self.meter.take().map(|meter| meter.stop_after(self.pairs, samples));
    }

    /// The figures of the round. It has to be over.
    pub fn round(self) -> Round {
        self.round.expect("a round ends with a pair after its end")
    }
}
