//! Clients with different lists of masters, in the simulated network. Each test plays what would
//! give a key two holders, or would keep a client from its own masters.

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeSettings, NodeState, Settings};
use redlatch::testing::master::{Restart, Trouble};
use redlatch::testing::net::{Endpoint, Net};
use redlatch::{Error, LockOptions, NodeError, NodeId, NodeReply, Outcome, Report};

const TTL: Duration = Duration::from_secs(10);
const KEY: &[u8] = b"k";
const MEMBERS: &[u8] = b"redlatch:members";

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client of some of the masters of the network: its node `n` is the master `masters[n]`.
struct Client {
    core: Coordinator,
    masters: Vec<usize>,
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
        self.own(master).map_or(&[], |node| self.core.output(node))
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
    let addresses: Vec<_> = masters.iter().map(|it| format!("10.0.0.{it}:6379")).collect();
    client_with(net, masters, settings_for(&addresses))
}

fn client_with(net: &mut Net<Client>, masters: &[usize], settings: Settings) -> usize {
    let seed = [net.clients() as u8 + 1; 32];
    let core = Coordinator::new(settings, seed, net.now()).expect("the settings are good");
    net.add(Client { core, masters: masters.to_vec() })
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

/// Whether a list that all members had stands on this master.
fn has_list(net: &Net<Client>, master: usize) -> bool {
    let value = net.master(master).get(net.now(), 0, MEMBERS).unwrap_or_default();
    String::from_utf8_lossy(value).contains(" agreed ")
}

fn counts(net: &Net<Client>, client: usize, node: usize) -> bool {
    let state = net.get_client(client).core.node_state(NodeId::new(node));
    matches!(state, NodeState::Ready | NodeState::Quarantined(_))
}

/// How many of two clients, which begin within 4 ms of each other, hold the key.
fn holders(lists: [&[usize]; 2], seed: u64, check: bool) -> usize {
    let mut net = Net::new(5, seed);
    net.set_latency(Duration::from_micros(100)..=millis(3));
    let begin = |net: &mut Net<Client>, masters: &[usize]| {
        let addresses: Vec<_> = masters.iter().map(|it| format!("10.0.0.{it}:6379")).collect();
        let mut settings = settings_for(&addresses);
        settings.check_members = check;
        let client = client_with(net, masters, settings);
        ask(net, client);
        client
    };
    let first = begin(&mut net, lists[seed as usize % 2]);
    net.pass(Duration::from_micros(seed % 40 * 100));
    let second = begin(&mut net, lists[1 - seed as usize % 2]);
    net.pass(millis(3000));
    let held = |client| matches!(result(&mut net, client), Some(Ok(Outcome::Acquired(_))));
    [first, second].map(held).into_iter().filter(|&held| held).count()
}

/// How many orders of the events are played for each pair of lists.
fn seeds() -> u64 {
    let given = std::env::var("MEMBERS_SEEDS").ok();
    given.map_or(60, |text| text.parse().expect("a number of seeds"))
}

const PAIRS: [[&[usize]; 2]; 6] = [
    [&[0, 1, 2], &[0, 3, 4]],
    [&[0, 1, 2], &[2, 3, 4]],
    [&[0, 1, 2], &[0, 1, 2, 3, 4]],
    [&[0, 1, 2], &[0, 1, 3]],
    [&[0, 1, 2], &[4, 3, 0]],
    [&[0], &[0, 1, 2]],
];

#[test]
fn clients_whose_lists_share_a_node_never_both_hold() {
    for lists in PAIRS {
        let mut held = [0; 3];
        for seed in 0..seeds() {
            held[holders(lists, seed, true)] += 1;
        }
        assert_eq!(held[2], 0, "{lists:?}: two holders");
        assert!(held[1] * 10 > held[0], "{lists:?}: mostly one of them holds, but {held:?}");
    }
    let unchecked = (0..seeds()).filter(|&seed| holders(PAIRS[0], seed, false) == 2).count();
    assert!(unchecked as u64 > seeds() / 4, "orders with two holders without it: {unchecked}");
}

#[test]
fn client_with_another_list_is_refused_and_names_both() {
    for (others, refuses) in
        [(&[0, 3, 4][..], vec![0, 1, 2]), (&[0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4])]
    {
        let mut net = net(5);
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        assert!((0..3).all(|master| has_list(&net, master)));
        let second = client(&mut net, others);
        let report = report(attempt(&mut net, second));
        let refused = refused(&report);
        let nodes: Vec<_> = refused.iter().map(|(node, _)| *node).collect();
        assert!(nodes.iter().all(|node| refuses.contains(node)), "{report}");
        assert!(nodes.len() >= 2, "{report}");
        lock_once(&mut net, first);
    }
}

#[test]
fn client_that_has_one_wrong_node_holds_by_the_others() {
    let mut net = net(4);
    let first = client(&mut net, &[0, 1, 2]);
    lock_once(&mut net, first);
    let second = client(&mut net, &[0, 1, 3]);
    lock_once(&mut net, second);
    assert_eq!([0, 1, 2].map(|node| counts(&net, second, node)), [true, true, false]);
    net.freeze(1);
    let report = report(attempt(&mut net, second));
    assert_eq!(refused(&report).len(), 1, "{report}");
    assert!(refused(&report)[0].1.contains("is not in it"), "{report}");
}

#[test]
fn node_that_was_flushed_gets_its_place_back_from_a_client_that_runs() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    lock_once(&mut net, first);
    net.command(1, &[b"FLUSHALL"]);
    net.pass(millis(100));
    assert!(has_list(&net, 1), "the client that runs wrote it again");
    net.pass(2 * TTL);
    net.freeze(0);
    lock_once(&mut net, first);
}

#[test]
fn node_that_restarts_empty_gets_its_place_back_by_its_address() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    lock_once(&mut net, first);
    net.stop(first);
    net.restart(1, Restart::Empty);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(millis(100));
    assert!(has_list(&net, 1));
    net.pass(2 * TTL);
    net.freeze(0);
    lock_once(&mut net, second);
}

#[test]
fn empty_server_at_a_local_address_does_not_take_a_place() {
    let at_home =
        |third: &str| settings_for(&["10.0.0.0:6379".into(), "10.0.0.1:6379".into(), third.into()]);
    for local in ["127.0.0.1:6379", "localhost:6379", "/run/redis.sock"] {
        let mut net = net(4);
        // Each machine has a server of its own at this address.
        let first = client_with(&mut net, &[0, 1, 2], at_home(local));
        lock_once(&mut net, first);
        let second = client_with(&mut net, &[0, 1, 3], at_home(local));
        net.pass(millis(100));
        assert!(!has_list(&net, 3), "{local}");
        assert!(!counts(&net, second, 2), "{local}");
    }
    let mut net = net(3);
    let all_local: Vec<_> = (0..3).map(|node| format!("127.0.0.1:{node}")).collect();
    let first = client_with(&mut net, &[0, 1, 2], settings_for(&all_local));
    lock_once(&mut net, first);
    net.restart(1, Restart::Empty);
    net.stop(first);
    client_with(&mut net, &[0, 1, 2], settings_for(&all_local));
    net.pass(millis(100));
    assert!(has_list(&net, 1), "where all addresses are local, one is as good as another");
}

#[test]
fn server_with_a_copy_of_another_ones_data_does_not_count() {
    let mut net = net(4);
    let first = client(&mut net, &[0, 1, 2]);
    lock_once(&mut net, first);
    let (dump, now) = (net.master(0).dump(), net.now());
    net.stop(first);
    net.kill(2);
    net.start(2, Restart::Empty);
    net.master_mut(2).restart_from(now, dump);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(2 * TTL);
    let counted = [0, 1, 2].map(|node| counts(&net, second, node));
    assert_eq!(counted.iter().filter(|&&counts| counts).count(), 2, "{counted:?}");
}

#[test]
fn list_waits_for_all_nodes_and_locks_do_not() {
    for frozen in [false, true] {
        let mut net = net(3);
        if frozen {
            net.freeze(2);
        } else {
            net.kill(2);
        }
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        assert!((0..2).all(|master| !has_list(&net, master)), "no list without all nodes");
        if frozen {
            net.thaw(2);
        } else {
            net.start(2, Restart::Empty);
        }
        net.pass(millis(5_000));
        assert!((0..3).all(|master| has_list(&net, master)), "frozen: {frozen}");
        lock_once(&mut net, first);
    }
}

#[test]
fn node_whose_list_may_not_be_read_or_written_counts_unchecked() {
    let reply = b"-NOPERM this user has no permissions\r\n".to_vec();
    let unreadable = Trouble::Answers { commands: vec!["get".into()], reply };
    for trouble in [unreadable, Trouble::OutOfMemory] {
        let mut net = net(3);
        net.master_mut(1).suffer(trouble.clone());
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        assert!(counts(&net, first, 1), "{trouble:?}");
        assert!((0..3).all(|master| !has_list(&net, master)), "{trouble:?}");
    }
}
