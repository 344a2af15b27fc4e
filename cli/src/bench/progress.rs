//! A line of progress on stderr, if that is a terminal.
//!
//! The hazard is that printing takes time from the measurement. So the line is printed only twice a
//! second, and shows counts that the bench keeps anyway, but no percentiles.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::figures::count;
use super::pairs::Window;
use super::tally::Tally;

const EVERY: Duration = Duration::from_millis(500);

/// The width that a line covers, in characters.
const WIDTH: usize = 64;

/// The line.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    what: String,
    next: Instant,
}

impl Progress {
    /// Shows nothing if `quiet` is set, or if stderr is not a terminal.
    pub fn new(quiet: bool) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        Progress { shown, what: String::new(), next: clock::now() }
    }

    /// Sets what is measured from now on.
    pub fn begin(&mut self, what: String) {
        self.what = what;
    }

    /// Prints the progress when it is due, and returns when it is due next.
    pub fn show(&mut self, now: Instant, window: &Window, tally: &Tally) -> Option<Instant> {
        if !self.shown {
            return None;
        }
        if now >= self.next {
            self.next = now.saturating_add(EVERY);
            self.write(&format!("{}: {}", self.what, how_far(now, window, tally)));
        }
        Some(self.next)
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if self.shown {
            self.write("");
        }
    }

    fn write(&mut self, line: &str) {
        // Overwrites the old line without escape codes, which not every terminal knows. After an
        // error of stderr no more lines are written.
        let written = write!(std::io::stderr(), "\r{line:WIDTH$}\r");
        self.shown = written.is_ok();
    }
}

fn how_far(now: Instant, window: &Window, tally: &Tally) -> String {
    if now < window.begin {
        return "warming up".to_owned();
    }
    let all = window.end.saturating_since(window.begin).as_secs_f64();
    let done = now.saturating_since(window.begin).as_secs_f64().min(all);
    let errors = tally.errors.values().sum::<u64>();
    let errors = if errors > 0 { format!(", {} errors", count(errors)) } else { String::new() };
    format!("{done:.1} of {all:.1} s, {} pairs{errors}", count(tally.pairs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch::ReleaseOutcome;

    #[test]
    fn progress_says_how_far_the_run_is() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let window = Window { begin: at(1), end: at(11) };
        let mut tally = Tally::new();
        assert_eq!(how_far(at(0), &window, &tally), "warming up");
        tally.pair(Duration::ZERO, Duration::ZERO, ReleaseOutcome::Released);
        assert_eq!(how_far(at(3), &window, &tally), "2.0 of 10.0 s, 1 pairs");
        tally.unfinished(1200);
        assert_eq!(how_far(at(12), &window, &tally), "10.0 of 10.0 s, 1 pairs, 1,200 errors");
    }
}
