//! The figures of the rounds, as tables or as JSON.

use super::Setting;
use super::figures::{Figures, Ratios};
use super::options::{Case, Kind, Options};
use super::support::Server;

/// What goes before the first case.
pub fn begin(options: &Options) {
    if options.json {
        return;
    }
    let Server { binary, version: (major, minor), .. } = Server::get();
    let Options { rounds, length, .. } = options;
    println!("one key that several contenders want; {binary} {major}.{minor};");
    println!("{rounds} rounds of {length:?} each, in turns: medians, but for max");
    println!();
    println!("ours: the library; fenced: its fenced locks; refused: the library for a user whom");
    println!("the nodes refuse their lines; bare: raw sockets, which try again 2.5 to 5 ms after");
    println!(
        "each denial; slow: after 100 to 200 ms; sets: locks over two keys; bare-set: the bare"
    );
    println!("program with a script that takes two keys or none; sets are compared with it.");
    println!("over/s: hand-overs a second, to another contender than the last one.");
    println!("cpu, nodes: of all contenders and of all nodes, in us for each hand-over. cmds: the");
    println!("commands of one node for each hand-over, those inside scripts included. turns: the");
    println!(
        "p99 of the waits over the contenders' number times the median time from one hand-over"
    );
    println!("to the next. gap: from giving back to the grant of a contender that waited.");
    println!(
        "overtaken: the part of the holds whose owner had asked before one who got it earlier."
    );
    println!(
        "none: how many contenders got nothing in a round. cpu/hold: the contenders' processor"
    );
    println!("time for each hold, not for each hand-over.");
    println!("to bare: the median of the ratios within a round.");
}

/// What goes before the rows of a case.
pub fn head(case: Case, nodes: usize, options: &Options) {
    if options.json {
        return;
    }
    println!();
    println!("{}, {nodes} masters", case.name());
    let left = format!(
        "{:>3} {:>5} {:<8}{:>7} {:>7} {:>6} {:>6} {:>5} {:>8} {:>7} {:>7} {:>5}",
        "k",
        "hold",
        "",
        "holds/s",
        "over/s",
        "cpu",
        "nodes",
        "cmds",
        "wait p50",
        "p99 ms",
        "max",
        "turns",
    );
    println!(
        "{left} {:>6} {:>7} {:>5} {:>4} {:>6} | {:>6} {:>6} {:>5} {:>5} {:>8} {:>5}",
        "gap us",
        "p99 us",
        "jain",
        "none",
        "overt.",
        "over/s",
        "holds",
        "cpu",
        "nodes",
        "cpu/hold",
        "jain"
    );
}

/// The rows of a setting.
pub fn show(setting: &Setting, kinds: &[(Kind, Vec<Figures>)], options: &Options) {
    for (index, (kind, rounds)) in kinds.iter().enumerate() {
        let figures = Figures::together(rounds);
        let bare = kind.compared_with();
        let bare = kinds.iter().find(|(other, _)| Some(*other) == bare);
        let ratios = bare.map(|(_, bare)| Ratios::within_rounds(rounds, bare));
        if options.json {
            println!("{}", json(setting, *kind, &figures, ratios));
            continue;
        }
        let (contenders, hold) = match index {
            0 => (setting.contenders.to_string(), format!("{:?}", setting.hold)),
            _ => Default::default(),
        };
        let row = format!("{contenders:>3} {hold:>5} {:<8}{}", kind.name(), row(&figures));
        println!("{row}{}", ratios.as_ref().map(to_bare).unwrap_or_default());
    }
}

fn row(f: &Figures) -> String {
    let gap = match f.over_p50_us {
        // The contender that released was alone, or took the key again.
        0.0 => format!("{:>6} {:>7}", "-", "-"),
        p50 => format!("{p50:>6.0} {:>7.0}", f.over_p99_us),
    };
    format!(
        "{:>7.0} {:>7.0} {:>6.0} {:>6.0} {:>5.1} {:>8.2} {:>7.1} {:>7.0} {:>5.2} {gap} {:>5.3} \
         {:>4.0} {:>5.0}%",
        f.holds_per_s,
        f.hand_overs_per_s,
        f.cpu_us,
        f.node_cpu_us,
        f.commands,
        f.wait_p50_ms,
        f.wait_p99_ms,
        f.wait_max_ms,
        f.wait_p99_turns,
        f.jain,
        f.without,
        100.0 * f.overtaken,
    )
}

fn to_bare(ratios: &Ratios) -> String {
    let Ratios { hand_overs, holds, cpu, node_cpu, cpu_of_hold, jain } = ratios;
    format!(
        " | {hand_overs:>6.2} {holds:>6.2} {cpu:>5.2} {node_cpu:>5.2} {cpu_of_hold:>8.2} \
         {jain:>5.2}"
    )
}

fn json(setting: &Setting, kind: Kind, figures: &Figures, ratios: Option<Ratios>) -> String {
    let ratios = ratios.into_iter().flat_map(|ratios| ratios.columns());
    let values: Vec<String> = figures
        .columns()
        .chain(ratios)
        .map(|(name, value)| {
            // JSON has no infinite number and no NaN.
            let value = if value.is_finite() { value } else { 0.0 };
            format!("\"{name}\":{value:.3}")
        })
        .collect();
    format!(
        "{{\"case\":\"{}\",\"nodes\":{},\"contenders\":{},\"hold_ms\":{},\"kind\":\"{}\",{}}}",
        setting.case.name(),
        setting.nodes,
        setting.contenders,
        setting.hold.as_secs_f64() * 1e3,
        kind.name(),
        values.join(",")
    )
}
