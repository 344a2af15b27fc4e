//! What happens to the nodes, in words, for those who asked for more with -v.

use std::time::Duration;

use redlatch::proto::coordinator::Coordinator;
use redlatch::{Event, Instant, NodeId, Standing, clock};

use crate::arguments::Output;
use crate::look::time;
use crate::output;
use crate::turning::Turning;

/// Tells what happened to the nodes since the last time.
pub fn mention(turning: &mut Turning, output: &Output) {
    for text in lines(turning) {
        output::mention(output, &text);
    }
}

/// What happened to the nodes since the last time, in a line each.
pub fn lines(turning: &mut Turning) -> Vec<String> {
    let events = turning.take_events();
    let core = turning.engine.coordinator();
    events.iter().filter_map(|event| in_words(event, core)).collect()
}

/// One line; `None` where it is no news to an operator.
fn in_words(event: &Event, core: &Coordinator) -> Option<String> {
    let label = |node: NodeId| &core.settings().nodes[node.index()].label;
    Some(match *event {
        Event::Standing { node, standing } => {
            format!("{} {}", label(node), standing_in_words(standing)?)
        }
        Event::Distrusted { node, why, until } => {
            format!("{} does not grant for {}: {why}", label(node), time(left(until)))
        }
        Event::ClockJumped { node, nanos } => {
            let far = time(Duration::from_nanos(nanos.unsigned_abs()));
            let way = if nanos < 0 { "back" } else { "ahead" };
            format!("the clock of {} jumped {way} by {far}", label(node))
        }
        Event::AddressStale { .. } => return None,
        Event::DebtsPaid { node, count } => format!("{} got {count} late releases", label(node)),
        Event::DebtsGivenUp { node, count } => {
            let label = label(node);
            format!("{label} was away or refused for too long: {count} releases are given up")
        }
        Event::QuorumReady => "a quorum of nodes is ready".to_string(),
        Event::QuorumGone => "no quorum of nodes is ready".to_string(),
    })
}

fn standing_in_words(standing: Standing) -> Option<String> {
    Some(match standing {
        Standing::Connecting | Standing::Greeting => return None,
        Standing::Ready => "is ready".to_string(),
        Standing::Quarantined(until) => {
            format!("is ready; what it grants does not count for {}", time(left(until)))
        }
        Standing::Suspect => "does not answer".to_string(),
        Standing::Down(cause) => format!("is down: {cause}"),
        Standing::Rejected(cause) => format!("is not used: {cause}"),
    })
}

/// How far away a moment is.
pub fn left(until: Instant) -> Duration {
    until.saturating_since(clock::now())
}
