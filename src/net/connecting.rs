//! How long a new client waits for its nodes, and which errors of its nodes it reports then.

use std::time::Duration;

use crate::proto::coordinator::Coordinator;
use crate::proto::error::{ConfigError, Error, NodeError};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// The wait of a new client for its nodes.
#[derive(Debug)]
pub(crate) struct Connecting {
    end: Instant,
    node_timeout: Duration,
    quorum_since: Option<Instant>,
}

impl Connecting {
    pub(crate) fn new(core: &Coordinator, now: Instant) -> Connecting {
        let settings = core.settings();
        let end = now.saturating_add(settings.connect_timeout);
        Connecting { end, node_timeout: settings.node_timeout, quorum_since: None }
    }

    /// Until when to wait for the next event; `None` when the wait is over. It is over when a
    /// quorum is ready and the others have had one node timeout, when every node was ready or
    /// failed once, or at the connect timeout.
    pub(crate) fn wait_until(&mut self, core: &Coordinator, now: Instant) -> Option<Instant> {
        let nodes = core.settings().nodes.len();
        let tried = (0..nodes)
            .map(NodeId::new)
            .filter(|&node| core.standing(node).is_usable() || core.failures(node) > 0);
        if tried.count() == nodes || now >= self.end {
            return None;
        }
        if core.ready().len() <= nodes / 2 {
            return Some(self.end);
        }
        let since = *self.quorum_since.get_or_insert(now);
        let until = since.saturating_add(self.node_timeout).min(self.end);
        (now < until).then_some(until)
    }
}

/// One server under two addresses, if found at the start, is a mistake in the list.
pub(crate) fn refuse_one_server_twice(core: &Coordinator, now: Instant) -> Result<(), Error> {
    let mut nodes = (0..core.settings().nodes.len()).map(NodeId::new);
    if nodes.any(|node| core.trouble(node) == NodeError::SameServer) {
        return Err(Error::Config(ConfigError::Nodes(core.report_standings(now))));
    }
    Ok(())
}
