//! What servers answer in every state that a test can bring them to. If a minority is in such a
//! state, no call suffers; if a majority is, the error names each of these nodes and its reason.

use super::*;
use crate::support::{RespClient, Value};
use redlatch::{Error, LockOptions, NodeError, ReleaseOutcome};

/// A state in which a server cannot serve locks.
pub(super) struct Trouble {
    pub cause: NodeError,
    pub provoke: fn(&Node),
    pub heal: fn(&Node),
    /// Whether clients that were connected before notice the state, too.
    pub meets_the_connected: bool,
}

impl Trouble {
    /// As `show_on`, on nodes of its own.
    pub fn show(&self) {
        let fleet = Fleet::start(3);
        self.show_on(&fleet, &fleet.urls());
    }

    /// Provokes the state on one node of three, then on a second, and checks clients that connected
    /// before the first, between the two, and after the second.
    pub fn show_on(&self, fleet: &Fleet, urls: &[String]) {
        assert_eq!(fleet.len(), 3);
        let before = client(config(urls));
        (self.provoke)(&fleet[0]);
        let between = Client::connect(config(urls)).unwrap();
        drive_until(&between, 30 * SECOND, "the healthy nodes are ready", || {
            between.nodes()[1..].iter().all(|&state| state == NodeState::Ready)
        });
        self.assert_calls_succeed(&before, "connected before");
        self.assert_calls_succeed(&between, "connected to two");
        (self.provoke)(&fleet[1]);
        let after = Client::connect(config(urls)).unwrap();
        if self.meets_the_connected {
            self.assert_is_named(&before, fleet);
        } else {
            self.assert_calls_succeed(&before, "connected before, and it does not matter");
        }
        self.assert_is_named(&after, fleet);
        (self.heal)(&fleet[0]);
        (self.heal)(&fleet[1]);
        for client in [&before, &between, &after] {
            let took = wait_ready(client, 3);
            let guard = client.try_lock("healed", TTL).unwrap();
            assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
            println!("{}: healed, all ready after {took:?}", self.cause);
        }
        wait_until_nothing_is_left(&[&before, &between, &after], fleet);
    }

    pub fn assert_calls_succeed(&self, client: &Client, who: &str) {
        let start = Instant::now();
        let mut guard = client.try_lock("a", TTL).unwrap_or_else(|e| panic!("{who}: {e}"));
        let acquired = start.elapsed();
        guard.extend(TTL).unwrap_or_else(|e| panic!("{who}: {e}"));
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released, "{who}");
        let took = start.elapsed();
        println!("{}, {who}: acquired in {acquired:?}, all in {took:?}", self.cause);
        assert!(took < NODE_TIMEOUT / 2, "{who}: {took:?}");
    }

    /// Two of three nodes are in the state: the error names both with the cause, at once or when
    /// the wait is over.
    pub fn assert_is_named(&self, client: &Client, fleet: &Fleet) {
        // A lasting cause ends the request at once, so the test may allow a long wait.
        let wait = if self.cause.is_permanent() { 30 * SECOND } else { millis(300) };
        let start = Instant::now();
        let error = client.lock("a", LockOptions::new(TTL).wait(wait)).unwrap_err();
        let took = start.elapsed();
        println!("{error} (after {took:?})");
        let text = error.to_string();
        for node in [&fleet[0], &fleet[1]] {
            let line = format!("127.0.0.1:{} {}", node.port(), self.cause);
            assert!(text.contains(&line), "{text}");
        }
        if self.cause.is_permanent() {
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(took < wait / 2, "an error of configuration was retried: {took:?}");
        } else {
            assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
            assert!(took >= wait && took < 2 * NODE_TIMEOUT, "{took:?}");
        }
    }
}

pub(super) fn wait_until_nothing_is_left(clients: &[&Client], fleet: &Fleet) {
    for key in ["a", "healed"] {
        eventually(2 * NODE_TIMEOUT, "no key is left", || {
            clients.iter().for_each(|client| client.drive(millis(1)).expect("the poller works"));
            fleet.values(key).is_empty()
        });
    }
}

#[track_caller]
pub(super) fn set(node: &Node, name: &str, value: &str) {
    let reply = node.command(&["CONFIG", "SET", name, value]);
    assert!(reply.is_ok(), "CONFIG SET {name} {value}: {reply:?}");
}

#[test]
fn missing_password_is_named_in_the_error() {
    Trouble {
        cause: NodeError::NoAuth,
        provoke: |node| set(node, "requirepass", "opensesame"),
        heal: |node| set(node, "requirepass", ""),
        meets_the_connected: false,
    }
    .show();
}

#[test]
fn wrong_password_is_named_in_the_error_once_a_server_has_one() {
    let fleet = Fleet::start(3);
    let urls = fleet.iter().map(|node| format!("redis://:guess@127.0.0.1:{}", node.port()));
    // As long as the server has no password, it accepts any.
    let trouble = Trouble {
        cause: NodeError::WrongPassword,
        provoke: |node| set(node, "requirepass", "opensesame"),
        heal: |node| set(node, "requirepass", ""),
        meets_the_connected: false,
    };
    trouble.show_on(&fleet, &urls.collect::<Vec<_>>());
}

#[test]
fn full_memory_is_named_in_the_error() {
    Trouble {
        cause: NodeError::OutOfMemory,
        provoke: |node| set(node, "maxmemory", "1"),
        heal: |node| set(node, "maxmemory", "0"),
        meets_the_connected: true,
    }
    .show();
}

#[test]
fn too_few_replicas_are_named_in_the_error() {
    Trouble {
        cause: NodeError::NoReplicas,
        provoke: |node| set(node, "min-replicas-to-write", "1"),
        heal: |node| set(node, "min-replicas-to-write", "0"),
        meets_the_connected: true,
    }
    .show();
}

#[test]
fn failed_save_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Misconf,
        provoke: cannot_save,
        heal: |node| set(node, "stop-writes-on-bgsave-error", "no"),
        meets_the_connected: true,
    }
    .show();
}

/// Root may write everywhere, but not even root can rename a file over a directory.
fn cannot_save(node: &Node) {
    let directory = node.command(&["CONFIG", "GET", "dir"]).text_items().remove(1);
    std::fs::create_dir(std::path::Path::new(&directory).join("dump.rdb")).expect("a new name");
    set(node, "save", "3600 1");
    set(node, "stop-writes-on-bgsave-error", "yes");
    let started = node.command(&["BGSAVE"]);
    assert!(matches!(started, Value::Simple(_)), "{started:?}");
    eventually(SOON, "the save has failed", || node.info("rdb_last_bgsave_status") == "err");
}

#[test]
fn replica_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Replica,
        provoke: becomes_a_replica,
        heal: |node| assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok()),
        meets_the_connected: true,
    }
    .show();
}

#[test]
fn replica_without_stale_data_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Replica,
        provoke: |node| {
            set(node, "replica-serve-stale-data", "no");
            becomes_a_replica(node);
        },
        heal: |node| assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok()),
        meets_the_connected: true,
    }
    .show();
}

/// Makes the node a replica of a master that is not there, so that the node keeps its data.
fn becomes_a_replica(node: &Node) {
    assert!(node.command(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
}

#[test]
fn node_that_may_evict_is_named_in_the_error() {
    let fleet = Fleet::start(3);
    Trouble {
        cause: NodeError::Evicts,
        provoke: |node| {
            set(node, "maxmemory-policy", "allkeys-lru");
            set(node, "maxmemory", "100mb");
        },
        heal: |node| set(node, "maxmemory-policy", "noeviction"),
        meets_the_connected: false,
    }
    .show_on(&fleet, &fleet.urls());
    set(&fleet[0], "maxmemory-policy", "volatile-ttl");
    let allowed = client(config(fleet.urls()).allow_eviction(true));
    assert!(allowed.try_lock("a", TTL).is_ok());
}

#[test]
fn client_limit_is_named_in_the_error() {
    Trouble {
        cause: NodeError::TooManyClients,
        provoke: |node| set(node, "maxclients", "1"),
        heal: |node| set(node, "maxclients", "1000"),
        meets_the_connected: false,
    }
    .show();
}

#[test]
fn endless_script_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Busy,
        provoke: |node| drop(endless_script(node)),
        heal: end_script,
        meets_the_connected: true,
    }
    .show();
}

/// Runs an endless script on the node, and returns once the node answers that it is busy. SCRIPT
/// KILL ends the script.
pub(super) fn endless_script(node: &Node) -> RespClient {
    set(node, "lua-time-limit", "50");
    let mut other = node.client();
    other.send(&["EVAL", "while true do end", "0"]).expect("a running server reads");
    eventually(
        SOON,
        "the server is busy",
        || matches!(node.command(&["PING"]), Value::Error(text) if text.starts_with("BUSY")),
    );
    other
}

/// Ends the script, and returns once the server executes commands again.
pub(super) fn end_script(node: &Node) {
    assert!(node.command(&["SCRIPT", "KILL"]).is_ok());
    eventually(SOON, "the script has ended", || {
        matches!(node.command(&["PING"]), Value::Simple(_))
    });
}

#[test]
fn cluster_mode_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Cluster,
        provoke: |node| {
            // The cluster bus needs a free port. The usual one, next to the node's own, may belong
            // to another server.
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
            let port = free.local_addr().expect("a bound socket has an address").port();
            drop(free);
            node.restart_with(&["--cluster-enabled", "yes", "--cluster-port", &port.to_string()]);
        },
        heal: Node::restart,
        meets_the_connected: true,
    }
    .show();
}

#[test]
fn loading_node_is_named_in_the_error() {
    Trouble {
        cause: NodeError::Loading,
        provoke: |node| loads_for(node, 20 * SECOND),
        heal: Node::restart,
        meets_the_connected: true,
    }
    .show();
}

#[test]
fn wait_goes_on_while_two_of_three_nodes_load_their_data() {
    despite_stalls(SECOND, |_| lock_waits_for_two_that_load());
}

fn lock_waits_for_two_that_load() {
    let fleet = Fleet::start(3);
    let before = client(config(fleet.urls()));
    loads_for(&fleet[0], 3 * SECOND);
    loads_for(&fleet[1], 3 * SECOND);
    let start = Instant::now();
    let after = Client::connect(config(fleet.urls())).unwrap();
    for client in [&before, &after] {
        // The client that was connected before has lost its connections, and connects to the new
        // processes.
        client.drive(millis(200)).unwrap();
        let error = client.try_lock("a", TTL).unwrap_err();
        println!("{error} (after {:?})", start.elapsed());
        assert!(matches!(error, Error::NoQuorum(_)), "{error}");
        assert!(error.to_string().contains("is loading its data"), "{error}");
    }
    assert_eq!(fleet[0].info("loading"), "1");
    let guard = after.lock("a", LockOptions::new(TTL).wait(10 * SECOND)).unwrap();
    println!("two of three load for 3 s: held after {:?}", start.elapsed());
    assert!(start.elapsed() > SECOND, "they had loaded before it was asked for");
    // The lock needed only one of the two to have loaded; the other may still be loading, and then
    // the test cannot read its keys.
    eventually(10 * SECOND, "both have loaded", || {
        (0..2).all(|node| fleet[node].info("loading") == "0")
    });
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    wait_until_nothing_is_left(&[&before, &after], &fleet);
}

/// Restarts the node with a large file to load, and so slowly that loading takes `time`.
fn loads_for(node: &Node, time: Duration) {
    let keys = time.as_millis().to_string();
    assert!(node.command(&["DEBUG", "POPULATE", &keys]).is_ok());
    assert!(node.command(&["SAVE"]).is_ok());
    // The server takes a millisecond for each key, and looks at its sockets after every few dozen
    // keys.
    let slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    node.restart_with(&slowly);
}

#[test]
fn paused_writes_make_a_node_silent_until_they_go_on() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    let pause = |node: &Node, millis| {
        assert!(node.command(&["CLIENT", "PAUSE", millis, "WRITE"]).is_ok());
    };
    pause(&fleet[0], "60000");
    let start = Instant::now();
    let guard = client.try_lock("a", TTL).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    println!("one of three paused: acquired and released in {:?}", start.elapsed());
    assert!(start.elapsed() < NODE_TIMEOUT / 2);
    drop(client);
    assert!(fleet[0].command(&["CLIENT", "UNPAUSE"]).is_ok());

    let client = ready::client(config(fleet.urls()).node_timeout(millis(500)));
    let start = Instant::now();
    pause(&fleet[0], "3000");
    pause(&fleet[1], "3000");
    let error = client.try_lock("a", 60 * SECOND).unwrap_err();
    println!("{error} (after {:?})", start.elapsed());
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    for node in [&fleet[0], &fleet[1]] {
        let line = format!("127.0.0.1:{} {}", node.port(), NodeError::Silent);
        assert!(error.to_string().contains(&line), "{error}");
    }
    let guard = client.lock("a", LockOptions::new(60 * SECOND).wait(60 * SECOND)).unwrap();
    println!("two of three paused for 3 s: held after {:?}", start.elapsed());
    assert!(start.elapsed() >= 2 * SECOND, "it was not paused");
    let token = guard.token().to_string().into_bytes();
    assert!(fleet.values("a").iter().all(|held| *held == token), "an attempt outlived itself");
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    wait_until_nothing_is_left(&[&client], &fleet);
}

#[test]
fn key_that_is_a_list_is_held_by_another_program() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    for node in [&fleet[0], &fleet[1]] {
        node.command(&["RPUSH", "a", "x"]);
    }
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::Contended(_)), "{error}");
    let guard = client.try_lock("b", TTL).unwrap();
    let mut extended = client.try_lock("c", TTL).unwrap();
    for node in &fleet {
        node.command(&["DEL", "b", "c"]);
        node.command(&["RPUSH", "b", "x"]);
        node.command(&["RPUSH", "c", "x"]);
    }
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::TakenByOther);
    let error = extended.extend(TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    drop(extended);
    client.drive(millis(50)).unwrap();
    let lengths = |key| fleet.iter().map(|node| node.command(&["LLEN", key]).int()).sum::<i64>();
    assert_eq!((lengths("a"), lengths("b"), lengths("c")), (2, 3, 3), "another's key is untouched");
}

#[test]
fn a_lock_that_is_held_when_memory_runs_out_is_extended_and_released() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    let mut guard = client.try_lock("a", TTL).unwrap();
    fleet.iter().for_each(|node| set(node, "maxmemory", "1"));
    guard.extend(2 * TTL).unwrap();
    assert!(guard.remaining() > TTL);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    wait_until_nothing_is_left(&[&client], &fleet);
}

#[test]
fn a_lock_that_is_held_when_the_nodes_refuse_writes_is_released_when_they_take_them_again() {
    type Change = fn(&Node);
    let fleet = Fleet::start(3);
    let refusals: [(&str, Change, Change); 3] = [
        (
            "NOREPLICAS",
            |node| set(node, "min-replicas-to-write", "1"),
            |node| set(node, "min-replicas-to-write", "0"),
        ),
        ("MISCONF", cannot_save, |node| set(node, "stop-writes-on-bgsave-error", "no")),
        ("READONLY", becomes_a_replica, |node| {
            assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
        }),
    ];
    let client = client(config(fleet.urls()).node_timeout(millis(300)));
    for (name, refuse, accept) in refusals {
        wait_ready(&client, 3);
        // `lock` waits and tries again, because a node that the machine stalls misses so short a
        // timeout.
        let guard = client.lock("a", 60 * SECOND).unwrap();
        drive_until(&client, SOON, "all have it", || fleet.values("a").len() == 3);
        [&fleet[0], &fleet[1]].into_iter().for_each(refuse);
        let released = guard.release().unwrap();
        println!("{name}: release: {released:?}");
        assert!(matches!(released, ReleaseOutcome::Unconfirmed { .. }), "{name}: {released:?}");
        drive_until(&client, SOON, "the third lets go", || fleet.values("a").len() < 3);
        client.drive(millis(300)).unwrap();
        assert_eq!(fleet.values("a").len(), 2, "{name}: the others cannot let go");
        [&fleet[0], &fleet[1]].into_iter().for_each(accept);
        let took = drive_until(&client, SOON, "all are paid", || fleet.values("a").is_empty());
        println!("{name}: healed, the last key is gone after {took:?}");
    }
}
