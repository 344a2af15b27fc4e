//! Leader election with several candidates and an observer, in the simulated network. Each of them
//! has a coordinator of its own, as if it ran in a process of its own.

#[path = "../support/asked.rs"]
mod asked;
mod caller;
mod checker;
mod deaths;
mod line;
mod orders;
mod random;
mod world;

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeSettings, Settings};
use redlatch::testing::net::{Endpoint, Net};
use redlatch::{CampaignId, Candidate, NodeId, Standing};

const KEY: &[u8] = b"scheduler";
const TTL: Duration = Duration::from_secs(2);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A client with a connection to each master.
struct Client {
    core: Coordinator,
    /// For each master, whether nothing reaches it which this client writes.
    cut_off: Vec<bool>,
    /// How many commands the client has sent.
    commands: usize,
}

impl Endpoint for Client {
    fn poll_action(&mut self) -> Option<Action> {
        self.core.poll_action()
    }

    fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.core.handle_connected(node, now);
    }

    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.core.handle_disconnected(node, words, now);
    }

    fn output(&self, node: NodeId) -> &[u8] {
        if self.cut_off[node.index()] { &[] } else { self.core.output(node) }
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        let lines = self.core.output(node)[..count].split(|&byte| byte == b'\n');
        self.commands += lines.filter(|line| line.starts_with(b"*")).count();
        self.core.handle_sent(node, count, now);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        Endpoint::handle_bytes(&mut self.core, node, bytes, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        Endpoint::has_news(&self.core)
    }
}

fn settings(masters: usize) -> Settings {
    let nodes = (0..masters).map(|node| NodeSettings::new(format!("n{node}"))).collect();
    let mut settings = Settings::new(nodes);
    (settings.max_ttl, settings.node_timeout) = (TTL, NODE_TIMEOUT);
    settings
}

/// Masters without clients.
fn net(masters: usize, seed: u64) -> Net<Client> {
    let mut net = Net::new(masters, seed);
    net.set_latency(millis(1)..=millis(3));
    net
}

/// Adds a client, and returns its number.
fn add_client(net: &mut Net<Client>, settings: Settings) -> usize {
    let mut seed = [0; 32];
    seed[0] = net.clients() as u8 + 1;
    seed[1..9].copy_from_slice(&net.now().as_nanos().to_le_bytes());
    let core = Coordinator::new(settings, seed, net.now()).expect("the settings are good");
    let cut_off = vec![false; net.nodes()];
    net.add(Client { core, cut_off, commands: 0 })
}

fn campaign(net: &mut Net<Client>, client: usize, candidate: Candidate) -> CampaignId {
    let (now, ttl) = (net.now(), net.get_client(client).core.settings().max_ttl);
    let core = &mut net.client_mut(client).core;
    core.campaign(KEY, candidate, ttl, 0, now).expect("the candidate is good")
}

/// A turn of the client's driver, without the standings.
fn drive(net: &mut Net<Client>, client: usize) {
    let now = net.now();
    let core = &mut net.client_mut(client).core;
    while core.poll_completion(now).is_some() {}
    while core.poll_lock_update().is_some() {}
    core.handle_timeout(now);
}

/// A turn of the client's driver; what it reports of campaigns.
fn turn(net: &mut Net<Client>, client: usize) -> Vec<(CampaignId, Standing)> {
    drive(net, client);
    let now = net.now();
    let core = &mut net.client_mut(client).core;
    let changes = std::iter::from_fn(|| core.poll_standing(now));
    changes.map(|change| (change.campaign, change.standing)).collect()
}
