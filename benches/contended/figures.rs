//! The figures of the contenders' holds. The first check is that no two had the lock at one time;
//! then follow the rate, the cost, the waits and the fairness.

use std::time::Duration;

use kit::quantile;

use super::contender::{Diary, Hold};

/// What was measured.
pub struct Round {
    pub begin: u64,
    pub end: u64,
    pub diaries: Vec<Diary>,
    pub nodes_cpu: Duration,
    /// How many commands one node executed, on average; scripts count with the commands in them.
    pub commands: f64,
    pub round_trip: Duration,
}

/// The figures of a round. A figure of something that did not happen is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// How often a contender had the lock, and how often another contender than the last one: each
    /// of the latter is a hand-over.
    pub holds_per_s: f64,
    pub hand_overs_per_s: f64,
    /// The processor time of all contenders and all nodes, for each hand-over.
    pub cpu_us: f64,
    pub node_cpu_us: f64,
    /// The commands of one node for each hand-over.
    pub commands: f64,
    /// The time from a request to its grant. The longest wait may still go on at the end.
    pub wait_p50_ms: f64,
    pub wait_p99_ms: f64,
    pub wait_max_ms: f64,
    /// `wait_p99_ms` in turns. A turn is what it takes until each contender has had the lock once:
    /// their number times the median time from one hand-over to the next.
    pub wait_p99_turns: f64,
    /// From a release to the next grant of a contender that had asked before it, in microseconds.
    pub over_p50_us: f64,
    pub over_p99_us: f64,
    /// How often each contender had the lock: the least, the most, and Jain's index (1: all as
    /// often).
    pub least: f64,
    pub most: f64,
    pub jain: f64,
    /// How many contenders never had the lock.
    pub without: f64,
    /// The part of the holds that began after the hold of a contender that had asked later.
    pub overtaken: f64,
    pub round_trip_us: f64,
}

impl Round {
    /// Computes the figures. Panics if two contenders had the lock at one time.
    pub fn figures(&self, contenders: usize) -> Figures {
        let mut holds = self.holds();
        let open = holds.iter().filter(|(_, hold)| hold.have == 0);
        let longest_open = open.map(|(_, hold)| self.end.saturating_sub(hold.asked)).max();
        holds.retain(|(_, hold)| hold.have > 0);
        holds.sort_by_key(|(_, hold)| hold.have);
        exclude_each_other(&holds);
        // A lock that was granted after the end of the round had fewer contenders, so it is not
        // counted.
        holds.retain(|(_, hold)| hold.have <= self.end);

        let (mut waits, mut overs) = (Vec::new(), Vec::new());
        let mut wins = vec![0.0; contenders];
        for (who, hold) in &holds {
            waits.push(hold.have - hold.asked);
            wins[*who] += 1.0;
        }
        let (mut hand_overs, mut last) = (Vec::new(), self.begin);
        for pair in holds.windows(2) {
            let ((former, gave), (next, got)) = (pair[0], pair[1]);
            if former != next {
                hand_overs.push(got.have - last);
                last = got.have;
                if got.asked < gave.gave_back {
                    overs.push(got.have - gave.gave_back);
                }
            }
        }
        [&mut waits, &mut overs, &mut hand_overs].into_iter().for_each(|it| it.sort_unstable());
        let (count, changes) = (holds.len() as f64, hand_overs.len() as f64);
        let turn = contenders as f64 * quantile(&hand_overs, 0.5);
        let seconds = (self.end - self.begin) as f64 / 1e9;
        let cpu: Duration = self.diaries.iter().map(|diary| diary.cpu).sum();
        let squares: f64 = wins.iter().map(|wins| wins * wins).sum();
        Figures {
            holds_per_s: count / seconds,
            hand_overs_per_s: changes / seconds,
            cpu_us: cpu.as_secs_f64() * 1e6 / changes,
            node_cpu_us: self.nodes_cpu.as_secs_f64() * 1e6 / changes,
            commands: self.commands / changes,
            wait_p50_ms: quantile(&waits, 0.5) / 1e6,
            wait_p99_ms: quantile(&waits, 0.99) / 1e6,
            wait_max_ms: waits.last().copied().max(longest_open).unwrap_or(0) as f64 / 1e6,
            wait_p99_turns: quantile(&waits, 0.99) / turn,
            over_p50_us: quantile(&overs, 0.5) / 1e3,
            over_p99_us: quantile(&overs, 0.99) / 1e3,
            least: wins.iter().copied().fold(f64::INFINITY, f64::min),
            most: wins.iter().copied().fold(0.0, f64::max),
            jain: count * count / (contenders as f64 * squares),
            without: wins.iter().filter(|&&wins| wins == 0.0).count() as f64,
            overtaken: overtaken(&holds) / count,
            round_trip_us: self.round_trip.as_secs_f64() * 1e6,
        }
    }

    /// All holds of the round, each with its contender.
    fn holds(&self) -> Vec<(usize, Hold)> {
        let inside = self.diaries.len() == 1;
        let whose = |process: usize, hold: &Hold| if inside { hold.slot as usize } else { process };
        let diaries = self.diaries.iter().enumerate();
        let of = |(process, diary): (usize, &Diary)| -> Vec<(usize, Hold)> {
            diary.holds.iter().map(|hold| (whose(process, hold), *hold)).collect()
        };
        diaries.flat_map(of).collect()
    }
}

/// Checks that each holder released before the next one has the lock. All times are on one clock.
fn exclude_each_other(holds: &[(usize, Hold)]) {
    for pair in holds.windows(2) {
        let ((former, gave), (next, got)) = (pair[0], pair[1]);
        assert!(
            gave.gave_back <= got.have,
            "two had the lock: {former} until {}, {next} since {}",
            gave.gave_back,
            got.have
        );
    }
}

/// How many holders had asked before one that got the lock earlier.
fn overtaken(holds: &[(usize, Hold)]) -> f64 {
    let mut latest = 0;
    let mut count = 0.0;
    for (_, hold) in holds {
        if hold.asked < latest {
            count += 1.0;
        }
        latest = latest.max(hold.asked);
    }
    count
}
