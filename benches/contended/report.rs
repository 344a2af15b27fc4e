//! The figures of the rounds, as tables or as JSON.

use super::Setting;
use super::figures::Figures;
use super::options::{Case, Kind, Options};
use super::support::Server;

/// What goes before the first case.
pub fn begin(options: &Options) {
    if options.json {
        return;
    }
    let Server { binary, version: (major, minor), .. } = Server::get();
    let Options { nodes, rounds, length, .. } = options;
    println!("one key that several want, on {nodes} masters; {binary} {major}.{minor};");
    println!("{rounds} rounds of {length:?} each, in turns: medians, but for max, least and most");
    println!();
    println!("polling: the library where no node tells it of changes; bare: raw sockets, another");
    println!("try every 5 ms; slow: every 200 ms. to other: the part of the holds that went to");
    println!("another contender than the last. cpu: of all contenders, and of all nodes, a hold.");
    println!("hand-over: from giving back to the having of one who waited; in round trips: over");
    println!("the median PING of the same rounds, on an idle connection. overtaken: the part of");
    println!("the holds whose owner had asked before one who got it earlier.");
}

/// What goes before the rows of a case.
pub fn head(case: Case, options: &Options) {
    if options.json {
        return;
    }
    println!();
    println!("{}", case.name());
    let left = format!(
        "{:>3} {:>5} {:<8}{:>8} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "k", "hold", "", "holds/s", "to other", "cpu us", "nodes", "wait p50", "p99 ms", "max",
    );
    println!(
        "{left} {:>9} {:>6} {:>9} {:>11} {:>5} {:>6}",
        "hand-over", "trips", "p99 us", "least/most", "jain", "overt."
    );
}

/// The rows of a setting.
pub fn show(setting: &Setting, kinds: &[(Kind, Vec<Figures>)], options: &Options) {
    for (index, (kind, rounds)) in kinds.iter().enumerate() {
        let figures = Figures::together(rounds);
        if options.json {
            println!("{}", json(setting, *kind, &figures));
            continue;
        }
        let (contenders, hold) = match index {
            0 => (setting.contenders.to_string(), format!("{:?}", setting.hold)),
            _ => Default::default(),
        };
        println!("{contenders:>3} {hold:>5} {:<8}{}", kind.name(), row(&figures));
    }
}

fn row(f: &Figures) -> String {
    let to_another = if f.holds_per_s > 0.0 { f.changes_per_s / f.holds_per_s } else { 0.0 };
    let hand_over = match f.over_p50_us {
        // The contender that gave back was alone, or got it again.
        0.0 => format!("{:>9} {:>6} {:>9}", "-", "-", "-"),
        p50 => format!("{p50:>9.0} {:>6.1} {:>9.0}", p50 / f.round_trip_us, f.over_p99_us),
    };
    format!(
        "{:>8.0} {:>7.0}% {:>7.0} {:>7.0} {:>8.2} {:>8.1} {:>8.0} {hand_over} {:>11} {:>5.2} \
         {:>5.0}%",
        f.holds_per_s,
        100.0 * to_another,
        f.cpu_us,
        f.node_cpu_us,
        f.wait_p50_ms,
        f.wait_p99_ms,
        f.wait_max_ms,
        format!("{:.0}/{:.0}", f.least, f.most),
        f.jain,
        100.0 * f.overtaken,
    )
}

fn json(setting: &Setting, kind: Kind, figures: &Figures) -> String {
    let values: Vec<String> = figures
        .columns()
        .map(|(name, value)| {
            // Not every number is one in JSON.
            let value = if value.is_finite() { value } else { 0.0 };
            format!("\"{name}\":{value:.3}")
        })
        .collect();
    format!(
        "{{\"case\":\"{}\",\"contenders\":{},\"hold_ms\":{},\"kind\":\"{}\",{}}}",
        setting.case.name(),
        setting.contenders,
        setting.hold.as_secs_f64() * 1e3,
        kind.name(),
        values.join(",")
    )
}
