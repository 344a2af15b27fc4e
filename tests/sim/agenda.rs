//! Which event happens when. Simulated time is a number here and moves only from one event to the
//! next. Events of one moment happen in the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds in a microsecond, a millisecond, a second.
pub const MICRO: u64 = 1_000;
pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The nodes are healthy in turn: one serves requests, and all others load their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// The node that is healthy now.
    pub node: usize,
    /// How many turns follow; after the last one all nodes are healthy.
    pub left: usize,
    /// How long each turn lasts.
    pub length: u64,
}

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A client takes its next steps, or wakes. Only the event with its latest `wake` counts.
    Client { client: usize, wake: u64 },
    /// Bytes may have arrived at the node's end of a wire.
    ToNode { wire: usize },
    /// Bytes may have arrived at the client's end of a wire.
    ToClient { wire: usize },
    /// The next fault happens.
    Fault,
    /// A frozen node continues.
    Thaw { node: usize },
    /// A killed node starts again.
    Start { node: usize },
    /// A node is killed, and starts again with the data of another one.
    Copy { node: usize, from: usize },
    /// A node that refused commands serves them again.
    Recover { node: usize },
    /// A check whether a lock that a user believes in is on a majority of the nodes.
    Probe { belief: usize },
    /// A check whether a lock that was given away is still there to be adopted.
    ProbeGiven { handed: usize },
    /// A check whether users wait for keys that are free.
    Watch,
    /// The next node is the only healthy one.
    Turn(Turn),
}

/// The scheduled events, and the time.
#[derive(Debug, Default)]
pub struct Agenda {
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    put: u64,
}

impl Agenda {
    /// The present time.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Schedules an event; if `at` is past, it happens now.
    pub fn put(&mut self, at: u64, event: Event) {
        self.put += 1;
        self.events.push(Reverse((at.max(self.now), self.put, event)));
    }

    /// Returns the next event up to `end`, and moves the time to it; without one, moves the time to
    /// `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        match self.events.peek() {
            Some(Reverse((at, ..))) if *at <= end => {
                let Reverse((at, _, event)) = self.events.pop()?;
                self.now = at;
                Some(event)
            }
            _ => {
                self.now = end;
                None
            }
        }
    }
}
