//! Clients whose nodes are all ready. `connect` returns when a quorum is ready, and the other nodes
//! may follow later. So on a busy machine a test that goes on at once may have fewer nodes than it
//! expects.

#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(clippy::disallowed_methods, reason = "tests wait for real sockets, on a real clock")]

use std::time::{Duration, Instant};

use redlatch::{Client, Config, NodeState, SharedClient};

/// How long connecting to servers that run may take.
const CONNECTED: Duration = Duration::from_secs(30);

/// How long a wait sleeps between two looks at the states of the nodes.
const LOOK: Duration = Duration::from_millis(1);

/// A blocking client with all nodes ready.
#[track_caller]
pub fn client(config: Config) -> Client {
    let nodes = config.get_settings().nodes.len();
    let client = Client::connect(config).expect("a good configuration");
    wait_ready(&client, nodes);
    client
}

/// A blocking client that ended the quarantine of every node by vouching. A client vouches only for
/// nodes that it may ask, so this waits until all are connected.
#[track_caller]
pub fn vouched(config: Config) -> Client {
    let client = Client::connect(config).expect("a good configuration");
    let start = Instant::now();
    while !client.nodes().into_iter().all(NodeState::is_usable) {
        client.drive(LOOK).expect("the poller works");
        assert!(start.elapsed() < CONNECTED, "not all are connected: {:?}", client.nodes());
    }
    client.vouch().expect("the nodes take it");
    client
}

/// Drives the client until `nodes` of its nodes are ready, and returns how long that took.
#[track_caller]
pub fn wait_ready(client: &Client, nodes: usize) -> Duration {
    drive_until(client, CONNECTED, "the nodes are ready", || count(&client.nodes()) == nodes)
}

/// Drives the client until `holds` is true, and returns how long that took.
#[track_caller]
pub fn drive_until(
    client: &Client,
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    loop {
        client.drive(LOOK).expect("the poller works");
        let waited = start.elapsed();
        if holds() {
            return waited;
        }
        assert!(waited < limit, "waited {waited:?} in vain: {what}: {:?}", client.nodes());
    }
}

/// A shared client with a driver thread and all nodes ready.
#[track_caller]
pub fn shared(config: Config) -> SharedClient {
    let client = SharedClient::connect_blocking(config).expect("a good configuration");
    wait_all_ready(&client);
    client
}

/// Waits until all nodes are ready. If the caller's own runtime drives the client, see
/// [`all_ready`].
#[track_caller]
pub fn wait_all_ready(client: &SharedClient) {
    let start = Instant::now();
    while !is_all_ready(client) {
        std::thread::sleep(LOOK);
        assert!(start.elapsed() < CONNECTED, "not all are ready: {:?}", client.nodes());
    }
}

/// As [`wait_all_ready`], for a client that this runtime drives.
#[cfg(feature = "tokio")]
pub async fn all_ready(client: &SharedClient) {
    let start = Instant::now();
    while !is_all_ready(client) {
        tokio::time::sleep(LOOK).await;
        assert!(start.elapsed() < CONNECTED, "not all are ready: {:?}", client.nodes());
    }
}

fn is_all_ready(client: &SharedClient) -> bool {
    let states = client.nodes();
    count(&states) == states.len()
}

fn count(states: &[NodeState]) -> usize {
    states.iter().filter(|&&it| it == NodeState::Ready).count()
}
