//! Faults of nodes and of the network between, on real servers: each costs nothing on the hot path
//! and nothing in safety.
//!
//! If a rule is about time, the tests look at the order of events, or at a bound ten times what is
//! expected: these machines are shared. What was measured is printed.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod clocks;
mod forgetting;
mod fork;
mod liveness;
mod namespaces;
mod permissions;
mod replies;
mod resets;
mod restarts;
mod stale;

use std::time::{Duration, Instant};

use redlatch::{Client, Config, Engine, NodeState, RestartGuard};
use support::{Fleet, Node, Proxy, eventually};

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// No healthy node misses this timeout here, and a test that waits for it becomes visibly slow.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn config<I>(urls: I) -> Config
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let config = Config::new(urls).expect("good addresses").node_timeout(NODE_TIMEOUT);
    // These servers are seconds old, and nothing was ever locked there.
    config.restart_guard(RestartGuard::Off)
}

/// A client all of whose nodes are ready.
fn client(config: Config) -> Client {
    let nodes = config.settings().nodes.len();
    let client = Client::connect(config).expect("a good configuration");
    wait_ready(&client, nodes);
    client
}

/// Drives until `nodes` nodes are ready, and returns how long that took.
#[track_caller]
fn wait_ready(client: &Client, nodes: usize) -> Duration {
    drive_until(client, 5 * SECOND, "the nodes are ready", || {
        client.nodes().iter().filter(|&&it| it == NodeState::Ready).count() == nodes
    })
}

/// Drives the client until `holds`, and returns how long that took.
#[track_caller]
fn drive_until(
    client: &Client,
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    eventually(limit, what, || {
        client.drive(millis(1)).expect("the poller works");
        holds()
    });
    start.elapsed()
}

/// Lets time pass for a client that is not driven: only for tests in which that time is the point.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// The tokens that the key holds, one for each node that has it.
fn tokens<'a>(nodes: impl IntoIterator<Item = &'a Node>, key: &str) -> Vec<Vec<u8>> {
    nodes.into_iter().filter_map(|node| node.get(key)).collect()
}

/// A fleet with a proxy in front of each node.
struct Proxied {
    // First: the proxies close their connections to the servers before these end.
    proxies: Vec<Proxy>,
    fleet: Fleet,
}

impl Proxied {
    fn start(n: usize) -> Proxied {
        let fleet = Fleet::start(n);
        let proxies = fleet.iter().map(|node| Proxy::start(node.address())).collect();
        Proxied { proxies, fleet }
    }

    fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(Proxy::url).collect()
    }
}

/// An engine on a poller of its own, as an embedder has it.
struct Loop {
    engine: Engine,
    poll: mio::Poll,
    events: mio::Events,
}

impl Loop {
    fn new(config: Config) -> Loop {
        let poll = mio::Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), mio::Token(0)).expect("good settings");
        Loop { engine, poll, events: mio::Events::with_capacity(64) }
    }

    /// Prepares, sleeps for at most 10 ms, takes the events.
    fn turn(&mut self) {
        let timeout = self.engine.prepare().unwrap_or(millis(10)).min(millis(10));
        self.poll.poll(&mut self.events, Some(timeout)).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }

    #[track_caller]
    fn turn_until(&mut self, what: &str, mut holds: impl FnMut(&mut Engine) -> bool) {
        eventually(5 * SECOND, what, || {
            self.turn();
            holds(&mut self.engine)
        });
    }
}
