//! The simulation has to find each planted fault of fair locks (`src/proto/planted.rs`), and prints
//! how many seeds of how many do. It runs only with `RUSTFLAGS="--cfg redlatch_planted_faults"`.

use redlatch::proto::planted::{FAIR_FAULTS, Fault, plant};

use crate::trace::Trace;
use crate::{number, run};

/// These need an order of steps that chance hardly ever finds: tests of the core play it, and each
/// is red with the fault (`tests/coordinator/fair.rs` and `fair_troubles.rs`).
const BY_THE_CORE_ALONE: [Fault; 2] = [Fault::OneBaseForAll, Fault::SplitOfMixedRounds];

#[test]
fn planted_faults_of_fair_locks_are_found() {
    let seeds = number("SIM_SEEDS").unwrap_or(1_000);
    let first = number("SIM_FROM").unwrap_or(0);
    let mut missed = Vec::new();
    for fault in FAIR_FAULTS {
        plant(Some(fault));
        let (mut found, mut example) = (0, None);
        for seed in first..first + seeds {
            if let Err(words) = run(seed, Trace::default()) {
                found += 1;
                example.get_or_insert((seed, words));
            }
        }
        plant(None);
        println!("{fault:?}: {found} of {seeds} seeds; {example:?}");
        if found == 0 && !BY_THE_CORE_ALONE.contains(&fault) {
            missed.push(fault);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
