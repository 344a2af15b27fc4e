//! The figures of the contenders' holds. The first check is that no two had the lock at one time;
//! then follow the rate, the cost, the waits and the fairness.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::contender::{Diary, Hold};

/// The longest wait that has a bucket of its own; longer waits share the last one.
const LONGEST: Duration = Duration::from_secs(100);

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

/// The figures of a round. A field for each column, so that rounds can be put together.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// How often a contender got it, and how often another contender than the last one: each of
    /// those is a hand-over.
    pub holds_per_s: f64,
    pub hand_overs_per_s: f64,
    /// The processor time of all contenders and all nodes, for each hand-over.
    pub cpu_us: f64,
    pub node_cpu_us: f64,
    /// The commands of one node for each hand-over.
    pub commands: f64,
    /// From asking to the grant. The longest wait may not have been over at the end.
    pub wait_p50_ms: f64,
    pub wait_p99_ms: f64,
    pub wait_max_ms: f64,
    /// `wait_p99_ms` in turns. A turn is what it takes until each contender has had the lock once:
    /// their number times the median time from one hand-over to the next.
    pub wait_p99_turns: f64,
    /// From a release to the next grant of a contender that had asked before it, in microseconds.
    pub over_p50_us: f64,
    pub over_p99_us: f64,
    /// How many times each contender got it: the least, the most, and Jain's index (1: all alike).
    pub least: f64,
    pub most: f64,
    pub jain: f64,
    /// How many contenders never got it.
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
        // A lock that was granted after the end had fewer contenders: it is not counted.
        holds.retain(|(_, hold)| hold.have <= self.end);

        let (mut waits, mut overs) = (histogram(), histogram());
        let mut wins = vec![0.0; contenders];
        for (who, hold) in &holds {
            waits.saturating_record(hold.have - hold.asked);
            wins[*who] += 1.0;
        }
        let (mut hand_overs, mut last) = (histogram(), self.begin);
        for pair in holds.windows(2) {
            let ((former, gave), (next, got)) = (pair[0], pair[1]);
            if former != next {
                hand_overs.saturating_record(got.have - last);
                last = got.have;
                if got.asked < gave.gave_back {
                    overs.saturating_record(got.have - gave.gave_back);
                }
            }
        }
        let (count, changes) = (holds.len() as f64, hand_overs.len() as f64);
        let turn = contenders as f64 * hand_overs.value_at_quantile(0.5) as f64;
        let seconds = (self.end - self.begin) as f64 / 1e9;
        let cpu: Duration = self.diaries.iter().map(|diary| diary.cpu).sum();
        let squares: f64 = wins.iter().map(|wins| wins * wins).sum();
        let at =
            |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
        Figures {
            holds_per_s: count / seconds,
            hand_overs_per_s: changes / seconds,
            cpu_us: cpu.as_secs_f64() * 1e6 / changes,
            node_cpu_us: self.nodes_cpu.as_secs_f64() * 1e6 / changes,
            commands: self.commands / changes,
            wait_p50_ms: at(&waits, 0.5) / 1e6,
            wait_p99_ms: at(&waits, 0.99) / 1e6,
            wait_max_ms: waits.max().max(longest_open.unwrap_or(0)) as f64 / 1e6,
            wait_p99_turns: at(&waits, 0.99) / turn,
            over_p50_us: at(&overs, 0.5) / 1e3,
            over_p99_us: at(&overs, 0.99) / 1e3,
            least: wins.iter().copied().fold(f64::INFINITY, f64::min),
            most: wins.iter().copied().fold(0.0, f64::max),
            jain: count * count / (contenders as f64 * squares),
            without: wins.iter().filter(|&&wins| wins == 0.0).count() as f64,
            overtaken: overtaken(&holds) / count,
            round_trip_us: self.round_trip.as_secs_f64() * 1e6,
        }
    }

    /// Every hold that was written down, with its contender.
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

/// How many of them had asked before one that got it earlier.
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

fn histogram() -> Histogram<u64> {
    let longest = LONGEST.as_nanos() as u64;
    Histogram::new_with_bounds(1, longest, 3).expect("these bounds are in order")
}

/// A name, and a reference to its value.
type Column = (&'static str, fn(&Figures) -> f64);

impl Figures {
    /// Every column, in its order.
    const COLUMNS: [Column; 17] = [
        ("holds_per_s", |f| f.holds_per_s),
        ("hand_overs_per_s", |f| f.hand_overs_per_s),
        ("cpu_us", |f| f.cpu_us),
        ("node_cpu_us", |f| f.node_cpu_us),
        ("commands", |f| f.commands),
        ("wait_p50_ms", |f| f.wait_p50_ms),
        ("wait_p99_ms", |f| f.wait_p99_ms),
        ("wait_max_ms", |f| f.wait_max_ms),
        ("wait_p99_turns", |f| f.wait_p99_turns),
        ("over_p50_us", |f| f.over_p50_us),
        ("over_p99_us", |f| f.over_p99_us),
        ("least", |f| f.least),
        ("most", |f| f.most),
        ("jain", |f| f.jain),
        ("without", |f| f.without),
        ("overtaken", |f| f.overtaken),
        ("round_trip_us", |f| f.round_trip_us),
    ];

    /// The names and values of the columns.
    pub fn columns(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        Figures::COLUMNS.iter().map(|(name, of)| (*name, of(self)))
    }

    /// The medians of the rounds; for the longest wait, the least and the most the extremes of the
    /// rounds.
    pub fn together(rounds: &[Figures]) -> Figures {
        let sorted = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |of: fn(&Figures) -> f64| median(rounds.iter().map(of).collect());
        let greatest = |of: fn(&Figures) -> f64| sorted(of).last().copied().unwrap_or(0.0);
        Figures {
            holds_per_s: median(|f| f.holds_per_s),
            hand_overs_per_s: median(|f| f.hand_overs_per_s),
            cpu_us: median(|f| f.cpu_us),
            node_cpu_us: median(|f| f.node_cpu_us),
            commands: median(|f| f.commands),
            wait_p50_ms: median(|f| f.wait_p50_ms),
            wait_p99_ms: median(|f| f.wait_p99_ms),
            wait_max_ms: greatest(|f| f.wait_max_ms),
            wait_p99_turns: median(|f| f.wait_p99_turns),
            over_p50_us: median(|f| f.over_p50_us),
            over_p99_us: median(|f| f.over_p99_us),
            least: sorted(|f| f.least)[0],
            most: greatest(|f| f.most),
            jain: median(|f| f.jain),
            without: median(|f| f.without),
            overtaken: median(|f| f.overtaken),
            round_trip_us: median(|f| f.round_trip_us),
        }
    }
}

/// The figures of a kind of waiting, over those of another kind: the medians of the ratios within a
/// round.
#[derive(Debug, Clone, Copy)]
pub struct Ratios {
    pub hand_overs: f64,
    pub holds: f64,
    pub cpu: f64,
    pub node_cpu: f64,
    /// The processor time of a contender for each hold.
    pub cpu_of_hold: f64,
    pub jain: f64,
}

impl Ratios {
    pub fn within_rounds(rounds: &[Figures], others: &[Figures]) -> Ratios {
        let ratio = |of: fn(&Figures) -> f64| {
            median(rounds.iter().zip(others).map(|(ours, other)| of(ours) / of(other)).collect())
        };
        Ratios {
            hand_overs: ratio(|f| f.hand_overs_per_s),
            holds: ratio(|f| f.holds_per_s),
            cpu: ratio(|f| f.cpu_us),
            node_cpu: ratio(|f| f.node_cpu_us),
            cpu_of_hold: ratio(|f| f.cpu_us * f.hand_overs_per_s / f.holds_per_s),
            jain: ratio(|f| f.jain),
        }
    }

    /// The names and values of the columns.
    pub fn columns(&self) -> [(&'static str, f64); 6] {
        [
            ("hand_overs_to_bare", self.hand_overs),
            ("holds_to_bare", self.holds),
            ("cpu_to_bare", self.cpu),
            ("node_cpu_to_bare", self.node_cpu),
            ("cpu_of_hold_to_bare", self.cpu_of_hold),
            ("jain_to_bare", self.jain),
        ]
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
