//! How long a client waits for nodes whose connections are being opened, and the one error of its
//! nodes that a new client reports afterwards.

use std::time::Duration;

use crate::proto::coordinator::Coordinator;
use crate::proto::error::{ConfigError, Error, NodeError};
use crate::proto::node_set::NodeId;
use crate::proto::quorum::majority;
use crate::proto::time::Instant;

/// The shortest time that a new client waits for the other nodes after a quorum is ready, because
/// nodes that are equally fast do not answer in the same moment.
const LEAST_GRACE: Duration = Duration::from_millis(2);

/// The wait of a client for nodes whose connections are being opened.
///
/// When a quorum is ready, a client can acquire locks. It then waits for the other nodes for as
/// long again as the quorum took, because healthy nodes are about equally fast. A slower node joins
/// later.
#[derive(Debug)]
pub(crate) struct Connecting {
    start: Instant,
    end: Instant,
    least_grace: Duration,
    longest_grace: Duration,
    quorum_since: Option<Instant>,
}

impl Connecting {
    /// The wait of a new client.
    pub(crate) fn new(core: &Coordinator, now: Instant) -> Connecting {
        let limit = core.settings().connect_timeout;
        Connecting { least_grace: LEAST_GRACE, ..Connecting::again(core, limit, now) }
    }

    /// The wait of a client whose connections may have been closed between its calls. There is no
    /// wait if a quorum is ready.
    pub(crate) fn again(core: &Coordinator, limit: Duration, now: Instant) -> Connecting {
        Connecting {
            start: now,
            end: now.saturating_add(limit),
            least_grace: Duration::ZERO,
            longest_grace: core.settings().node_timeout,
            quorum_since: None,
        }
    }

    /// Until when to wait for the next event; `None` if the wait is over, because enough nodes are
    /// ready, no other node may become ready soon, or the time is over.
    pub(crate) fn wait_until(&mut self, core: &Coordinator, now: Instant) -> Option<Instant> {
        if core.reconnecting().is_empty() || now >= self.end {
            return None;
        }
        if core.ready().len() < majority(core.settings().nodes.len()) {
            return Some(self.end);
        }
        let since = *self.quorum_since.get_or_insert(now);
        let grace = since.saturating_since(self.start).max(self.least_grace);
        let until = since.saturating_add(grace.min(self.longest_grace)).min(self.end);
        (now < until).then_some(until)
    }
}

/// Returns an error if two addresses turned out to lead to one server, which is a mistake in the
/// list of nodes.
pub(crate) fn refuse_one_server_twice(core: &Coordinator, now: Instant) -> Result<(), Error> {
    let mut nodes = (0..core.settings().nodes.len()).map(NodeId::new);
    if nodes.any(|node| core.last_error(node) == NodeError::SameServer) {
        return Err(Error::Config(ConfigError::Nodes(core.report_node_states(now))));
    }
    Ok(())
}
