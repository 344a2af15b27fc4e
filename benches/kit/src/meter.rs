//! The figures of one round: pairs, the time of each acquire, and the time on the processors
//! meanwhile.
//!
//! The hazard is a process in which something else runs: the other contenders are idle, except for
//! a probe now and then, which counts for the one that runs.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

use super::quantiles::quantile;

/// The acquires of one worker.
#[derive(Debug, Default)]
pub struct Samples {
    nanos: Vec<u64>,
    lost: usize,
    is_cut_short: bool,
}

impl Samples {
    /// Counts an acquire that was requested at `asked` and has been answered.
    pub fn acquired(&mut self, asked: Instant) {
        self.nanos.push(asked.elapsed().as_nanos() as u64);
    }

    /// Counts an attempt on a free key that was lost.
    pub fn lost(&mut self) {
        self.lost += 1;
    }

    /// Notes that the round did not end in time.
    pub fn cut_short(&mut self) {
        self.is_cut_short = true;
    }

    pub fn append(&mut self, mut other: Samples) {
        self.nanos.append(&mut other.nanos);
        self.lost += other.lost;
        self.is_cut_short |= other.is_cut_short;
    }

    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nanos.is_empty()
    }
}

/// The processor time that the process or one thread had used when the round began.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    clock: ClockId,
    cpu: Duration,
    switches: u64,
}

impl Meter {
    /// Counts the time of all threads.
    pub fn start() -> Meter {
        Meter::start_of(ClockId::ProcessCPUTime)
    }

    /// Counts the time of this thread, which also stops the meter.
    pub fn start_of_thread() -> Meter {
        Meter::start_of(ClockId::ThreadCPUTime)
    }

    fn start_of(clock: ClockId) -> Meter {
        Meter { cpu: cpu(clock), clock, switches: switches(), started: Instant::now() }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// When a round of this length is over. Pairs that began before are completed.
    pub fn until(&self, length: Duration) -> Instant {
        self.started + length
    }

    /// Ends the round. Every acquire was followed by its release.
    pub fn stop(self, samples: Samples) -> Round {
        let pairs = samples.len();
        self.stop_after(pairs, samples)
    }

    /// Ends the round after this many pairs. A round without a pair has the figures of one pair
    /// that took all of it.
    pub fn stop_after(self, pairs: usize, samples: Samples) -> Round {
        let (elapsed, cpu) = (self.started.elapsed(), cpu(self.clock).saturating_sub(self.cpu));
        let switches = switches().saturating_sub(self.switches);
        let mut samples = samples;
        if samples.is_empty() {
            samples.nanos.push(elapsed.as_nanos() as u64);
        }
        samples.nanos.sort_unstable();
        Round { elapsed, cpu, switches, pairs: pairs.max(1) as f64, samples }
    }
}

/// A round that is over.
#[derive(Debug)]
pub struct Round {
    elapsed: Duration,
    cpu: Duration,
    switches: u64,
    pairs: f64,
    samples: Samples,
}

impl Round {
    /// The latency in microseconds that this part of the acquires did not exceed.
    pub fn quantile_us(&self, part: f64) -> f64 {
        quantile(&self.samples.nanos, part) / 1e3
    }

    pub fn p50_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    pub fn p99_us(&self) -> f64 {
        self.quantile_us(0.99)
    }

    /// The processor time in the program and in the kernel, for each pair.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pairs
    }

    /// How many context switches of the process there were for each pair.
    pub fn switches(&self) -> f64 {
        self.switches as f64 / self.pairs
    }

    pub fn pairs(&self) -> f64 {
        self.pairs
    }

    pub fn pairs_per_s(&self) -> f64 {
        self.pairs / self.elapsed.as_secs_f64()
    }

    /// Attempts on a free key that were lost.
    pub fn lost(&self) -> usize {
        self.samples.lost
    }

    /// Whether every pair that began came to its end.
    pub fn is_whole(&self) -> bool {
        !self.samples.is_cut_short
    }
}

/// How long the threads of this process have run, in the program and in the kernel.
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// How long this thread has run.
pub fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often a thread of this process made way for another, also threads that are gone.
fn switches() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("every process has a usage");
    (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64
}
