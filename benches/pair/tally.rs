//! The figures of one round: pairs, the time of each acquire, and the thread's own time on the
//! processor.
//!
//! In a closed loop the figures are taken at the first look at the clock after the round's end.
//! Requests that are still in flight then are completed, and not counted. In an open loop every
//! request counts.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The longest acquire that has a bucket of its own; longer ones share the last one.
const LONGEST: Duration = Duration::from_secs(10);

/// Counts one round.
#[derive(Debug)]
pub struct Tally {
    histogram: Histogram<u64>,
    pairs: u64,
    started: Instant,
    cpu_at_start: Duration,
    length: Duration,
    figures: Option<Figures>,
}

/// The figures of a round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub p50_us: f64,
    pub p99_us: f64,
    pub cpu_us: f64,
    pub pairs_per_s: f64,
}

impl Tally {
    /// Begins a round of this length, now.
    pub fn begin(length: Duration) -> Tally {
        let longest = LONGEST.as_nanos() as u64;
        let histogram =
            Histogram::new_with_bounds(1, longest, 3).expect("these bounds are in order");
        let (started, cpu_at_start) = (Instant::now(), thread_cpu());
        Tally { histogram, pairs: 0, started, cpu_at_start, length, figures: None }
    }

    /// An acquire that was asked for at `asked` has been answered.
    pub fn acquired(&mut self, asked: Instant) {
        self.histogram.saturating_record(asked.elapsed().as_nanos() as u64);
    }

    /// A pair is complete. Returns the moment at which the next one begins, or `None` at the
    /// round's end.
    pub fn released(&mut self) -> Option<Instant> {
        if self.figures.is_some() {
            return None;
        }
        self.pairs += 1;
        let now = Instant::now();
        if now.duration_since(self.started) < self.length {
            return Some(now);
        }
        self.figures = Some(self.count(now));
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

    /// The last pair of an open loop is complete.
    pub fn end(&mut self) {
        self.figures = Some(self.count(Instant::now()));
    }

    /// The figures of the round. It has to be over.
    pub fn figures(&self) -> Figures {
        self.figures.expect("a round ends with a pair after its end")
    }

    fn count(&self, now: Instant) -> Figures {
        let micros = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        let cpu = thread_cpu().saturating_sub(self.cpu_at_start);
        let pairs = self.pairs as f64;
        Figures {
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            cpu_us: cpu.as_secs_f64() * 1e6 / pairs,
            pairs_per_s: pairs / now.duration_since(self.started).as_secs_f64(),
        }
    }
}

/// How long this thread has run on a processor, in the program and in the kernel.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
