//! Finds out who holds a key that could not be acquired. A node's denial does not name the holder,
//! so this asks the nodes once more.
//!
//! The hazard is a refusal that is reported late. So the question has a short time limit, and
//! without an answer the refusal names no holder.

use std::time::Duration;

use redlatch::{Error, KeySummary, Outcome, Value, clock};
use serde_json::{Value as Json, json};

use crate::event_loop::EventLoop;
use crate::look::time;
use crate::wall_clock::millis;

/// How long the nodes may take to answer who holds the key.
const LIMIT: Duration = Duration::from_millis(100);

/// The value that a majority of the nodes has for the key, and its ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    value: Value,
    /// What is left of the ttl; `None` if the key has none.
    left: Option<Duration>,
}

impl Holder {
    /// The holder of the key that `error` reports as contended, if a majority of the nodes names it
    /// in time.
    pub fn of(event_loop: &mut EventLoop, error: &Error) -> Option<Box<Holder>> {
        let Error::Contended(report) = error else { return None };
        let node_timeout = event_loop.engine.coordinator().settings().node_timeout;
        let end = clock::now().saturating_add(node_timeout.min(LIMIT));
        let op = event_loop.engine.inspect(&report.key, 0).ok()?;
        loop {
            while let Some(done) = event_loop.engine.poll_completion() {
                if done.op == op {
                    let Ok(Outcome::Inspected(seen)) = done.result else { return None };
                    return match seen.summary() {
                        KeySummary::Held { value, left, .. } => {
                            Some(Box::new(Holder { value, left }))
                        }
                        _ => None,
                    };
                }
            }
            if clock::now() >= end || event_loop.turn(Some(end)).is_err() {
                event_loop.engine.cancel(op);
                return None;
            }
        }
    }

    /// The holder as text for people: the owner in its token, or else the value.
    pub fn words(&self) -> String {
        let holder = match self.value.owner() {
            Some(owner) => owner.to_string(),
            None => self.value.to_string(),
        };
        match self.left {
            Some(left) => format!("held by {holder}, {} left unless it is renewed", time(left)),
            None => format!("held by {holder} for ever: the key has no ttl"),
        }
    }

    /// Adds the holder to the JSON of a refusal or an event.
    pub fn add_to(&self, object: &mut Json) {
        object["holder"] = json!(self.value.to_string());
        object["owner"] = json!(self.value.owner());
        object["remaining_ms"] = json!(self.left.map(millis));
    }
}
