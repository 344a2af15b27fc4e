//! Clients that check their lists of masters, in the simulated network. The tests play what would
//! give a key two holders, or would keep a client from its own masters.

#[path = "../support/asked.rs"]
mod asked;
mod changes;
mod lists;
mod orders;
mod random_changes;
mod steps;
mod tool;

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeSettings, NodeState, Settings};
use redlatch::testing::net::{Endpoint, Net};
use redlatch::{Error, LockOptions, NodeError, NodeId, NodeReply, Outcome, Report};

const TTL: Duration = Duration::from_secs(10);
/// How long a step has to be known before the next one may begin.
const WAIT: Duration = Duration::from_secs(10 + 1 + 15);
const KEY: &[u8] = b"k";
const MEMBERS: &[u8] = b"redlatch:members";

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client of some of the masters of the network: its node `n` is the master `masters[n]`.
struct Client {
    core: Coordinator,
    masters: Vec<usize>,
    /// The masters that nothing reaches which this client writes.
    cut_off: Vec<usize>,
}

impl Client {
    fn own(&self, master: NodeId) -> Option<NodeId> {
        self.masters.iter().position(|&it| it == master.index()).map(NodeId::new)
    }
}

impl Endpoint for Client {
    fn poll_action(&mut self) -> Option<Action> {
        let master = |node: NodeId| NodeId::new(self.masters[node.index()]);
        Some(match self.core.poll_action()? {
            Action::Connect(node) => Action::Connect(master(node)),
            Action::Disconnect(node) => Action::Disconnect(master(node)),
        })
    }

    fn handle_connected(&mut self, master: NodeId, now: Instant) {
        if let Some(node) = self.own(master) {
            self.core.handle_connected(node, now);
        }
    }

    fn handle_disconnected(&mut self, master: NodeId, words: &str, now: Instant) {
        if let Some(node) = self.own(master) {
            self.core.handle_disconnected(node, words, now);
        }
    }

    fn output(&self, master: NodeId) -> &[u8] {
        let node = self.own(master).filter(|_| !self.cut_off.contains(&master.index()));
        node.map_or(&[], |node| self.core.output(node))
    }

    fn handle_sent(&mut self, master: NodeId, count: usize, now: Instant) {
        if let Some(node) = self.own(master) {
            self.core.handle_sent(node, count, now);
        }
    }

    fn handle_bytes(&mut self, master: NodeId, bytes: &[u8], now: Instant) {
        if let Some(node) = self.own(master) {
            Endpoint::handle_bytes(&mut self.core, node, bytes, now);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        self.core.has_completions() || self.core.has_lock_updates()
    }
}

fn settings_for(addresses: &[String]) -> Settings {
    let nodes = addresses.iter().map(|address| NodeSettings::new(address.as_str())).collect();
    let mut settings = Settings::new(nodes);
    (settings.check_members, settings.max_ttl) = (true, TTL);
    settings
}

/// Adds a client of these masters, which has each at the address `10.0.0.MASTER:6379`.
fn client(net: &mut Net<Client>, masters: &[usize]) -> usize {
    client_with(net, masters, settings_of(masters))
}

fn client_with(net: &mut Net<Client>, masters: &[usize], settings: Settings) -> usize {
    let seed = [(net.clients() + 1) as u8; 32];
    let core = Coordinator::new(settings, seed, net.now()).expect("the settings are good");
    net.add(Client { core, masters: masters.to_vec(), cut_off: Vec::new() })
}

fn net(masters: usize) -> Net<Client> {
    let mut net = Net::new(masters, 1);
    net.set_latency(millis(1)..=millis(1));
    net
}

fn ask(net: &mut Net<Client>, client: usize) {
    let (now, options) = (net.now(), LockOptions::once(TTL));
    net.client_mut(client).core.acquire(KEY, options, 0, now).expect("it can be asked for");
}

fn result(net: &mut Net<Client>, client: usize) -> Option<Result<Outcome, Error>> {
    let now = net.now();
    net.client_mut(client).core.poll_completion(now).map(|done| done.result)
}

/// What becomes of one request of this client.
#[track_caller]
fn attempt(net: &mut Net<Client>, client: usize) -> Result<Outcome, Error> {
    ask(net, client);
    net.pass(millis(3000));
    result(net, client).expect("the request has ended")
}

/// Takes the lock and gives it back.
#[track_caller]
fn lock_once(net: &mut Net<Client>, client: usize) {
    match attempt(net, client) {
        Ok(Outcome::Acquired(lock)) => {
            let now = net.now();
            net.client_mut(client).core.release(lock, 0, now);
            net.pass(millis(100));
            assert!(matches!(result(net, client), Some(Ok(Outcome::Released(_)))));
        }
        other => panic!("{other:?}"),
    }
}

/// Masters, the first three of which have agreed on their list, and a client of those three.
#[track_caller]
fn net_with_list(masters: usize) -> (Net<Client>, usize) {
    let mut net = net(masters);
    let first = client(&mut net, &[0, 1, 2]);
    lock_once(&mut net, first);
    (net, first)
}

#[track_caller]
fn report(result: Result<Outcome, Error>) -> Report {
    let error = result.expect_err("too few nodes count");
    error.report().expect("it is about nodes").clone()
}

/// The nodes that the client refused for their list, and why.
fn refused(report: &Report) -> Vec<(usize, String)> {
    let is_it = |reply| reply == NodeReply::Failed(NodeError::OtherList);
    let nodes = report.nodes.iter().enumerate().filter(|(_, node)| is_it(node.reply));
    nodes.map(|(at, node)| (at, node.detail.as_deref().unwrap_or("").to_owned())).collect()
}

/// Whether this master has a list that all its members had.
fn has_list(net: &Net<Client>, master: usize) -> bool {
    let value = net.master(master).get(net.now(), 0, MEMBERS).unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    [" agreed ", " told ", " returned "].iter().any(|stage| value.contains(stage))
}

fn counts(net: &Net<Client>, client: usize, node: usize) -> bool {
    let state = net.get_client(client).core.node_state(NodeId::new(node));
    matches!(state, NodeState::Ready | NodeState::Quarantined(_))
}

/// What a master has as its list.
fn value(net: &Net<Client>, master: usize) -> String {
    let value = net.master(master).get(net.now(), 0, MEMBERS).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

/// Lets time pass in small steps until this holds.
fn pass_until(net: &mut Net<Client>, is_it: impl Fn(&Net<Client>) -> bool) {
    for _ in 0..100_000 {
        if is_it(net) {
            return;
        }
        net.pass(Duration::from_micros(50));
    }
    panic!("it never holds");
}

/// For each node of a client, whether it counts.
fn counted(net: &Net<Client>, client: usize, nodes: usize) -> Vec<bool> {
    (0..nodes).map(|node| counts(net, client, node)).collect()
}

/// Whether the last request of the client got the lock.
fn holds(net: &mut Net<Client>, client: usize) -> bool {
    matches!(result(net, client), Some(Ok(Outcome::Acquired(_))))
}

/// Settings with each of these masters at the address `10.0.0.MASTER:6379`.
fn settings_of(masters: &[usize]) -> Settings {
    let addresses: Vec<_> = masters.iter().map(|it| format!("10.0.0.{it}:6379")).collect();
    settings_for(&addresses)
}
