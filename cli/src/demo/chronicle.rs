//! What the demo did and saw, and when: the facts from which the picture is drawn.
//!
//! The code that does or sees something records it at that moment. This file computes nothing.

use std::time::Duration;

use redlatch::clock::Instant;

/// A step of the story. The screen and the picture number the steps from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub at: Instant,
    pub title: &'static str,
    /// The calls that the picture quotes, each with its outcome, as on the screen.
    pub calls: Vec<(String, String)>,
}

/// A client's call that took a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub client: &'static str,
    pub from: Instant,
    pub to: Instant,
    /// The call and its duration, in words.
    pub what: String,
}

/// What was done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Frozen,
    /// A frozen node goes on.
    Thawed,
    Killed,
    /// A killed node was restarted, without keys.
    Restarted,
}

/// All facts of a run.
#[derive(Debug)]
pub struct Chronicle {
    pub start: Instant,
    pub node_timeout: Duration,
    pub steps: Vec<Step>,
    pub asks: Vec<Ask>,
    /// What was done to which node, and when.
    pub done: Vec<(Instant, usize, Done)>,
    /// The moments at which the lock changed hands, each with the client that has it from then on.
    pub holders: Vec<(Instant, Option<&'static str>)>,
    /// Tokens and their owners.
    pub owners: Vec<(String, &'static str)>,
}

impl Chronicle {
    /// An empty chronicle that begins at `start`.
    pub fn new(start: Instant) -> Chronicle {
        let (node_timeout, steps, asks, done, holders, owners) = Default::default();
        Chronicle { start, node_timeout, steps, asks, done, holders, owners }
    }

    /// Begins a step, and returns its number.
    pub fn step(&mut self, at: Instant, title: &'static str) -> usize {
        self.steps.push(Step { at, title, calls: Vec::new() });
        self.steps.len()
    }

    /// Records a call of the current step, for the picture.
    pub fn call(&mut self, who: &str, what: &str, outcome: &str) {
        if let Some(step) = self.steps.last_mut() {
            step.calls.push((format!("{who} {what}"), outcome.into()));
        }
    }

    pub fn ask(&mut self, client: &'static str, from: Instant, to: Instant, what: String) {
        self.asks.push(Ask { client, from, to, what });
    }

    /// The client whose lock has this token; `None` if no lock has it.
    pub fn owner_of(&self, token: &str) -> Option<&'static str> {
        let owner = self.owners.iter().find(|(owned, _)| owned == token);
        owner.map(|&(_, owner)| owner)
    }
}
