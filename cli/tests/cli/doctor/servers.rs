//! Servers that are not independent masters, that lose their keys, or that have just been started.

use super::*;
use crate::support::Value as Reply;

#[track_caller]
fn tell(node: &Node, words: &[&str]) {
    let reply = node.command(words);
    assert!(matches!(reply, Reply::Simple(_)), "{words:?}: {reply:?}");
}

/// Restarts a node with data that it needs many seconds to load. It reads its sockets several times
/// a second meanwhile.
#[track_caller]
fn load_slowly(node: &Node) {
    if is_old() {
        // An old server reads its sockets after every 2 MB, which cannot be changed. So it gets
        // much more data than 2 MB, and a delay of 20 ms for each key.
        tell(node, &["CONFIG", "SET", "rdbcompression", "no"]);
        tell(node, &["DEBUG", "POPULATE", "500", "key", "200000"]);
        tell(node, &["SAVE"]);
        return node.restart_with(&["--key-load-delay", "20000"]);
    }
    tell(node, &["DEBUG", "POPULATE", "20000"]);
    tell(node, &["SAVE"]);
    let often = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    node.restart_with(&often);
}

#[test]
fn doctor_finds_servers_that_are_no_independent_masters() {
    let fleet = Fleet::start(7);
    let [master, replica, promoted, cluster, loading, evicts, could] =
        std::array::from_fn(|index| &fleet[index]);
    let port = master.port().to_string();
    assert!(master.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).is_ok());
    let follow = |node: &Node| {
        tell(node, &["REPLICAOF", "127.0.0.1", &port]);
        eventually(20 * SECOND, "it follows", || node.info("master_link_status") == "up");
    };
    [replica, promoted].into_iter().for_each(follow);
    tell(promoted, &["REPLICAOF", "NO", "ONE"]);
    let bus = support::free_port().to_string();
    let mut clustered = vec!["--cluster-enabled", "yes"];
    // Up to Redis 6 the cluster port is always 10,000 above the other port. A connection of another
    // test may use that port for a while, so this waits until it is free.
    if is_old() {
        let bus = ("127.0.0.1", cluster.port() + 10_000);
        let is_free = || std::net::TcpListener::bind(bus).is_ok();
        eventually(60 * SECOND, "the cluster port is free", is_free);
    } else {
        clustered.extend(["--cluster-port", &bus]);
    }
    cluster.restart_with(&clustered);
    tell(evicts, &["CONFIG", "SET", "maxmemory", "100mb"]);
    for node in [evicts, could] {
        tell(node, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    }
    load_slowly(loading);
    eventually(10 * SECOND, "its replica is connected", || master.info("connected_slaves") == "1");

    let mut diagnosis = ask(&fleet.urls(), &TRUSTING);
    // On a busy machine the quarantine of 100 ms may be over before the node is examined, so this
    // tries three times. Up to Redis 6 the loading server answers so late that it is always over.
    for _ in 0..if is_old() { 0 } else { 3 } {
        if diagnosis.words(Some(&label(promoted)), "role").0 != "ok" {
            break;
        }
        follow(promoted);
        tell(promoted, &["REPLICAOF", "NO", "ONE"]);
        diagnosis = ask(&fleet.urls(), &TRUSTING);
    }
    assert_eq!(diagnosis.code, 1);
    assert_eq!(diagnosis.json["ok"], false);
    diagnosis.is(&label(master), &[("role", "warn", "it has 1 replica: ")]);
    let of_whom = format!("it is a replica of 127.0.0.1:{port}");
    diagnosis.is(&label(replica), &[("role", "fail", &of_whom)]);
    let soon = "was promoted: it may lack locks of its old master; its grants count in ";
    if !is_old() || diagnosis.words(Some(&label(promoted)), "role").0 != "ok" {
        diagnosis.is(&label(promoted), &[("role", "warn", soon)]);
    }
    diagnosis.is(&label(cluster), &[("cluster", "fail", "cluster-enabled no")]);
    diagnosis.is(&label(loading), &[("loading", "fail", "it is loading its data")]);
    let set = "allkeys-lru: it may evict a lock. CONFIG SET maxmemory-policy noeviction";
    diagnosis.is(&label(evicts), &[("eviction", "fail", set)]);
    diagnosis.is(&label(could), &[("eviction", "warn", "no maxmemory yet")]);
    diagnosis.is_together(&[("quorum", "fail", "3 of 7 nodes grant, and 4 are needed")]);
    // When the promoted node's quarantine is over, the node is a master like any other.
    eventually(10 * SECOND, "its promotion is old", || {
        let diagnosis = ask(&[promoted.url()], &TRUSTING);
        diagnosis.words(Some(&label(promoted)), "role").0 == "ok"
    });
    // Without the restart guard a promotion is reported, but only as a warning.
    let diagnosis = ask_plainly(&[promoted.url()]);
    diagnosis.is(&label(promoted), &[("role", "warn", "was promoted")]);
}

#[test]
fn two_addresses_of_one_server_and_an_even_number_of_nodes_are_found() {
    let fleet = Fleet::start(3);
    let again = format!("redis://localhost:{}", fleet[0].port());
    let mut urls = fleet.urls();
    urls.push(again);
    let diagnosis = ask_plainly(&urls);
    assert_eq!(diagnosis.code, 1);
    let (one, other) = (label(&fleet[0]), format!("localhost:{}", fleet[0].port()));
    let run_id = fleet[0].info("run_id");
    let same = format!("{one} and {other} are one server (run_id {run_id})");
    // The server with two addresses has one vote: three votes of four are enough.
    diagnosis.is_together(&[
        ("node-count", "warn", "4 nodes tolerate as few failures as 3: 1"),
        ("distinct", "fail", &same),
    ]);
    // The two addresses are reported in one finding, and neither has others.
    for label in [one, other] {
        diagnosis.is(&label, &[]);
    }
    fleet.wait_empty();
    let diagnosis = ask_plainly(&urls[..1]);
    let note = "1 node: while it is away no lock is granted. Next step: three masters";
    diagnosis.is_together(&[("node-count", "note", note)]);
}

#[test]
fn a_young_node_is_reported_with_the_time_when_it_counts() {
    let fleet = Fleet::start(3);
    let guarded = ask(&fleet.urls(), &["--node-timeout", "5s"]);
    assert_eq!(guarded.code, 1);
    guarded.is_together(&[("quorum", "fail", "0 of 3 nodes grant yet, and 2 are needed: locks")]);
    for node in &fleet {
        let label = label(node);
        let (level, words) = guarded.words(Some(&label), "age");
        println!("{words}");
        assert_eq!(level, "warn");
        assert!(words.contains("its grants count in ") && words.contains("up "), "{words}");
        let (level, words) = guarded.words(Some(&label), "persistence");
        assert_eq!((level.as_str(), words.contains("only the restart guard")), ("warn", true));
    }
    fleet.command(&["CONFIG", "SET", "appendonly", "yes"]);
    tell(&fleet[0], &["CONFIG", "SET", "appendonly", "no"]);
    let unguarded = ask_plainly(&fleet.urls());
    let label = label(&fleet[0]);
    assert_eq!(unguarded.words(Some(&label), "age").0, "warn");
    let (level, words) = unguarded.words(Some(&label), "persistence");
    assert_eq!((level.as_str(), words.contains("the restart guard is off")), ("fail", true));
    let (level, words) = unguarded.words(Some(&fleet[1].address().to_string()), "persistence");
    assert_eq!((level.as_str(), words.contains("appendfsync everysec")), ("warn", true));
    unguarded.is_together(&[]);
}
