//! A master that is started from a copy of another master's dump: it has the other one's keys and
//! tokens instead of its own.

use super::*;
use redlatch::{Error, Guard};

/// The longest ttl here. A quarantine lasts for this time and the drift: longer than a test.
const MAX_TTL: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);

fn guarded(urls: Vec<String>) -> Config {
    config(urls).max_ttl(MAX_TTL).restart_guard(RestartGuard::On).node_timeout(millis(200))
}

/// A request of the rival, which uses another library. Returns whether it was granted.
fn set_of_rival(node: &Node) -> bool {
    let ttl = MAX_TTL.as_millis().to_string();
    node.command(&["SET", "a", "rival", "NX", "PX", &ttl]).is_ok()
}

/// Kills `node`, and starts it again from the dump of `source`.
fn restore_from(node: &Node, source: &Node) {
    assert!(source.command(&["SAVE"]).is_ok());
    let dump = |node: &Node| node.directory().join("dump.rdb");
    std::fs::copy(dump(source), dump(node)).expect("the dump is there");
    node.restart();
}

/// Extends the lock by the nodes that answer, until `holds` is true.
fn extend_until(guard: &mut Guard<'_>, ttl: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    eventually(20 * SECOND, what, || {
        guard.extend(ttl).expect("two nodes have the key");
        holds()
    });
}

/// The holder has its key on all nodes. It is cut off from node 2 until its key has expired there,
/// and node 2 grants the key to a rival. Then node 2 restarts from a copy of node 1's dump, so it
/// has the holder's token again. Node 0 is silent until the holder's key has expired there, and the
/// rival's request waits there. If nodes 1 and 2 could extend the holder's lock, the rival would
/// have a majority beside it: nodes 0 and 2.
#[test]
fn restored_node_does_not_renew_a_lock_that_had_ended_there() {
    despite_stalls(millis(700), |times| restored_node_does_not_renew(times * SHORT));
}

fn restored_node_does_not_renew(short: Duration) {
    let nodes = Proxied::start(3);
    let (fleet, proxies) = (&nodes.fleet, &nodes.proxies);
    let client = ready::vouched(guarded(nodes.urls()));
    let mut guard = client.lock("a", short).expect("nobody has it");
    drive_until(&client, 20 * SECOND, "all have it", || fleet.values("a").len() == 3);

    proxies[2].hold();
    extend_until(&mut guard, short, "the key ends on node 2", || fleet[2].get("a").is_none());
    assert!(set_of_rival(&fleet[2]));
    restore_from(&fleet[2], &fleet[1]);
    assert_eq!(fleet[2].get("a"), fleet[1].get("a"), "the holder's token stands there");
    proxies[2].heal();
    extend_until(&mut guard, short, "node 2 is in quarantine", || {
        matches!(client.nodes()[2], NodeState::Quarantined(_))
    });

    fleet[0].stop();
    let error = guard.extend(short).expect_err("the rival was granted the key by node 2");
    println!("{error}");
    assert!(matches!(error, Error::Lost { .. } | Error::NoQuorum(_)), "{error}");
    fleet[0].cont();
    eventually(20 * SECOND, "node 0 grants the rival its key", || set_of_rival(&fleet[0]));
    assert!(guard.check().is_err(), "two hold the lock");
}

/// If the holder was cut off for less than its ttl, the same restart costs it nothing, because no
/// other client can have had the key there.
#[test]
fn restored_node_counts_while_our_key_cannot_have_ended_there() {
    let fleet = Fleet::start(3);
    let client = ready::vouched(guarded(fleet.urls()));
    // The ttl is long enough for a restart on a busy machine.
    let mut guard = client.try_lock("a", MAX_TTL).expect("nobody has it");
    drive_until(&client, 20 * SECOND, "all have it", || fleet.values("a").len() == 3);
    restore_from(&fleet[2], &fleet[1]);
    drive_until(&client, 20 * SECOND, "node 2 is in quarantine", || {
        matches!(client.nodes()[2], NodeState::Quarantined(_))
    });
    fleet[0].kill();
    guard.extend(MAX_TTL).expect("nodes 1 and 2 have the key");
}
