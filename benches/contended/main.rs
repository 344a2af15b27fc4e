//! Several contenders want one key: how fast it changes hands, and what the waiting costs.
//!
//! Contenders are processes of their own, each with a connection to every node: they ask for one
//! key, hold it for a while, give it back and ask again. The bench compares these ways, in short
//! rounds one after the other: the library, its fenced locks, the library for a user whom the nodes
//! refuse their lines, and a bare program that tries again 2.5 to 5 ms after
//! each denial; and locks over two keys, beside that program with a script that takes both or none.
//! The ratios to that program are the medians of the ratios within a round. The hazard is the
//! machine: two cores carry the nodes and all contenders, so compare only figures of one run.
//!
//! `cargo bench --bench contended` starts the servers by itself.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod bare;
mod contender;
mod figures;
mod inside;
mod options;
mod ours;
mod report;
mod round;

#[path = "../../tests/support/engine_loop.rs"]
mod engine_loop;
#[path = "../../tests/support/ready.rs"]
mod ready;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use kit::Measured;

use contender::Role;
use figures::Figures;
use options::{Case, Kind, Options};
use support::Fleet;

/// The ttl of a lock. It is so long that no lock expires.
const TTL: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = Role::read(&arguments) {
        contender::main(&role);
        return;
    }
    let options: Options = kit::read();
    report::begin(&options);
    for &nodes in &options.nodes {
        let fleet = Fleet::start(nodes);
        round::forbid_lines(&fleet);
        for case in options.cases() {
            report::head(*case, nodes, &options);
            for &contenders in case.contenders(&options) {
                for &hold in case.holds(&options) {
                    let (case, rest) = (*case, options.rest);
                    let setting = Setting { nodes, case, contenders, hold, rest };
                    let kinds = options.kinds(setting.case);
                    let rounds = measure(&fleet, &setting, &kinds, &options);
                    report::show(&setting, &kinds, &rounds, &options);
                }
            }
        }
    }
}

/// What the contenders of a round do.
#[derive(Debug, Clone, Copy)]
struct Setting {
    nodes: usize,
    case: Case,
    contenders: usize,
    hold: Duration,
    /// The pause between a release and the next request.
    rest: Duration,
}

/// The rounds of every kind, in turns.
fn measure(
    fleet: &Fleet,
    setting: &Setting,
    kinds: &[Kind],
    options: &Options,
) -> Measured<Figures> {
    Measured::in_turns(kinds.len(), options.rounds.count, |which, _| {
        round::run(fleet, kinds[which], setting, options.rounds.length)
    })
}
