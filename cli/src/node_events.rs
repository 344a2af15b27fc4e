//! The events of nodes in words, for users of `-v`.

use std::time::Duration;

use redlatch::{Engine, NodeEvent, NodeId, NodeState, clock, clock::Instant};

use crate::arguments::Output;
use crate::event_loop::EventLoop;
use crate::look::time;
use crate::output;

/// With `-v`, prints the events of the nodes since the last call.
pub fn mention(event_loop: &mut EventLoop, output: &Output) {
    for text in lines(event_loop) {
        output::mention(output, &text);
    }
}

/// The events of the nodes since the last call, one line each.
pub fn lines(event_loop: &mut EventLoop) -> Vec<String> {
    let events = event_loop.take_events();
    events.iter().filter_map(|event| in_words(event, &event_loop.engine)).collect()
}

/// The line for one event; `None` if it does not matter to an operator.
fn in_words(event: &NodeEvent, engine: &Engine) -> Option<String> {
    let label = |node: NodeId| &engine.coordinator().settings().nodes[node.index()].label;
    Some(match *event {
        NodeEvent::State { node, state } => {
            let master = engine.master_address(node).filter(|_| state.is_usable());
            let at = master.map(|master| format!(" at {master}")).unwrap_or_default();
            format!("{}{at} {}", label(node), state_in_words(state)?)
        }
        NodeEvent::Quarantined { node, why, until } => {
            format!("grants of {} are ignored for {}: {why}", label(node), time(left(until)))
        }
        NodeEvent::ClockJumped { node, nanos } => {
            let far = time(Duration::from_nanos(nanos.unsigned_abs()));
            let way = if nanos < 0 { "back" } else { "ahead" };
            format!("the clock of {} jumped {way} by {far}", label(node))
        }
        NodeEvent::PendingReleasesSent { node, count } => {
            format!("{} got {}", label(node), pending_releases(count))
        }
        NodeEvent::PendingReleasesDropped { node, count } => {
            let label = label(node);
            let dropped = pending_releases(count);
            format!("{label} was away or refused for too long: it will not get {dropped}")
        }
        NodeEvent::QuorumReady => "a quorum of nodes is ready".to_string(),
        NodeEvent::QuorumGone => "no quorum of nodes is ready".to_string(),
        _ => return None,
    })
}

fn pending_releases(count: u64) -> String {
    if count == 1 { "1 pending release".to_owned() } else { format!("{count} pending releases") }
}

fn state_in_words(state: NodeState) -> Option<String> {
    Some(match state {
        NodeState::Ready => "is ready".to_string(),
        NodeState::Quarantined(until) => {
            format!("is ready; its grants are ignored for {}", time(left(until)))
        }
        NodeState::Suspect => "does not answer".to_string(),
        NodeState::Down(cause) => format!("is down: {cause}"),
        NodeState::Rejected(cause) => format!("is not used: {cause}"),
        _ => return None,
    })
}

/// The time from now until a moment; zero if it has passed.
pub fn left(until: Instant) -> Duration {
    until.saturating_since(clock::now())
}
