//! Faults of nodes and of the network between, on real servers: none of them costs safety, and none
//! delays a call while a quorum answers.

mod answers;
mod clocks;
mod failover;
mod failovers;
mod fencing;
mod forgetting;
mod fork;
mod liveness;
mod markers;
mod min_replicas;
mod namespaces;
mod permissions;
mod replies;
mod resets;
mod restarts;
mod restored;
mod sockets;
mod stale;

use std::time::{Duration, Instant};

use crate::engine_loop::Loop;
use crate::ready::{self, client, drive_until, wait_ready};
use crate::support::{
    Fleet, Folder, Node, Proxy, SECOND, SOON, despite_stalls, eventually, millis, number,
};
use redlatch::{Client, Config, Engine, NodeState, RestartGuard};

const TTL: Duration = Duration::from_secs(10);

/// A timeout that no healthy node misses, however busy the machine is. A test that waits for it is
/// visibly slow.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

fn config(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Config {
    let config = Config::new(urls).expect("good addresses").node_timeout(NODE_TIMEOUT);
    // The guard is off because these servers are seconds old. They granted no lock before.
    config.restart_guard(RestartGuard::Off)
}

/// Lets time pass while no client is driven, in tests that are about just that.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// A fleet with a proxy in front of each node.
struct Proxied {
    // The first field, so that the proxies close their connections to the servers before these end.
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
