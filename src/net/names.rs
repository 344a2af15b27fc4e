//! Names that are looked up beside the loop, each on a short-lived thread: a name server may take
//! its time, and the loop does not wait for it.
//!
//! Nobody is told when one is found. The next turn takes it: a node that is down is connected to
//! again and again, so there is one.

use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::address::Lookup;
use crate::proto::node::{NodeId, NodeSet};

type Found = (NodeId, io::Result<Vec<SocketAddr>>);

/// The names that are being looked up.
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

    /// Begins to look the node's name up, unless that is under way.
    pub(crate) fn begin(&mut self, node: NodeId, lookup: Lookup) {
        if !self.under_way.insert(node) {
            return;
        }
        let sender = self.sender.clone();
        let look_up = move || {
            // A function of the caller's that panics has found nothing this time.
            let found = panic::catch_unwind(AssertUnwindSafe(|| lookup.run()));
            let found = found.unwrap_or_else(|_| Err(io::Error::other("the lookup panicked")));
            // Nobody takes it when the client is gone.
            let _ = sender.send((node, found));
        };
        let started = thread::Builder::new().name("redlatch-name".into()).spawn(look_up);
        if started.is_err() {
            // No thread to be had: the next failure tries again.
            self.under_way.remove(node);
        }
    }

    /// The next one that was found.
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
