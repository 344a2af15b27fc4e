//! Looks names up beside the loop, each on a short-lived thread: a name server may take its time,
//! and the loop does not wait for it.
//!
//! A result does not wake the loop: the next turn takes it. While a node is down the engine
//! connects to it again and again, so there is a next turn.
//!
//! A new engine waits for the first results, in a bounded time. A name that is late is a node that
//! comes later.

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

/// The shortest time that the other names get once the addresses of a quorum are known.
const LEAST_GRACE: Duration = Duration::from_millis(20);

/// The lookups in flight.
#[derive(Debug)]
pub(crate) struct Names {
    sender: Sender<Found>,
    /// Never locked: only what is exclusive uses it. The mutex lets an engine be shared.
    receiver: Mutex<Receiver<Found>>,
    under_way: NodeSet,
}

impl Names {
    pub(crate) fn new() -> Names {
        let (sender, receiver) = mpsc::channel();
        Names { sender, receiver: Mutex::new(receiver), under_way: NodeSet::EMPTY }
    }

    /// Looks the names of a new engine's nodes up, passes the results to `take`, and returns the
    /// lookups that are late. It waits until the last result, or until the addresses of a quorum
    /// are known and the others had as long again, and for `limit` at most.
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

    /// Begins to look the node's name up, unless a lookup of it is in flight. If no thread is
    /// available, nothing happens: the next failure of the node tries again.
    pub(crate) fn begin(&mut self, node: NodeId, lookup: Lookup) {
        if !self.under_way.insert(node) {
            return;
        }
        let sender = self.sender.clone();
        let look_up = move || {
            // If the caller's function panics, the lookup finds nothing this time.
            let found = panic::catch_unwind(AssertUnwindSafe(|| lookup.run()));
            let found =
                found.unwrap_or_else(|_| Err(io::Error::other("Config::resolver: it panicked")));
            // If the client is gone, the result is dropped.
            let _ = sender.send((node, found));
        };
        let started = thread::Builder::new().name("redlatch-name".into()).spawn(look_up);
        if started.is_err() {
            self.under_way.remove(node);
        }
    }

    /// Whether a lookup of the node's name is in flight.
    pub(crate) fn is_under_way(&self, node: NodeId) -> bool {
        self.under_way.contains(node)
    }

    fn wait_for_quorum(
        &mut self,
        nodes: usize,
        limit: Duration,
        mut take: impl FnMut(NodeId, io::Result<Vec<SocketAddr>>),
    ) {
        let start = clock::now();
        let end = start.saturating_add(limit);
        let mut known = nodes - self.under_way.len();
        let mut until = end;
        let quorum = majority(nodes);
        loop {
            let now = clock::now();
            if known >= quorum && until == end {
                let grace = now.saturating_since(start).max(LEAST_GRACE);
                until = now.saturating_add(grace).min(end);
            }
            if self.under_way.is_empty() || now >= until {
                return;
            }
            let Ok((node, found)) = self.receiver().recv_timeout(until.saturating_since(now))
            else {
                return;
            };
            self.under_way.remove(node);
            known += usize::from(found.is_ok());
            take(node, found);
        }
    }

    fn receiver(&mut self) -> &mut Receiver<Found> {
        self.receiver.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next result.
    pub(crate) fn next_result(&mut self) -> Option<Found> {
        if self.under_way.is_empty() {
            return None;
        }
        let (node, found) = self.receiver().try_recv().ok()?;
        self.under_way.remove(node);
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
