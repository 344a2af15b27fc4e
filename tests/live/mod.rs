//! Locks on real servers: what a holder, a contender and an operator see.

mod auto_extend;
mod deadlines;
mod elections;
mod embedded;
mod extends;
mod guards;
mod hand_off;
mod healing;
mod inspecting;
mod loss;
mod many;
mod members;
mod minority;
mod monitor_lines;
mod owners;
mod pairs;
mod paused;
mod prefixed;
mod quorum;
mod releases;
mod replicas;
mod scripts;

use std::time::{Duration, Instant};

use crate::engine_loop::Loop;
use crate::ready;
use crate::support::{Dice, Fleet, Node, SECOND, SOON, despite_stalls, eventually, millis};
use redlatch::{Client, Config, Engine, Error, Guard, LockOptions, LockUpdateKind};
use redlatch::{LockToken, NodeId, NodeState, RestartGuard, clock};

const TTL: Duration = Duration::from_secs(10);

/// A node timeout that no healthy node misses, however busy the machine is.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The node timeout where a test waits until a node counts as silent. A healthy node answers
/// sooner, even if the machine stalls for two seconds.
const SILENT: Duration = millis(2_500);

/// The nodes of this fleet, with a node timeout that no healthy node misses.
fn config(fleet: &Fleet) -> Config {
    plain(fleet.urls()).node_timeout(NODE_TIMEOUT)
}

/// Without the restart guard: these servers are seconds old, and nothing was ever locked there.
fn plain(urls: impl IntoIterator<Item = String>) -> Config {
    Config::new(urls).expect("good addresses").restart_guard(RestartGuard::Off)
}

fn client(fleet: &Fleet) -> Client {
    ready::client(config(fleet))
}

fn fleet_and_client(nodes: usize) -> (Fleet, Client) {
    let fleet = Fleet::start(nodes);
    let client = client(&fleet);
    (fleet, client)
}

fn fleet_and_loop(nodes: usize) -> (Fleet, Loop) {
    let fleet = Fleet::start(nodes);
    let embedded = Loop::ready(config(&fleet));
    (fleet, embedded)
}

/// What several tests do with a client.
trait Watched {
    fn wait_ready(&self, nodes: usize);
    fn drive_until(&self, limit: Duration, what: &str, holds: impl FnMut() -> bool) -> Duration;
    fn until_lost(&self, guard: &Guard<'_>) -> ReportedLoss;
}

/// How the loss of a lock with auto-extend was reported.
#[derive(Debug)]
struct ReportedLoss {
    error: Error,
    /// The deadlines of which the client warned.
    warnings: Vec<redlatch::clock::Instant>,
    /// The moment of the report.
    at: redlatch::clock::Instant,
    /// The latest deadline of the lock.
    deadline: redlatch::clock::Instant,
}

impl ReportedLoss {
    /// How long before the deadline the report came; `None` if it came later.
    fn before_the_deadline(&self) -> Option<Duration> {
        let early = self.deadline.saturating_since(self.at);
        (!early.is_zero()).then_some(early)
    }

    fn reason(&self) -> redlatch::LostReason {
        match self.error {
            Error::Lost { reason, .. } => reason,
            ref other => panic!("{other}"),
        }
    }
}

impl Watched for Client {
    /// Drives until `nodes` nodes are ready.
    fn wait_ready(&self, nodes: usize) {
        ready::wait_ready(self, nodes);
    }

    /// Drives until `holds` is true, and returns how long that took.
    #[track_caller]
    fn drive_until(&self, limit: Duration, what: &str, holds: impl FnMut() -> bool) -> Duration {
        ready::drive_until(self, limit, what, holds)
    }

    /// Drives until the loss of the lock is reported.
    #[track_caller]
    fn until_lost(&self, guard: &Guard<'_>) -> ReportedLoss {
        let mut deadline = guard.deadline().expect("it is held");
        let mut warnings = Vec::new();
        let start = Instant::now();
        loop {
            // `drive` returns as soon as there is something to report.
            self.drive(millis(100)).expect("the poller works");
            deadline = guard.deadline().unwrap_or(deadline);
            while let Some(notice) = self.poll_lock_update() {
                if notice.token != guard.token() {
                    continue; // The loss of an earlier lock, which the test has not taken.
                }
                assert_eq!(notice.key(), Some(guard.key()));
                match notice.kind {
                    LockUpdateKind::Expiring { deadline, .. } => warnings.push(deadline),
                    LockUpdateKind::Lost(error) => {
                        let at = clock::now();
                        return ReportedLoss { error, warnings, at, deadline };
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(start.elapsed() < 90 * SECOND, "it was never told");
        }
    }
}

/// A token that no client has.
fn wrong_token() -> LockToken {
    LockToken::parse(&"0123456789".repeat(4)).expect("forty digits")
}

/// Options for a lock that is renewed for as long as a test may take.
fn kept(ttl: Duration) -> LockOptions {
    LockOptions::new(ttl).auto_extend(3600 * SECOND)
}

/// Waits until every key is gone, by its release or by its ttl.
#[track_caller]
fn wait_until_all_keys_end(fleet: &Fleet) {
    eventually(SOON, "no key is left", || fleet.keys_everywhere().is_empty());
}

/// The state of each node.
fn node_states(engine: &Engine) -> Vec<NodeState> {
    let nodes = 0..engine.coordinator().settings().nodes.len();
    nodes.map(|index| engine.node_state(NodeId::new(index))).collect()
}
