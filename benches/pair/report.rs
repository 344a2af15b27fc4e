//! The figures of the rounds, as a table or as JSON.
//!
//! Each figure is the median of its rounds, and each ratio the median of the ratios within a round:
//! what disturbs the machine for longer than a round disturbs both sides of it.

use super::NODES;
use super::delete::Delete;
use super::options::Options;
use super::support::Server;
use super::tally::Figures;

/// What the contenders do in a case.
#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// With this many keys in flight.
    Closed(usize),
    /// With this many pairs that begin in a second.
    Open(f64),
}

/// Whose figures these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "io-uring"), allow(dead_code, reason = "no ring without it"))]
pub enum Side {
    Ours,
    Floor,
    /// Our clients, with one frozen node.
    OursFrozen,
    OursFenced,
    FloorFrozen,
    /// Our client on io_uring.
    OurRing,
    RingFloor,
}

/// The ratios that are shown if both sides of them were measured: name, dividend, divisor.
const RATIOS: [(&str, Side, Side); 7] = [
    ("ratio", Side::Ours, Side::Floor),
    ("frozen ratio", Side::OursFrozen, Side::FloorFrozen),
    ("ours frozen/healthy", Side::OursFrozen, Side::Ours),
    ("ours fenced/plain", Side::OursFenced, Side::Ours),
    ("floor frozen/healthy", Side::FloorFrozen, Side::Floor),
    ("io_uring ratio", Side::OurRing, Side::RingFloor),
    ("our io_uring/floor", Side::OurRing, Side::Floor),
];

/// The rounds of one load.
pub struct Case {
    load: Load,
    rounds: Vec<(Side, Vec<Figures>)>,
}

/// The text before the first case.
pub fn begin(options: &Options, delete: Delete) {
    if options.json {
        return;
    }
    let Server { binary, version: (major, minor), .. } = Server::get();
    let delete = delete.name();
    println!("acquire and release ({delete}) of a free key on {NODES} masters");
    if options.frozen {
        println!("frozen: one of the client's {NODES} masters is stopped");
    }
    let Options { rounds, length, .. } = options;
    println!("{binary} {major}.{minor}; medians of {rounds} rounds of {length:?};");
    println!("ratio: ours to the floor; every ratio is the median of the rounds' ratios");
    println!();
    println!(
        "{:>14}  {:<20} {:>11} {:>11} {:>11} {:>11}",
        "", "", "p50 us", "p99 us", "cpu us/pair", "pairs/s"
    );
}

/// One case, on stdout.
pub fn show(case: &Case, options: &Options) {
    let rows = case.rows();
    if options.json {
        println!("{}", json(case.load, &rows));
        return;
    }
    for (index, row) in rows.iter().enumerate() {
        let label = match case.load {
            _ if index > 0 => String::new(),
            Load::Closed(in_flight) => format!("{in_flight} in flight"),
            Load::Open(per_second) => format!("open {per_second:.0}/s"),
        };
        let Row { name, figures: f, is_ratio } = row;
        let digits = if *is_ratio { 2 } else { 1 };
        println!(
            "{label:>14}  {name:<20} {:>11.digits$} {:>11.digits$} {:>11.2} {:>11.*}",
            f.p50_us,
            f.p99_us,
            f.cpu_us,
            if *is_ratio { 2 } else { 0 },
            f.pairs_per_s,
        );
    }
    println!();
}

struct Row {
    name: &'static str,
    figures: Figures,
    is_ratio: bool,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Floor => "floor",
            Side::OursFrozen => "ours frozen",
            Side::OursFenced => "ours fenced",
            Side::FloorFrozen => "floor frozen",
            Side::OurRing => "our io_uring",
            Side::RingFloor => "io_uring floor",
        }
    }
}

impl Case {
    /// A case in which nothing was measured yet.
    pub fn new(load: Load, sides: impl Iterator<Item = Side>) -> Case {
        Case { load, rounds: sides.map(|side| (side, Vec::new())).collect() }
    }

    /// Adds a round of the side with this index.
    pub fn add(&mut self, index: usize, figures: Figures) {
        self.rounds[index].1.push(figures);
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (side, rounds) in &self.rounds {
            let figures = Figures::median(rounds);
            rows.push(Row { name: side.name(), figures, is_ratio: false });
        }
        for (name, ..) in RATIOS {
            let Some(figures) = self.ratio(name) else { continue };
            rows.push(Row { name, figures, is_ratio: true });
        }
        rows
    }

    /// The ratio of this name: the median of the rounds' ratios. `None` if one of its sides was
    /// not measured.
    pub fn ratio(&self, name: &str) -> Option<Figures> {
        let (_, dividend, divisor) = RATIOS.into_iter().find(|ratio| ratio.0 == name)?;
        let rounds = self.of(dividend)?.iter().zip(self.of(divisor)?);
        let ratios: Vec<Figures> = rounds.map(|(over, under)| over.over(under)).collect();
        Some(Figures::median(&ratios))
    }

    fn of(&self, wanted: Side) -> Option<&[Figures]> {
        let found = self.rounds.iter().find(|(side, _)| *side == wanted);
        found.map(|(_, rounds)| rounds.as_slice())
    }
}

impl Figures {
    fn over(&self, other: &Figures) -> Figures {
        Figures {
            p50_us: self.p50_us / other.p50_us,
            p99_us: self.p99_us / other.p99_us,
            cpu_us: self.cpu_us / other.cpu_us,
            pairs_per_s: self.pairs_per_s / other.pairs_per_s,
        }
    }

    /// The median of each figure.
    pub fn median(rounds: &[Figures]) -> Figures {
        let of = |field: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            if values.len() % 2 == 1 {
                values[middle]
            } else {
                (values[middle - 1] + values[middle]) / 2.0
            }
        };
        Figures {
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            cpu_us: of(|f| f.cpu_us),
            pairs_per_s: of(|f| f.pairs_per_s),
        }
    }
}

fn json(load: Load, rows: &[Row]) -> String {
    let parts: Vec<String> = rows
        .iter()
        .map(|Row { name, figures: f, is_ratio }| {
            let unit = if *is_ratio { "" } else { "_us" };
            let name = name.replace([' ', '/'], "_");
            format!(
                "\"{name}\":{{\"p50{unit}\":{:.3},\"p99{unit}\":{:.3},\"cpu{unit}\":{:.3},\
                 \"pairs_per_s\":{:.3}}}",
                f.p50_us, f.p99_us, f.cpu_us, f.pairs_per_s
            )
        })
        .collect();
    let case = match load {
        Load::Closed(in_flight) => format!("\"case\":\"{in_flight}\""),
        Load::Open(per_second) => {
            format!("\"case\":\"open\",\"arrivals_per_s\":{per_second:.0}")
        }
    };
    format!("{{{case},{}}}", parts.join(","))
}
