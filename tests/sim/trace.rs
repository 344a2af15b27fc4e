//! The last events of a run, in words. Words are slow, so a run writes none. A run that fails is
//! repeated with the trace on: the same seed fails again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::agenda::MILLI;

/// How many lines are kept, unless `SIM_LINES` says otherwise.
const LINES: usize = 250;

/// A handle on the trace. The code that started the run keeps another one, which survives a panic.
#[derive(Debug, Clone, Default)]
pub struct Trace(Option<Rc<RefCell<Lines>>>);

#[derive(Debug)]
struct Lines {
    last: VecDeque<String>,
    most: usize,
}

impl Trace {
    /// A trace that keeps what is noted.
    pub fn on() -> Trace {
        let most = crate::number("SIM_LINES").unwrap_or(LINES);
        Trace(Some(Rc::new(RefCell::new(Lines { last: VecDeque::new(), most }))))
    }

    /// Writes a line, if the trace is on.
    pub fn note(&self, now: u64, words: impl FnOnce() -> String) {
        if let Some(lines) = &self.0 {
            let mut lines = lines.borrow_mut();
            if lines.last.len() == lines.most {
                lines.last.pop_front();
            }
            let (whole, part) = (now / MILLI, now % MILLI);
            lines.last.push_back(format!("{whole:>7}.{part:06} ms  {}", words()));
        }
    }

    /// The lines, oldest first.
    pub fn text(&self) -> String {
        let Some(lines) = &self.0 else { return String::new() };
        lines.borrow().last.iter().map(|line| format!("{line}\n")).collect()
    }
}
