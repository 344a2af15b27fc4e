//! The figures of one round: pairs, the time of each acquire, and the whole process's time on the
//! processors meanwhile.
//!
//! The hazard is a process in which something else runs: the other doors are idle, except for a
//! probe now and then, which is counted to the door that runs.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The acquires of one worker.
#[derive(Debug, Default)]
pub struct Samples {
    /// Nanoseconds; an acquire that took longer than four seconds is counted as four seconds.
    nanos: Vec<u32>,
}

impl Samples {
    /// An acquire that was asked for at `asked` has been answered.
    pub fn acquired(&mut self, asked: Instant) {
        let nanos = asked.elapsed().as_nanos();
        self.nanos.push(u32::try_from(nanos).unwrap_or(u32::MAX));
    }

    pub fn append(&mut self, mut other: Samples) {
        self.nanos.append(&mut other.nanos);
    }
}

/// What the process has cost so far, at the beginning of a round.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    cpu: Duration,
    switches: u64,
}

impl Meter {
    pub fn start() -> Meter {
        Meter { cpu: process_cpu(), switches: switches(), started: Instant::now() }
    }

    /// When a round of this length is over: pairs that began before are completed.
    pub fn until(&self, length: Duration) -> Instant {
        self.started + length
    }

    /// The round is over. Every acquire was followed by its release.
    pub fn stop(self, samples: Samples) -> Round {
        Round {
            elapsed: self.started.elapsed(),
            cpu: process_cpu().saturating_sub(self.cpu),
            switches: switches().saturating_sub(self.switches),
            nanos: samples.nanos,
        }
    }
}

/// A round that is over.
#[derive(Debug)]
pub struct Round {
    elapsed: Duration,
    cpu: Duration,
    switches: u64,
    nanos: Vec<u32>,
}

/// The figures of a round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub p50_us: f64,
    pub p99_us: f64,
    /// The processor time of the process, in the program and in the kernel, for each pair.
    pub cpu_us: f64,
    /// How often a thread of the process made way for another, for each pair.
    pub switches: f64,
    pub pairs_per_s: f64,
}

impl Round {
    pub fn figures(mut self) -> Figures {
        self.nanos.sort_unstable();
        let pairs = self.nanos.len();
        assert!(pairs > 0, "a round has at least one pair");
        let at = |hundredths: usize| f64::from(self.nanos[(pairs - 1) * hundredths / 100]) / 1e3;
        Figures {
            p50_us: at(50),
            p99_us: at(99),
            cpu_us: self.cpu.as_secs_f64() * 1e6 / pairs as f64,
            switches: self.switches as f64 / pairs as f64,
            pairs_per_s: pairs as f64 / self.elapsed.as_secs_f64(),
        }
    }
}

/// How long the threads of this process have run, in the program and in the kernel.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often a thread of this process made way for another, also threads that are gone.
#[expect(unsafe_code, reason = "getrusage(2) has no safe wrapper here")]
fn switches() -> u64 {
    // SAFETY: all zeros is a value of this plain structure, and the call writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0, "it takes what is given");
        usage
    };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}
