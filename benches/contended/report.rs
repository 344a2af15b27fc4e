//! The figures of the rounds, as tables or as JSON.

use kit::{Measured, Table, json, number};

use super::Setting;
use super::figures::Figures;
use super::options::{Case, Kind, Options, name};
use super::support::Server;

/// Prints the text before the first case.
pub fn begin(options: &Options) {
    if options.json {
        return;
    }
    let Server { binary, version: (major, minor), .. } = Server::get();
    println!("one key that several contenders want; {binary} {major}.{minor};");
    println!("{} each, in turns: medians, but for max", options.rounds);
    println!("{LEGEND}");
}

const LEGEND: &str = "
ours: the library; fenced: its fenced locks; refused: the library for a user whom
the nodes refuse their lines; bare: raw sockets, which try again 2.5 to 5 ms after
each denial; slow: after 100 to 200 ms; sets: locks over two keys; bare-set: the bare
program with a script that takes two keys or none; sets are compared with it.
over/s: hand-overs a second, to another contender than the last one.
cpu, nodes: of all contenders and of all nodes, in us for each hand-over. cmds: the
commands of one node for each hand-over, those inside scripts included. turns: the
p99 of the waits over the contenders' number times the median time from one hand-over
to the next. gap: from giving back to the grant of a contender that waited.
overt.: the part of the holds whose owner had asked before one who got it earlier.
none: how many contenders got nothing in a round. cpu/hold: the contenders' processor
time for each hold, not for each hand-over.
to bare: the median of the ratios within a round.";

/// How the figures of several rounds are combined into one.
enum Over {
    Median,
    Least,
    Most,
}
use Over::{Least, Median, Most};

/// A figure: its name in JSON; its title in the table, with the width and the digits, or nothing;
/// what its rounds come to.
type Column = (&'static str, Option<(&'static str, usize, usize)>, Over, Figure);
type Figure = fn(&Figures) -> f64;

const COLUMNS: [Column; 17] = [
    ("holds_per_s", Some(("holds/s", 7, 0)), Median, |f| f.holds_per_s),
    ("hand_overs_per_s", Some(("over/s", 7, 0)), Median, |f| f.hand_overs_per_s),
    ("cpu_us", Some(("cpu", 6, 0)), Median, |f| f.cpu_us),
    ("node_cpu_us", Some(("nodes", 6, 0)), Median, |f| f.node_cpu_us),
    ("commands", Some(("cmds", 5, 1)), Median, |f| f.commands),
    ("wait_p50_ms", Some(("wait p50", 8, 2)), Median, |f| f.wait_p50_ms),
    ("wait_p99_ms", Some(("p99 ms", 7, 1)), Median, |f| f.wait_p99_ms),
    ("wait_max_ms", Some(("max", 7, 0)), Most, |f| f.wait_max_ms),
    ("wait_p99_turns", Some(("turns", 5, 2)), Median, |f| f.wait_p99_turns),
    ("over_p50_us", Some(("gap us", 6, 0)), Median, |f| f.over_p50_us),
    ("over_p99_us", Some(("p99 us", 7, 0)), Median, |f| f.over_p99_us),
    ("least", None, Least, |f| f.least),
    ("most", None, Most, |f| f.most),
    ("jain", Some(("jain", 5, 3)), Median, |f| f.jain),
    ("without", Some(("none", 4, 0)), Median, |f| f.without),
    ("overtaken", Some(("overt.", 6, 2)), Median, |f| f.overtaken),
    ("round_trip_us", None, Median, |f| f.round_trip_us),
];

/// The ratios to the bare program: names in JSON, and titles in the table.
const RATIOS: [(&str, &str, Figure); 6] = [
    ("hand_overs_to_bare", "over/s", |f| f.hand_overs_per_s),
    ("holds_to_bare", "holds", |f| f.holds_per_s),
    ("cpu_to_bare", "cpu", |f| f.cpu_us),
    ("node_cpu_to_bare", "nodes", |f| f.node_cpu_us),
    ("cpu_of_hold_to_bare", "cpu/hold", |f| f.cpu_us * f.hand_overs_per_s / f.holds_per_s),
    ("jain_to_bare", "jain", |f| f.jain),
];

/// What goes before the rows of a case.
pub fn head(case: Case, nodes: usize, options: &Options) {
    if options.json {
        return;
    }
    println!();
    println!("{}, {nodes} masters; the last {} columns: to bare", name(case), RATIOS.len());
    println!("{}", table().head());
}

fn table() -> Table {
    let figures = COLUMNS.iter().filter_map(|(_, shown, ..)| *shown);
    let columns = [("k", 3), ("hold", 5), (":", 8)].into_iter();
    let columns = columns.chain(figures.map(|(title, width, _)| (title, width)));
    Table::new(columns.chain(RATIOS.iter().map(|(_, title, _)| (*title, 6))))
}

/// The rows of a setting.
pub fn show(setting: &Setting, kinds: &[Kind], rounds: &Measured<Figures>, options: &Options) {
    for (which, kind) in kinds.iter().enumerate() {
        let figures: Vec<f64> = COLUMNS.iter().map(|it| together(rounds, which, it)).collect();
        let bare = kinds.iter().position(|other| Some(*other) == kind.compared_with());
        let to_bare = |of: &Figure| bare.map(|bare| rounds.ratio(which, bare, of));
        let ratios: Vec<Option<f64>> = RATIOS.iter().map(|(_, _, of)| to_bare(of)).collect();
        if options.json {
            println!("{}", as_json(setting, *kind, &figures, &ratios));
            continue;
        }
        let labels = match which {
            0 => [setting.contenders.to_string(), format!("{:?}", setting.hold)],
            _ => Default::default(),
        };
        let figures = COLUMNS.iter().zip(&figures).filter_map(|((_, shown, ..), &figure)| {
            shown.map(|(_, _, digits)| number(figure, digits))
        });
        let ratios = ratios.iter().map(|it| it.map_or_else(String::new, |it| number(it, 2)));
        let cells = labels.into_iter().chain([name(*kind)]).chain(figures);
        println!("{}", table().row(cells.chain(ratios)));
    }
}

/// What the rounds of a contender come to.
fn together(rounds: &Measured<Figures>, which: usize, (_, _, over, of): &Column) -> f64 {
    let values = rounds.of(which).iter().map(of);
    match over {
        Median => rounds.median(which, of),
        Least => values.fold(f64::INFINITY, f64::min),
        Most => values.fold(0.0, f64::max),
    }
}

fn as_json(setting: &Setting, kind: Kind, figures: &[f64], ratios: &[Option<f64>]) -> String {
    let figures = COLUMNS.iter().zip(figures).map(|((name, ..), &figure)| (*name, figure));
    let ratios =
        RATIOS.iter().zip(ratios).filter_map(|((name, ..), ratio)| Some((*name, (*ratio)?)));
    format!(
        "{{\"case\":\"{}\",\"nodes\":{},\"contenders\":{},\"hold_ms\":{},\"kind\":\"{}\",{}}}",
        name(setting.case),
        setting.nodes,
        setting.contenders,
        setting.hold.as_secs_f64() * 1e3,
        name(kind),
        json(figures.chain(ratios))
    )
}
