//! Contenders for the same keys on a LAN: the library beside a bare loop that tries again and
//! again, in simulated time.
//!
//! The cores of clients and the masters are values inside this process, and each message takes a
//! while that is drawn by seed. So nothing depends on the machine: two runs of this bench print the
//! same figures, and a change of a figure is a change of the code. What processors and system calls
//! cost is not in it: see the bench `contended`, which starts servers.

#![forbid(unsafe_code)]

#[path = "../../tests/support/lan/mod.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod lan;
mod options;
mod report;

use lan::{Figures, Kind, Setting};
use options::Options;

fn main() {
    let options: Options = kit::read();
    println!("{}", report::begin(&options));
    for &hold in &options.hold {
        for &contenders in &options.contenders {
            let length = options.length(contenders, hold);
            let measure = |&kind: &Kind| {
                let setting = Setting { kind, contenders, hold, length };
                let runs: Vec<_> =
                    (1..=options.seeds).map(|seed| lan::run(&setting, seed)).collect();
                (kind, Figures::of(&runs))
            };
            let kinds: Vec<(Kind, Figures)> = options.kinds.iter().map(measure).collect();
            report::rows(contenders, hold, &kinds).iter().for_each(|row| println!("{row}"));
        }
    }
}
