//! Tests whose times a stall of the machine can break: after a stall they run once more, with more
//! time.
//!
//! The hazard is a fault that hides behind stalls. So a failure counts if no stall was long enough
//! to cause it, and the failure of the last run counts in any case.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::plain_timer::PlainTimer;

/// By how much each run stretches its times.
const STRETCHED: [u32; 3] = [1, 2, 4];

/// Runs `show` with a factor for its times. If it panics, and meanwhile a plain timer was late by
/// at least `breaking` times that factor, the stall may be the cause: it runs again with a greater
/// factor.
#[track_caller]
pub fn despite_stalls(breaking: Duration, mut show: impl FnMut(u32)) {
    for times in STRETCHED {
        let timer = PlainTimer::start();
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| show(times))) else { return };
        let late = timer.latest();
        if late < breaking * times || Some(&times) == STRETCHED.last() {
            resume_unwind(panic);
        }
        println!("once more with more time: a plain timer was late by {late:?}");
    }
}
