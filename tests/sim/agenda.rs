//! What happens when. Simulated time is a number here, and moves only from one event to the next;
//! events of one moment happen in the order in which they were put down.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds in a microsecond, a millisecond, a second.
pub const MICRO: u64 = 1_000;
pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The nodes are well by turns, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Which one is well now.
    pub node: usize,
    /// How many turns follow; after the last one all are well.
    pub left: usize,
    /// How long each lasts.
    pub length: u64,
}

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A client goes on with its turn, or wakes. Only its latest wake counts.
    Client { client: usize, wake: u64 },
    /// Something may have arrived at the node's end of a wire.
    ToNode { wire: usize },
    /// Something may have arrived at the client's end of a wire.
    ToClient { wire: usize },
    /// The next thing that goes wrong.
    Fault,
    /// A frozen node goes on.
    Thaw { node: usize },
    /// A killed node starts again.
    Start { node: usize },
    /// A node is killed, and starts again with what another one has.
    Copy { node: usize, from: usize },
    /// A node that refused commands is well again.
    Recover { node: usize },
    /// Look whether a lock that a user believes in is on a majority of the nodes.
    Probe { belief: usize },
    /// Look whether a lock that was given away is still there to be taken up.
    ProbeGiven { handed: usize },
    /// Look whether users wait for keys that are free.
    Watch,
    /// Another node is the one that is well.
    Turn(Turn),
}

/// The events to come, and the time.
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

    /// Puts an event down; one for the past happens now.
    pub fn put(&mut self, at: u64, event: Event) {
        self.put += 1;
        self.events.push(Reverse((at.max(self.now), self.put, event)));
    }

    /// Moves the time to the next event that is not after `end`, or else to `end`.
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
