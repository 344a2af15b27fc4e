//! The figures of one round: pairs, the time of each acquire, the whole process's time on the
//! processors meanwhile, and what the hypervisor took.
//!
//! The hazard is a process in which something else runs: the other contenders are idle, and their
//! runtimes are not driven.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The percentiles that are kept of a round.
pub const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// The acquires of one worker.
#[derive(Debug, Default)]
pub struct Samples {
    /// Nanoseconds; an acquire that took longer than four seconds is counted as four seconds.
    nanos: Vec<u32>,
    failed: usize,
    unfinished: bool,
}

impl Samples {
    /// An acquire that was asked for at `asked` has been answered.
    pub fn acquired(&mut self, asked: Instant) {
        let nanos = asked.elapsed().as_nanos();
        self.nanos.push(u32::try_from(nanos).unwrap_or(u32::MAX));
    }

    /// An attempt on a free key was lost.
    pub fn failed(&mut self) {
        self.failed += 1;
    }

    /// The round did not end in time.
    pub fn unfinished(&mut self) {
        self.unfinished = true;
    }

    pub fn append(&mut self, mut other: Samples) {
        self.nanos.append(&mut other.nanos);
        self.failed += other.failed;
    }
}

/// What the process has cost so far, at the beginning of a round.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    cpu: Duration,
}

impl Meter {
    pub fn start() -> Meter {
        Meter { cpu: process_cpu(), started: Instant::now() }
    }

    /// When a round of this length is over: pairs that began before are completed.
    pub fn until(&self, length: Duration) -> Instant {
        self.started + length
    }

    /// The round is over. Every acquire was followed by its release.
    pub fn stop(self, samples: Samples) -> Round {
        let elapsed = self.started.elapsed();
        Round { elapsed, cpu: process_cpu().saturating_sub(self.cpu), samples }
    }
}

/// A round that is over.
#[derive(Debug)]
pub struct Round {
    elapsed: Duration,
    cpu: Duration,
    samples: Samples,
}

/// The figures of a round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// The percentiles of the acquires, in the order of `PERCENTILES`.
    pub percentiles_us: [f64; PERCENTILES.len()],
    /// The processor time of the process, in the program and in the kernel, for each pair.
    pub cpu_us: f64,
    pub pairs_per_s: f64,
    /// Attempts on a free key that were lost.
    pub failed: f64,
}

impl Round {
    /// Whether every pair that began came to its end.
    pub fn is_whole(&self) -> bool {
        !self.samples.unfinished
    }

    /// The figures; a round without any pair has the figures of one pair that took all of it.
    pub fn figures(mut self) -> Figures {
        let nanos = &mut self.samples.nanos;
        if nanos.is_empty() {
            nanos.push(u32::try_from(self.elapsed.as_nanos()).unwrap_or(u32::MAX));
        }
        nanos.sort_unstable();
        let pairs = nanos.len();
        let at = |percent: f64| f64::from(nanos[((pairs - 1) as f64 * percent / 100.0) as usize]);
        Figures {
            percentiles_us: PERCENTILES.map(|percent| at(percent) / 1e3),
            cpu_us: self.cpu.as_secs_f64() * 1e6 / pairs as f64,
            pairs_per_s: pairs as f64 / self.elapsed.as_secs_f64(),
            failed: self.samples.failed as f64,
        }
    }
}

impl Figures {
    pub fn p50_us(&self) -> f64 {
        self.percentiles_us[0]
    }

    pub fn p99_us(&self) -> f64 {
        self.percentiles_us[4]
    }
}

/// The median of the rounds.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// How long the threads of this process have run, in the program and in the kernel.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the hypervisor took from this machine, and all of its time, since it was started; in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    pub fn now() -> Ticks {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // The fields are user nice system idle iowait irq softirq steal; the fields after these are
        // parts of the first two.
        let fields = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        Ticks { stolen: ticks.get(7).copied().unwrap_or(0), all: ticks.iter().sum() }
    }

    /// The part of the time since then that the hypervisor took.
    pub fn stolen_since(self) -> f64 {
        let now = Ticks::now();
        (now.stolen - self.stolen) as f64 / (now.all - self.all).max(1) as f64
    }
}
