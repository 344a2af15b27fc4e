//! The figures of the rounds, as a table or as JSON.

use kit::{Measured, Round, Table, json};

use super::NODES;
use super::delete::Delete;
use super::options::Options;
use super::support::Server;

/// A figure of a round.
type Figure = fn(&Round) -> f64;

/// The names of the figures in the table and in JSON, and how many digits they have.
const COLUMNS: [(&str, &str, usize, Figure); 4] = [
    ("p50 us", "p50_us", 1, Round::p50_us),
    ("p99 us", "p99_us", 1, Round::p99_us),
    ("cpu us/pair", "cpu_us", 2, Round::cpu_us),
    ("pairs/s", "pairs_per_s", 0, Round::pairs_per_s),
];

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
pub enum Side {
    Ours,
    Floor,
    /// Our clients, with one frozen node.
    OursFrozen,
    OursFenced,
    FloorFrozen,
}

/// The ratios that are shown if both sides of them were measured: name, dividend, divisor.
const RATIOS: [(&str, Side, Side); 5] = [
    ("ratio", Side::Ours, Side::Floor),
    ("frozen ratio", Side::OursFrozen, Side::FloorFrozen),
    ("ours frozen/healthy", Side::OursFrozen, Side::Ours),
    ("ours fenced/plain", Side::OursFenced, Side::Ours),
    ("floor frozen/healthy", Side::FloorFrozen, Side::Floor),
];

/// The rounds of one load.
pub struct Case {
    load: Load,
    sides: Vec<Side>,
    rounds: Measured<Round>,
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
    println!("{binary} {major}.{minor}; medians of {};", options.rounds);
    println!("ratio: ours to the floor; every ratio is the median of the rounds' ratios");
    println!();
    println!("{}", table().head());
}

/// One case, on stdout.
pub fn show(case: &Case, options: &Options) {
    let rows = case.rows();
    if options.json {
        println!("{}", case_as_json(case.load, &rows));
        return;
    }
    let mut label = match case.load {
        Load::Closed(in_flight) => format!("{in_flight} in flight"),
        Load::Open(per_second) => format!("open {per_second:.0}/s"),
    };
    for Row { name, figures, is_ratio } in rows {
        let digits = COLUMNS.map(|(_, _, digits, _)| if is_ratio { 2 } else { digits });
        let figures = figures.iter().zip(digits).map(|(it, digits)| format!("{it:.digits$}"));
        let names = [std::mem::take(&mut label), name.to_owned()];
        println!("{}", table().row(names.into_iter().chain(figures)));
    }
}

fn table() -> Table {
    let figures = COLUMNS.map(|(title, ..)| (title, 11));
    Table::new([("load", 14), (":contender", 20)].into_iter().chain(figures))
}

/// A side or a ratio.
pub struct Row {
    pub name: &'static str,
    figures: [f64; COLUMNS.len()],
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
        }
    }
}

impl Case {
    /// The rounds of these sides, in their order.
    pub fn new(load: Load, sides: impl Iterator<Item = Side>, rounds: Measured<Round>) -> Case {
        Case { load, sides: sides.collect(), rounds }
    }

    /// The sides, and the ratios both of whose sides were measured.
    pub fn rows(&self) -> Vec<Row> {
        let measured = self.sides.iter().enumerate().map(|(which, side)| Row {
            name: side.name(),
            figures: COLUMNS.map(|(.., figure)| self.rounds.median(which, figure)),
            is_ratio: false,
        });
        let ratios = RATIOS.into_iter().filter_map(|(name, over, under)| {
            let (over, under) = (self.place(over)?, self.place(under)?);
            let figures = COLUMNS.map(|(.., figure)| self.rounds.ratio(over, under, figure));
            Some(Row { name, figures, is_ratio: true })
        });
        measured.chain(ratios).collect()
    }

    fn place(&self, wanted: Side) -> Option<usize> {
        self.sides.iter().position(|side| *side == wanted)
    }
}

fn case_as_json(load: Load, rows: &[Row]) -> String {
    let part = |Row { name, figures, is_ratio }: &Row| {
        let name = name.replace([' ', '/'], "_");
        let names = COLUMNS.map(|(_, name, ..)| match is_ratio {
            true => name.trim_end_matches("_us"),
            false => name,
        });
        format!("\"{name}\":{{{}}}", json(names.into_iter().zip(*figures)))
    };
    let case = match load {
        Load::Closed(in_flight) => format!("\"case\":\"{in_flight}\""),
        Load::Open(per_second) => {
            format!("\"case\":\"open\",\"arrivals_per_s\":{per_second:.0}")
        }
    };
    let parts: Vec<String> = rows.iter().map(part).collect();
    format!("{{{case},{}}}", parts.join(","))
}
