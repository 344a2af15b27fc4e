//! One term of a leader: what its campaign reports while CMD runs.

use std::time::Duration;

use redlatch::Standing;

use super::events;
use crate::event_loop::EventLoop;
use crate::exec::log::Log;
use crate::exec::watch::Beside;

/// The term of a leader whose CMD runs.
#[derive(Debug)]
pub struct Term {
    number: u64,
    /// How long to stay out, if an operator asked this leader to step down.
    asked: Option<Duration>,
}

impl Term {
    /// The term with this fencing number.
    pub fn new(number: u64) -> Term {
        Term { number, asked: None }
    }

    /// The fencing number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How long an operator asked this leader to stay out.
    pub fn asked_pause(&self) -> Option<Duration> {
        self.asked
    }
}

impl Beside for Term {
    fn turn(&mut self, event_loop: &mut EventLoop, log: &mut Log) {
        // The engine passes the ends of the campaign's own requests to the campaign when the
        // completions are polled.
        while event_loop.engine.poll_completion().is_some() {}
        while let Some(change) = event_loop.engine.poll_standing() {
            match change.standing {
                Standing::AskedToResign(pause) => {
                    self.asked = Some(pause);
                    events::asked_to_resign(log, pause);
                }
                // The lock is lost. CMD is stopped by the update of the lock that says so.
                Standing::Following(leader) => events::following(log, leader.as_ref()),
                _ => {}
            }
        }
    }

    fn gives_up(&self) -> bool {
        self.asked.is_some()
    }

    fn variable(&self) -> Option<(&'static str, String)> {
        Some(("REDLATCH_TERM", self.number.to_string()))
    }
}
