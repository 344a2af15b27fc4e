//! Names whose addresses change, and what an operator sees of that: events and counters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use mio::{Events, Poll, Token};
use redlatch::{Engine, LockOptions, NodeError, NodeEvent, NodeId, Outcome};

/// A name server: the addresses of its names, and whether it was asked. From the second look-up on,
/// an answer takes a while.
struct Directory {
    leads_to: Mutex<Vec<SocketAddr>>,
    asked: AtomicBool,
}

const A_SLOW_NAME_SERVER: Duration = Duration::from_secs(3);

impl Directory {
    fn of(addresses: &[SocketAddr]) -> Arc<Directory> {
        Arc::new(Directory {
            leads_to: Mutex::new(addresses.to_vec()),
            asked: AtomicBool::new(false),
        })
    }

    fn set_addresses(&self, addresses: &[SocketAddr]) {
        *self.leads_to.lock().unwrap() = addresses.to_vec();
    }

    fn look_up(&self, name: &str) -> std::io::Result<Vec<SocketAddr>> {
        assert_eq!(name, "moving.example");
        if self.asked.swap(true, Ordering::SeqCst) {
            std::thread::sleep(A_SLOW_NAME_SERVER);
        }
        Ok(self.leads_to.lock().unwrap().clone())
    }
}

fn with_a_name(fleet: &Fleet, directory: &Arc<Directory>) -> Config {
    let directory = Arc::clone(directory);
    let urls = ["redis://moving.example:1".to_owned(), fleet[1].url(), fleet[2].url()];
    config(urls).resolver(move |name, _| directory.look_up(name))
}

#[test]
fn client_uses_the_new_address_of_a_name_without_waiting_for_the_name_server() {
    let fleet = Fleet::start(4);
    let directory = Directory::of(&[fleet[0].address()]);
    let client = ready(with_a_name(&fleet, &directory));
    lock_extend_and_release(&client);
    fleet[0].kill();
    directory.set_addresses(&[fleet[3].address()]);
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    while fleet[3].client_list().is_empty() {
        let turn = Instant::now();
        let guard = client.lock("a", TTL).expect("two of three are there all the time");
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        longest = longest.max(turn.elapsed());
        assert!(start.elapsed() < 60 * SECOND, "it does not follow");
        client.drive(millis(1)).unwrap();
    }
    println!(
        "followed after {:?}, with a name server that takes {A_SLOW_NAME_SERVER:?}; the longest \
         lock and release meanwhile: {longest:?}",
        start.elapsed()
    );
    assert!(start.elapsed() >= A_SLOW_NAME_SERVER, "the name server was not asked");
    assert!(longest < A_SLOW_NAME_SERVER / 2, "the loop waited: {longest:?}");
    eventually(SOON, "the new node is asked", || {
        client.drive(millis(1)).unwrap();
        let _guard = client.try_lock("b", TTL).unwrap();
        fleet[3].get("b").is_some()
    });
}

#[test]
fn engine_reports_a_stale_address_and_takes_a_new_one() {
    let fleet = Fleet::start(4);
    let directory = Directory::of(&[fleet[0].address()]);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(64);
    let config = with_a_name(&fleet, &directory);
    let mut engine = Engine::new(config, poll.registry(), Token(0)).unwrap();
    let node = NodeId::new(0);
    let mut longest = Duration::ZERO;
    let mut turn = |engine: &mut Engine| {
        let start = Instant::now();
        let timeout = engine.prepare().unwrap_or(millis(10)).min(millis(10));
        let prepared = start.elapsed();
        sleep(&mut poll, &mut events, timeout);
        let start = Instant::now();
        for event in &events {
            engine.handle_event(event);
        }
        longest = longest.max(prepared + start.elapsed());
    };
    eventually(SOON, "the nodes are ready", || {
        turn(&mut engine);
        engine.coordinator().ready().len() == 3
    });
    assert!(engine.lookup(NodeId::new(1)).is_none(), "an address is no name");
    fleet[0].kill();
    directory.set_addresses(&[fleet[3].address()]);
    let mut lookup = None;
    eventually(SOON, "its address is stale", || {
        turn(&mut engine);
        while let Some(event) = engine.poll_node_event() {
            if event == (NodeEvent::AddressStale { node }) {
                lookup = engine.lookup(node);
            }
        }
        lookup.is_some()
    });
    let lookup = lookup.unwrap();
    assert_eq!(lookup.host(), "moving.example");
    let thread = std::thread::spawn(move || lookup.run());
    eventually(SOON, "it is found", || {
        turn(&mut engine);
        thread.is_finished()
    });
    engine.set_address(node, thread.join().unwrap().unwrap());
    // Node 1 has an address instead of a name, so this call changes nothing.
    engine.set_address(NodeId::new(1), vec![fleet[0].address()]);
    eventually(SOON, "it is followed", || {
        turn(&mut engine);
        engine.node_state(node) == NodeState::Ready
    });
    println!("the longest turn: {longest:?}");
    assert!(longest < A_SLOW_NAME_SERVER / 2, "{longest:?}");
}

#[test]
fn a_name_with_several_addresses_is_tried_in_turn() {
    let fleet = Fleet::start(4);
    let closed = SocketAddr::from(([127, 0, 0, 1], crate::support::free_port()));
    let directory = Directory::of(&[closed, closed, fleet[0].address()]);
    let client = ready(with_a_name(&fleet, &directory));
    lock_extend_and_release(&client);
    eventually(SOON, "the third one has it", || {
        let _guard = client.try_lock("b", TTL);
        fleet[0].get("b").is_some()
    });
}

#[test]
fn node_moves_are_reported_and_counted() {
    let fleet = Fleet::start(3);
    let client = ready(config(fleet.urls()));
    let told = |client: &Client| -> Vec<NodeEvent> {
        std::iter::from_fn(|| client.poll_node_event()).collect()
    };
    let events = told(&client);
    assert_eq!(events.iter().filter(|event| **event == NodeEvent::QuorumReady).count(), 1);
    // So long that its release is still pending when the stopped node is back, however slow the
    // machine is: a release that could not be sent lapses with the ttl.
    let guard = client.try_lock("a", 6 * TTL).unwrap();
    fleet[1].command(&["SET", "b", "another's"]);
    fleet[2].command(&["SET", "b", "another's"]);
    client.try_lock("b", TTL).unwrap_err();
    fleet[0].stop();
    drop(guard);
    eventually(30 * SECOND, "the silent connection is given up", || {
        client.drive(millis(5)).unwrap();
        matches!(client.nodes()[0], NodeState::Down(_))
    });
    // Node 1 is killed, so that its release stays pending.
    let guard = client.try_lock("c", TTL).unwrap();
    fleet[1].kill();
    client.drive(millis(50)).unwrap();
    drop(guard);
    client.try_lock("d", TTL).unwrap_err();
    fleet[1].restart();
    fleet[0].cont();
    eventually(30 * SECOND, "all are back", || {
        client.drive(millis(5)).unwrap();
        client.nodes().iter().all(|it| it.is_usable())
            && client.stats().nodes[0].pending_releases_sent > 0
    });
    let events = told(&client);
    println!("{events:#?}");
    let node = NodeId::new(0);
    let happened = |wanted: &dyn Fn(&NodeEvent) -> bool| events.iter().any(wanted);
    let is = |state| NodeEvent::State { node, state };
    assert!(happened(&|event| *event == is(NodeState::Suspect)));
    assert!(happened(&|event| *event == is(NodeState::Down(NodeError::Silent))));
    assert!(happened(&|event| *event == is(NodeState::Ready)));
    assert!(happened(
        &|event| matches!(event, NodeEvent::PendingReleasesSent { node: n, .. } if *n == node)
    ));
    let quorum: Vec<_> = events
        .iter()
        .filter(|event| matches!(event, NodeEvent::QuorumGone | NodeEvent::QuorumReady))
        .collect();
    assert_eq!(quorum, [&NodeEvent::QuorumGone, &NodeEvent::QuorumReady]);

    let stats = client.stats();
    println!("{stats:#?}");
    assert_eq!((stats.won, stats.contended, stats.no_quorum), (2, 1, 1));
    assert_eq!(stats.nodes[2].denials, 1);
    assert!(stats.nodes[2].grants >= 2);
    assert!(stats.nodes[0].errors(NodeError::Silent) > 0, "c or d was not asked of it");
    assert!(stats.nodes[0].connections >= 2 && stats.nodes[0].failures >= 1);
    assert_eq!(stats.nodes[2].connections, 1);
    assert!(stats.nodes[2].round_trips.count() >= 4);
}

#[test]
fn stats_are_right_under_many_locks() {
    let fleet = Fleet::start(1);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(64);
    let mut engine = Engine::new(config(fleet.urls()), poll.registry(), Token(0)).unwrap();
    let mut turn = |engine: &mut Engine| {
        let timeout = engine.prepare().unwrap_or(millis(10)).min(millis(10));
        sleep(&mut poll, &mut events, timeout);
        events.iter().for_each(|event| assert!(engine.handle_event(event)));
    };
    eventually(SOON, "the node is ready", || {
        turn(&mut engine);
        engine.coordinator().ready().len() == 1
    });
    // Other clients hold 40 of the 100 keys.
    for number in 60..100 {
        fleet.iter().for_each(|node| {
            node.command(&["SET", &number.to_string(), "another's"]);
        });
    }
    for number in 0..100 {
        let key = format!("{number}");
        engine.acquire(key, LockOptions::once(TTL), number).unwrap();
    }
    let (mut won, mut lost) = (0, 0);
    eventually(SOON, "all are decided", || {
        turn(&mut engine);
        while let Some(done) = engine.poll_completion() {
            match done.result {
                Ok(Outcome::Acquired(_)) => won += 1,
                _ => lost += 1,
            }
        }
        won + lost == 100
    });
    let stats = engine.stats();
    let node = stats.nodes[0];
    assert_eq!((stats.won, stats.contended), (won, lost));
    assert_eq!((node.grants, node.denials, node.round_trips.count()), (60, 40, 100));
    assert_eq!(node.all_errors().count(), 0);
}
