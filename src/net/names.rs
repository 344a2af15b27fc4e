//! Looks names up beside the loop, each on a short-lived thread: a name server may take its time,
//! and the loop does not wait for it.
//!
//! A result does not wake the loop: the next turn takes it. While a node is down the engine
//! connects to it again and again, so there is a next turn.

use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::address::Lookup;
use crate::proto::node_set::{NodeId, NodeSet};

type Found = (NodeId, io::Result<Vec<SocketAddr>>);

/// The lookups in flight.
#[derive(Debug)]
pub(crate) struct Names {
    sender: Sender<Found>,
    receiver: Receiver<Found>,
    under_way: NodeSet,
}

impl Names {
    pub(crate) fn new() -> Names {
        let (sender, receiver) = mpsc::channel();
        Names { sender, receiver, under_way: NodeSet::EMPTY }
    }

    /// Begins to look the node's name up, unless a lookup of it is in flight.
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
            // No thread is available: the next failure tries again.
            self.under_way.remove(node);
        }
    }

    /// The next result.
    pub(crate) fn found(&mut self) -> Option<(NodeId, Vec<SocketAddr>)> {
        if self.under_way.is_empty() {
            return None;
        }
        while let Ok((node, found)) = self.receiver.try_recv() {
            self.under_way.remove(node);
            if let Ok(addresses) = found {
                return Some((node, addresses));
            }
        }
        None
    }
}
