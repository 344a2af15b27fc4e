//! What the demo did and saw, with the time of it: the facts for the picture.
//!
//! A fact is noted where it happens, by the code that knows it. Nothing is worked out here, and
//! nothing is noted ahead.

use redlatch::clock::Instant;

/// Something that the demo did, or that followed from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub at: Instant,
    /// The actor: a client or a node.
    pub who: String,
    pub what: String,
}

/// What was done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Frozen,
    /// A frozen node goes on.
    Thawed,
    Killed,
    /// A killed node is back, without keys.
    Restarted,
}

/// All facts of a run.
#[derive(Debug)]
pub struct Chronicle {
    pub start: Instant,
    pub events: Vec<Event>,
    /// What was done to which node, and when.
    pub done: Vec<(Instant, usize, Done)>,
    /// From when on which client has the lock; `None`: no client.
    pub holders: Vec<(Instant, Option<&'static str>)>,
    /// Tokens and their owners.
    pub owners: Vec<(String, &'static str)>,
}

impl Chronicle {
    /// An empty chronicle that begins at `start`.
    pub fn new(start: Instant) -> Chronicle {
        let (events, done, holders, owners) = Default::default();
        Chronicle { start, events, done, holders, owners }
    }

    pub fn event(&mut self, at: Instant, who: &str, what: &str, outcome: &str) {
        let what = if outcome.is_empty() { what.into() } else { format!("{what}: {outcome}") };
        self.events.push(Event { at, who: who.into(), what });
    }

    /// The owner of a token, if it belongs to a lock.
    pub fn owner_of(&self, token: &str) -> Option<&'static str> {
        let owner = self.owners.iter().find(|(owned, _)| owned == token);
        owner.map(|&(_, owner)| owner)
    }
}
