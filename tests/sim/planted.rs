//! Only in a tree with planted faults: counts the seeds that find the fault that `PLANTED_FAULT`
//! names (`tests/planted`).

use crate::trace::Trace;
use crate::{asked, run};

#[test]
fn planted_fault_is_found() {
    let Ok(fault) = std::env::var("PLANTED_FAULT") else { return };
    let seeds = asked::seeds("SIM", 0, 1_000);
    let (mut found, mut example) = (0, None);
    for seed in seeds.clone() {
        if let Err(words) = run(seed, Trace::default()) {
            found += 1;
            example.get_or_insert((seed, words));
        }
    }
    assert!(found > 0, "{fault} is not found by the seeds {seeds:?}");
    println!("{fault}: {found} of the seeds {seeds:?}; {example:?}");
}
