//! Only in a tree with planted faults: counts the seeds that find the fault that `PLANTED_FAULT`
//! names (`tests/planted`).

use crate::trace::Trace;
use crate::{number, run};

#[test]
fn planted_fault_is_found() {
    let Ok(fault) = std::env::var("PLANTED_FAULT") else { return };
    let seeds = number("SIM_SEEDS").unwrap_or(1_000);
    let first = number("SIM_FROM").unwrap_or(0);
    let (mut found, mut example) = (0, None);
    for seed in first..first + seeds {
        if let Err(words) = run(seed, Trace::default()) {
            found += 1;
            example.get_or_insert((seed, words));
        }
    }
    assert!(found > 0, "{fault} is not found by {seeds} seeds");
    println!("{fault}: {found} of {seeds} seeds; {example:?}");
}
