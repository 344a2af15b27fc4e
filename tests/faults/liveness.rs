//! Nodes that do not answer, answer too slowly, or are not there: the client finds that out, sends
//! them no requests, and uses them again when they are back.

use super::*;
use crate::support::Cut;
use kit::thread_cpu;
use redlatch::{LockOptions, ReleaseOutcome};

/// Acquires and releases a lock, and returns how long both took.
#[track_caller]
fn lock_and_release(client: &Client, key: &str) -> Duration {
    let start = Instant::now();
    let guard = client.try_lock(key, TTL).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    start.elapsed()
}

#[test]
fn a_connection_that_is_half_open_is_found_while_idle_and_replaced() {
    let nodes = Proxied::start(3);
    let (timeout, interval, reset) = (3 * SECOND, millis(400), millis(200));
    let settings = config(nodes.urls()).node_timeout(timeout).probe_interval(interval);
    let client = client(settings.reset_after(reset).connect_timeout(millis(500)));
    client.drive(interval).unwrap();
    nodes.proxies[0].vanish();
    // No caller sends a request here: the client's own TIME finds the dead connection.
    let gone = || client.nodes()[0] != NodeState::Ready;
    let found = drive_until(&client, 10 * (interval + timeout), "it is found", gone);
    println!("half-open: found after {found:?} (interval {interval:?}, node timeout {timeout:?})");
    let is_down = || !matches!(client.nodes()[0], NodeState::Ready | NodeState::Suspect);
    let reset = drive_until(&client, 10 * reset, "it is given up", is_down);
    println!("half-open: given up {reset:?} later");
    let mut slowest = Duration::ZERO;
    let mut most = 0;
    let end = Instant::now() + 2 * SECOND;
    while Instant::now() < end {
        slowest = slowest.max(lock_and_release(&client, "a"));
        client.drive(millis(5)).unwrap();
        most = most.max(nodes.proxies[0].being_opened());
        assert_ne!(client.nodes()[0], NodeState::Ready);
    }
    println!("meanwhile: slowest pair {slowest:?}, at most {most} SYN in flight");
    assert!(slowest < 10 * timeout, "the others waited for it");
    assert_eq!(most, 1, "none, or more than one at a time");
    nodes.proxies[0].come_back();
    let back = wait_ready(&client, 3);
    println!("half-open: back {back:?} after healing");
    assert!(back < TTL);
    let guard = client.try_lock("a", TTL).unwrap();
    drive_until(&client, SOON, "all have it", || nodes.fleet.values("a").len() == 3);
    drop(guard);
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

#[test]
fn a_connection_that_vanishes_under_load_costs_at_most_a_node_timeout() {
    let nodes = Proxied::start(3);
    let timeout = NODE_TIMEOUT;
    let client = client(config(nodes.urls()).node_timeout(timeout).reset_after(millis(200)));
    let (mut slowest, mut pairs) = (Duration::ZERO, 0);
    let mut pairs_until = |is_enough: &dyn Fn() -> bool| {
        let more = pairs + 100;
        while pairs < more || !is_enough() {
            slowest = slowest.max(lock_and_release(&client, "a"));
            client.drive(millis(1)).unwrap();
            pairs += 1;
        }
    };
    pairs_until(&|| true);
    nodes.proxies[1].vanish();
    // The client finds the node silent, and then gives the connection up.
    pairs_until(&|| !matches!(client.nodes()[1], NodeState::Ready | NodeState::Suspect));
    pairs_until(&|| true);
    nodes.proxies[1].come_back();
    pairs_until(&|| true);
    println!("vanished under load: slowest of {pairs} pairs {slowest:?}, {:?}", client.nodes());
    assert!(slowest < timeout, "a majority was there all the time");
    wait_ready(&client, 3);
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

#[test]
fn node_that_answers_slowly_is_suspect_and_no_call_is_busy() {
    let nodes = Proxied::start(3);
    let limits = redlatch::Limits::default().asks(400);
    let settings = config(nodes.urls()).node_timeout(3 * SECOND).limits(limits);
    let client = client(settings.reset_after(60 * SECOND));
    nodes.proxies[0].trickle(Some(millis(150)));
    let (mut slowest, mut suspect_after) = (Duration::ZERO, None);
    let (start, mut pairs) = (Instant::now(), 0);
    let asked = |suspect_after: Option<Duration>| match suspect_after {
        // The client sends a suspect node no new requests for a while.
        Some(after) => start.elapsed() < after + SECOND,
        None => start.elapsed() < 60 * SECOND,
    };
    while asked(suspect_after) {
        // Each round has a key of its own, so that no acquire waits for the slow node.
        slowest = slowest.max(lock_and_release(&client, &format!("key:{pairs}")));
        pairs += 1;
        if client.nodes()[0] == NodeState::Suspect {
            suspect_after.get_or_insert(start.elapsed());
        }
        client.drive(millis(1)).unwrap();
    }
    println!("trickling: {pairs} pairs, slowest {slowest:?}, suspect after {suspect_after:?}");
    assert!(suspect_after.is_some(), "it was asked on and on");
    nodes.proxies[0].trickle(None);
    let back = wait_ready(&client, 3);
    println!("trickling: back {back:?} after it stopped");
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

#[test]
fn a_stopped_node_is_given_up_and_taken_back() {
    let fleet = Fleet::start(3);
    let settings = config(fleet.urls()).node_timeout(3 * SECOND).reset_after(millis(200));
    let client = client(settings.connect_timeout(millis(300)));
    fleet[2].stop();
    let guard = client.try_lock("a", 60 * SECOND).unwrap();
    // The kernel accepts connections for a stopped server, so an open connection proves nothing.
    drive_until(&client, 3 * SOON, "it was given up and could not be made ready", || {
        matches!(client.nodes()[2], NodeState::Down(_))
    });
    client.drive(SECOND).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet[2].cont();
    let back = wait_ready(&client, 3);
    println!("stopped and continued: back after {back:?}");
    drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    // When the node is continued, it closes the connections that the client gave up meanwhile.
    drive_until(&client, SOON, "one is left", || fleet[2].client_list().len() == 1);
}

#[test]
fn nodes_that_refuse_or_are_dead_cost_no_processor_time() {
    let nodes = Proxied::start(5);
    nodes.proxies[1].vanish();
    nodes.fleet[3].kill();
    let mut urls = nodes.urls();
    urls[3] = nodes.fleet[3].url();
    let settings = config(urls).node_timeout(3 * SECOND).connect_timeout(millis(300));
    let client = client_of(settings, 3);
    let mut shares = Vec::new();
    for what in ["from the start", "and with one cut again and again"] {
        let (start, run) = (Instant::now(), thread_cpu());
        while start.elapsed() < 2 * SECOND {
            if shares.len() == 1 {
                nodes.proxies[0].cut(Cut::Reset);
            }
            client.drive(millis(400)).unwrap();
        }
        let share = (thread_cpu() - run).as_secs_f64() / start.elapsed().as_secs_f64();
        println!("one refused, one dead {what}: {:.3} % of a processor", 100.0 * share);
        shares.push(share);
    }
    assert!(shares.iter().all(|&share| share < 0.05), "{shares:?}");
    assert!(nodes.proxies[1].being_opened() <= 1);
    lock_and_release(&client, "a");
}

/// A client that waits until this many of its nodes are ready.
fn client_of(settings: Config, nodes: usize) -> Client {
    let client = Client::connect(settings).expect("a good configuration");
    wait_ready(&client, nodes);
    client
}

#[test]
fn wait_goes_on_while_a_majority_is_unreachable() {
    let nodes = Proxied::start(3);
    let settings = config(nodes.urls()).node_timeout(millis(50)).connect_timeout(millis(200));
    let client = client(settings);
    nodes.proxies[..2].iter().for_each(Proxy::vanish);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let_pass(SECOND);
            nodes.proxies[..2].iter().for_each(Proxy::come_back);
        });
        let guard = client.lock("a", LockOptions::new(TTL).wait(60 * SECOND)).unwrap();
        println!("a majority away for 1 s: held after {:?}", start.elapsed());
        assert!(start.elapsed() >= SECOND && start.elapsed() < 30 * SECOND);
        // The node timeout is so short that the answers to the release may come too late.
        let released = guard.release().unwrap();
        assert!(matches!(released, ReleaseOutcome::Released | ReleaseOutcome::Unconfirmed { .. }));
    });
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}
