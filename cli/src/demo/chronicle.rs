//! What the demo did and saw, with the time of it: the facts for the picture.
//!
//! A fact is noted where it happens, by whoever knows that it did. Nothing is worked out here, and
//! nothing is noted ahead.

use redlatch::clock::Instant;

/// Something that the demo did, or that came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub at: Instant,
    /// Who did it: a client or a node.
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
    /// A killed node is back, empty.
    Restarted,
}

/// All of it.
#[derive(Debug)]
pub struct Chronicle {
    pub start: Instant,
    pub events: Vec<Event>,
    /// To which node, and when.
    pub done: Vec<(Instant, usize, Done)>,
    /// From when on who has the lock, or nobody.
    pub holders: Vec<(Instant, Option<&'static str>)>,
    /// Whose token is whose.
    pub owners: Vec<(String, &'static str)>,
}

impl Chronicle {
    /// Of what happens from now on.
    pub fn new(start: Instant) -> Chronicle {
        let (events, done, holders, owners) = Default::default();
        Chronicle { start, events, done, holders, owners }
    }

    pub fn event(&mut self, at: Instant, who: &str, what: &str, outcome: &str) {
        let what = if outcome.is_empty() { what.into() } else { format!("{what}: {outcome}") };
        self.events.push(Event { at, who: who.into(), what });
    }

    /// The owner of a token, where it belongs to a lock.
    pub fn owner_of(&self, token: &str) -> Option<&'static str> {
        let owner = self.owners.iter().find(|(owned, _)| owned == token);
        owner.map(|&(_, owner)| owner)
    }
}
