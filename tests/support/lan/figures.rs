//! The results of runs: rates, costs, waits and fairness. All times are simulated.

use std::time::Duration;

use super::world::NODES;

/// What the contenders did in the measured time of a run. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    pub length: Duration,
    /// How often each contender got the lock.
    pub wins: Vec<u64>,
    /// The commands that the contenders sent, to all masters together.
    pub commands: u64,
    /// An entry for each hand-over, when another contender than the last one gets a lock: the time
    /// since the hand-over before it.
    pub hand_overs: Vec<u64>,
    /// How long each request waited; if it still waits at the end of the run, how long until then.
    pub waits: Vec<u64>,
    /// An entry each time a contender gets a lock for which it waited: the time since the holder
    /// sent the release of its keys.
    pub gaps: Vec<u64>,
}

/// The figures of some runs of one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub acquisitions_per_s: f64,
    /// How often another contender than the last one got a lock.
    pub hand_overs_per_s: f64,
    /// The commands that each master received for one acquisition, on average.
    pub commands: f64,
    /// The median time from a release until a contender that waited has the lock, in microseconds.
    pub gap_p50_us: f64,
    pub gap_p99_us: f64,
    /// The p99 of the waits, counted in turns. A turn is the time in which each contender could
    /// have the lock once: the number of contenders times the median time between two hand-overs.
    pub wait_p99_turns: f64,
    /// Jain's index of fairness, on average: 1 if all contenders got the lock equally often.
    pub jain: f64,
    /// How many contenders never got the lock in a run, on average.
    pub without: f64,
}

impl Counts {
    pub fn new(contenders: usize, length: Duration) -> Counts {
        Counts {
            length,
            wins: vec![0; contenders],
            commands: 0,
            hand_overs: Vec::new(),
            waits: Vec::new(),
            gaps: Vec::new(),
        }
    }

    pub fn acquisitions(&self) -> u64 {
        self.wins.iter().sum()
    }

    pub fn without(&self) -> usize {
        self.wins.iter().filter(|&&wins| wins == 0).count()
    }

    /// Jain's index in thousandths.
    pub fn jain(&self) -> u64 {
        (1000.0 * self.exact_jain()) as u64
    }

    fn exact_jain(&self) -> f64 {
        let squares: u64 = self.wins.iter().map(|wins| wins * wins).sum();
        let square = self.acquisitions().pow(2) as f64;
        square / (self.wins.len() as u64 * squares).max(1) as f64
    }
}

impl Figures {
    /// The figures of all these runs together.
    pub fn of(runs: &[Counts]) -> Figures {
        let all = |of: fn(&Counts) -> &[u64]| {
            let mut all: Vec<u64> = runs.iter().flat_map(|run| of(run).iter().copied()).collect();
            all.sort_unstable();
            all
        };
        let mean = |of: fn(&Counts) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let [hand_overs, waits, gaps] =
            [all(|run| &run.hand_overs), all(|run| &run.waits), all(|run| &run.gaps)];
        let seconds: f64 = runs.iter().map(|run| run.length.as_secs_f64()).sum();
        let acquisitions: u64 = runs.iter().map(Counts::acquisitions).sum();
        let commands: u64 = runs.iter().map(|run| run.commands).sum();
        let contenders = runs.first().map_or(0, |run| run.wins.len());
        let turn = contenders as f64 * quantile(&hand_overs, 0.5);
        Figures {
            acquisitions_per_s: acquisitions as f64 / seconds,
            hand_overs_per_s: hand_overs.len() as f64 / seconds,
            commands: commands as f64 / NODES as f64 / acquisitions as f64,
            gap_p50_us: quantile(&gaps, 0.5) / 1e3,
            gap_p99_us: quantile(&gaps, 0.99) / 1e3,
            wait_p99_turns: quantile(&waits, 0.99) / turn,
            jain: mean(Counts::exact_jain),
            without: mean(|run| run.without() as f64),
        }
    }
}

/// The smallest value that at least this part of the values do not exceed; `NaN` if there are none.
fn quantile(sorted: &[u64], part: f64) -> f64 {
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).map_or(f64::NAN, |&value| value as f64)
}
