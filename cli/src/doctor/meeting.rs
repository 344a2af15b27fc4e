//! How the library itself judges the nodes: connects to all of them with a client of the library,
//! and records whether that client would ask each node for locks, and if not, why.
//!
//! The client sends only handshakes. The hazard is to judge too early: so this waits until each
//! node is connected or has failed once, for little more than the connect timeout.

use std::io;

use mio::{Events, Poll, Token};
use redlatch::proto::QuarantineReason;
use redlatch::{
    Config, Engine, NodeError, NodeEvent, NodeId, NodeReply, NodeState, clock, clock::Instant,
};

use crate::output::Refusal;

/// How the library judges one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    pub state: NodeState,
    /// Why the node's grants do not count yet, and when they will.
    pub distrust: Option<(QuarantineReason, Instant)>,
    /// What is wrong with the node, in the words of the system or of the node.
    pub words: Option<String>,
}

impl Met {
    /// Why the library asks the node for no lock; `None` if it does ask.
    pub fn trouble(&self) -> Option<NodeError> {
        match self.state {
            NodeState::Ready | NodeState::Quarantined(_) => None,
            NodeState::Down(cause) | NodeState::Rejected(cause) => Some(cause),
            // The node is connecting, in its handshake, or suspect.
            _ => Some(NodeError::Silent),
        }
    }
}

/// Connects to the nodes and returns the outcomes, in the order of the list.
///
/// # Errors
/// The configuration cannot work.
pub fn meet(config: Config) -> Result<Vec<Met>, Refusal> {
    // The limit is a little longer than the connect timeout, so that the library gives up a silent
    // node before and reports why.
    let limit = config.get_settings().connect_timeout.mul_f64(1.1);
    let count = config.get_settings().nodes.len();
    let failed = |error: io::Error| Refusal::internal(format!("poller: {error}"));
    let mut poll = Poll::new().map_err(failed)?;
    let mut engine = Engine::new(config, poll.registry(), Token(0))?;
    let mut events = Events::with_capacity(64);
    let mut distrusted = vec![None; count];
    let end = clock::now().saturating_add(limit);
    loop {
        let timeout = engine.prepare();
        let found = std::iter::from_fn(|| engine.poll_node_event());
        for event in found.collect::<Vec<_>>() {
            if let NodeEvent::Quarantined { node, why, until } = event {
                distrusted[node.index()] = Some((why, until));
            }
        }
        let left = end.saturating_since(clock::now());
        if left.is_zero() || (0..count).all(|node| is_known(&engine, NodeId::new(node))) {
            return Ok(judge_nodes(&engine, &distrusted));
        }
        match poll.poll(&mut events, Some(timeout.map_or(left, |timeout| timeout.min(left)))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            polled => polled.map_err(failed)?,
        }
        for event in &events {
            engine.handle_event(event);
        }
    }
}

fn is_known(engine: &Engine, node: NodeId) -> bool {
    engine.node_state(node).is_usable() || engine.coordinator().failures(node) > 0
}

fn judge_nodes(engine: &Engine, distrusted: &[Option<(QuarantineReason, Instant)>]) -> Vec<Met> {
    let report = engine.coordinator().report_node_states(clock::now());
    let nodes = report.nodes.into_iter().zip(distrusted).enumerate();
    nodes
        .map(|(index, (node, &distrust))| {
            let mut state = engine.node_state(NodeId::new(index));
            // After a failure the engine connects to the node again. Report the failure, and not
            // that a connection is being opened.
            let failed = engine.coordinator().failures(NodeId::new(index)) > 0;
            if let (true, false, NodeReply::Failed(cause)) = (failed, state.is_usable(), node.reply)
            {
                state = NodeState::Down(cause);
            }
            Met { state, distrust, words: node.detail.map(String::from) }
        })
        .collect()
}
