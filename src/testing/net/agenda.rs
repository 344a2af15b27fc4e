//! The queue of coming events. Events of the same moment happen in the order in which they were put
//! in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::proto::time::Instant;
use crate::testing::master::ConnectionId;

/// An event. When it happens, its connection or timer may not exist any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A connection is open.
    Open { client: usize, node: usize },
    /// A message may have arrived at a node.
    ToNode { client: usize, node: usize },
    /// A message may have arrived at a client.
    ToClient { client: usize, node: usize },
    /// The timer of a client is due.
    Timer { client: usize, timer: u64 },
    /// A message may have arrived on a connection that its client has lost.
    Late { node: usize, connection: ConnectionId },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Agenda {
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    count: u64,
}

impl Agenda {
    pub(super) fn put(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Takes the next event, if its moment is not after `until`.
    pub(super) fn next(&mut self, until: Instant) -> Option<(Instant, Event)> {
        let Reverse((at, _, _)) = self.events.peek()?;
        if *at > until {
            return None;
        }
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
