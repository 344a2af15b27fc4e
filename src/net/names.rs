//! Looks up names, each on a short-lived thread, because a name server may be slow and the loop
//! must not wait for it.
//!
//! A result does not wake the loop: the loop takes it in its next turn. While a node is down the
//! engine connects to it again and again, so there always is a next turn.
//!
//! A new engine waits for the first results for a bounded time. A node whose name is found later
//! joins later.

use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::address::Lookup;
use super::clock;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::majority;

type Found = (NodeId, io::Result<Vec<SocketAddr>>);

/// The shortest time that a new engine waits for the other names after the addresses of a quorum
/// are known.
const LEAST_GRACE: Duration = Duration::from_millis(20);

/// The lookups in flight.
#[derive(Debug)]
pub(crate) struct Names {
    sender: Sender<Found>,
    /// The mutex only makes the type `Sync`. It is never locked, because all uses have `&mut`.
    receiver: Mutex<Receiver<Found>>,
    in_flight: NodeSet,
}

impl Names {
    pub(crate) fn new() -> Names {
        let (sender, receiver) = mpsc::channel();
        Names { sender, receiver: Mutex::new(receiver), in_flight: NodeSet::EMPTY }
    }

    /// Looks up the names of a new engine's nodes, and passes the results to `take`. Waits until
    /// all have a result, or until the addresses of a quorum are known and then as long again for
    /// the others, but for `limit` at most. Returns the lookups that are still in flight.
    pub(crate) fn of_new_engine(
        lookups: Vec<Option<Lookup>>,
        limit: Duration,
        take: impl FnMut(NodeId, io::Result<Vec<SocketAddr>>),
    ) -> Names {
        let (mut names, nodes) = (Names::new(), lookups.len());
        for (index, lookup) in lookups.into_iter().enumerate() {
            if let Some(lookup) = lookup {
                names.begin(NodeId::new(index), lookup);
            }
        }
        names.wait_for_quorum(nodes, limit, take);
        names
    }

    /// Begins to look up the node's name, unless a lookup of it is in flight. If no thread can be
    /// started, does nothing: the engine asks again after later failures of the node.
    pub(crate) fn begin(&mut self, node: NodeId, lookup: Lookup) {
        if !self.in_flight.insert(node) {
            return;
        }
        let sender = self.sender.clone();
        let look_up = move || {
            // If the caller's resolver panics, this lookup fails.
            let found = panic::catch_unwind(AssertUnwindSafe(|| lookup.run()));
            let found =
                found.unwrap_or_else(|_| Err(io::Error::other("Config::resolver: it panicked")));
            // If the client is gone, the result is dropped.
            let _ = sender.send((node, found));
        };
        let started = thread::Builder::new().name("redlatch-name".into()).spawn(look_up);
        if started.is_err() {
            self.in_flight.remove(node);
        }
    }

    /// Whether a lookup of the node's name is in flight.
    pub(crate) fn is_under_way(&self, node: NodeId) -> bool {
        self.in_flight.contains(node)
    }

    fn wait_for_quorum(
        &mut self,
        nodes: usize,
        limit: Duration,
        mut take: impl FnMut(NodeId, io::Result<Vec<SocketAddr>>),
    ) {
        let start = clock::now();
        let end = start.saturating_add(limit);
        let mut known = nodes - self.in_flight.len();
        let mut until = end;
        let quorum = majority(nodes);
        loop {
            let now = clock::now();
            if known >= quorum && until == end {
                let grace = now.saturating_since(start).max(LEAST_GRACE);
                until = now.saturating_add(grace).min(end);
            }
            if self.in_flight.is_empty() || now >= until {
                return;
            }
            let Ok((node, found)) = self.receiver().recv_timeout(until.saturating_since(now))
            else {
                return;
            };
            self.in_flight.remove(node);
            known += usize::from(found.is_ok());
            take(node, found);
        }
    }

    fn receiver(&mut self) -> &mut Receiver<Found> {
        self.receiver.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next result.
    pub(crate) fn next_result(&mut self) -> Option<Found> {
        if self.in_flight.is_empty() {
            return None;
        }
        let (node, found) = self.receiver().try_recv().ok()?;
        self.in_flight.remove(node);
        Some((node, found))
    }

    /// The next result with addresses.
    pub(crate) fn found(&mut self) -> Option<(NodeId, Vec<SocketAddr>)> {
        while let Some((node, found)) = self.next_result() {
            if let Ok(addresses) = found {
                return Some((node, addresses));
            }
        }
        None
    }
}
