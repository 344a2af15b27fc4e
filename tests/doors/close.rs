//! The end of a guard, an engine and a client while a node reads nothing any more: no call blocks,
//! no key outlives its ttl, and the client counts the keys that may be left.

use super::*;
use mio::{Events, Poll, Token};
use redlatch::{AutoExtend, Engine, FdEngine, LockOptions, NodeId, Outcome};

/// The ttl of locks that are acquired while a node is stopped: short, so that keys that are left
/// soon expire.
const SHORT: Duration = Duration::from_secs(8);

/// The end of a guard, engine or client takes less than this, unless it waits for the node.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A socket that no peer reads buffers a few MiB at most. So many locks with large keys fill it.
const LOCKS: usize = 200;

fn large_key(number: usize) -> String {
    format!("{number}:{}", "k".repeat(60_000))
}

/// Checks that at most this many keys are left, and that each of them expires.
#[track_caller]
fn assert_few_keys_left_and_expiring(fleet: &Fleet, most: usize) {
    eventually(LOST, "the node has executed all commands", || fleet[2].client_list().is_empty());
    let mut left = Vec::new();
    for (node, key) in fleet.keys_everywhere() {
        let pttl = fleet[node].pttl(&key);
        assert!(pttl <= SHORT.as_millis() as i64, "it stays for {pttl} ms");
        left.push(key);
    }
    left.sort();
    left.dedup();
    println!("{} keys are left, and {most} were counted", left.len());
    assert!(left.len() <= most, "{} keys are left, and {most} were counted", left.len());
    eventually(3 * SHORT, "what was left is over", || fleet.keys_everywhere().is_empty());
}

/// A blocking client that has filled its socket to the last node, which is stopped.
fn filled(fleet: &Fleet) -> Client {
    let client = client(config(fleet.urls()));
    fleet[2].stop();
    for number in 0..LOCKS {
        let start = Instant::now();
        let guard = client.try_lock(large_key(number), SHORT).expect("two of three are well");
        drop(guard);
        assert!(start.elapsed() < AT_ONCE, "a stopped node held it up");
    }
    client
}

#[test]
fn a_guard_and_its_client_are_dropped_while_a_socket_is_full() {
    let fleet = Fleet::start(3);
    let client = filled(&fleet);
    let guard = client.try_lock("a", SHORT).unwrap();
    let start = Instant::now();
    drop(guard);
    assert!(start.elapsed() < AT_ONCE, "the guard: {:?}", start.elapsed());
    eventually(AT_ONCE, "the others let go", || {
        fleet[0].keys().is_empty() && fleet[1].keys().is_empty()
    });
    let start = Instant::now();
    drop(client);
    println!("dropped in {:?}", start.elapsed());
    assert!(start.elapsed() < AT_ONCE, "the client: {:?}", start.elapsed());
    fleet[2].cont();
    assert_few_keys_left_and_expiring(&fleet, LOCKS + 1);
}

#[test]
fn client_that_is_closed_while_a_socket_is_full_counts_the_keys_it_leaves() {
    let fleet = Fleet::start(3);
    let client = filled(&fleet);
    let start = Instant::now();
    let left = client.close(millis(300));
    println!("{left} keys may be left, {:?}", start.elapsed());
    assert!(start.elapsed() >= millis(300) && start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!((1..=LOCKS).contains(&left), "{left}");
    fleet[2].cont();
    assert_few_keys_left_and_expiring(&fleet, left);
}

#[test]
fn a_client_that_is_closed_waits_for_a_node_that_comes_back() {
    let fleet = Fleet::start(3);
    let client = filled(&fleet);
    let goes_on = || {
        eventually(LOST, "the release reached all the others", || fleet[0].keys().is_empty());
        fleet[2].cont();
    };
    std::thread::scope(|scope| {
        scope.spawn(goes_on);
        assert_eq!(client.close(6 * LOST), 0);
    });
    assert!(fleet.keys_everywhere().is_empty());
}

#[test]
fn a_client_that_is_closed_leaves_nothing() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    let mut guards: Vec<_> =
        (0..20).map(|number| client.try_lock(format!("a:{number}"), TTL).unwrap()).collect();
    guards[0].auto_extend(HOUR).unwrap();
    // The test forgets half of the guards, so that they are never dropped.
    guards.drain(..10).for_each(std::mem::forget);
    drop(guards);
    // Now a node is stopped while the locks are released, and continues after that.
    let kept =
        client.lock("kept", LockOptions::new(TTL).auto_extend(AutoExtend::at_most(HOUR))).unwrap();
    std::mem::forget(kept);
    for node in fleet.iter() {
        kill_some(node, 100, &mut Dice::new(1));
    }
    let start = Instant::now();
    assert_eq!(client.close(LOST), 0);
    println!("closed in {:?}", start.elapsed());
    assert!(start.elapsed() < LOST, "it slept on when there was nothing to wait for");
    assert!(fleet.keys_everywhere().is_empty());
}

#[test]
fn client_without_open_records_is_closed_at_once() {
    let fleet = Fleet::start(3);
    let [unused, used, without_nodes] = [0; 3].map(|_| client(config(fleet.urls())));
    let closes = |client: Client| {
        let start = Instant::now();
        assert_eq!(client.close(HOUR), 0);
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    };
    closes(unused);
    used.try_lock("a", TTL).unwrap().release().unwrap();
    used.drive(millis(20)).unwrap();
    closes(used);
    fleet.iter().for_each(Node::kill);
    closes(without_nodes);
}

#[test]
fn client_that_is_closed_with_a_timeout_of_zero_writes_its_releases() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    std::mem::forget(client.try_lock("a", TTL).unwrap());
    let left = client.close(Duration::ZERO);
    assert!(left <= 1, "{left}");
    eventually(10 * SECOND, "its releases arrive", || fleet.keys_everywhere().is_empty());
}

/// Acquires locks until the outbox of the last node, which is stopped, holds bytes that its socket
/// does not take. Returns the number of the acquires.
fn fill(engine: &mut Engine, mut turn: impl FnMut(&mut Engine)) -> usize {
    let start = Instant::now();
    for number in 0.. {
        assert!(start.elapsed() < 3 * LOST, "the socket takes and takes");
        engine.acquire(large_key(number), LockOptions::once(SHORT), number as u64).unwrap();
        engine.prepare();
        turn(engine);
        while let Some(done) = engine.poll_completion() {
            if let Ok(Outcome::Acquired(lock)) = done.result {
                engine.release_nowait(&lock);
            }
        }
        if engine.coordinator().output(NodeId::new(2)).len() > 1 << 20 {
            return number + 1;
        }
    }
    unreachable!("the range has no end")
}

#[test]
fn an_engine_is_dropped_while_a_socket_is_full() {
    let fleet = Fleet::start(3);
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(64));
    let mut engine = Engine::new(config(fleet.urls()), poll.registry(), Token(0)).unwrap();
    let mut turn = |engine: &mut Engine| {
        let timeout = engine.prepare().unwrap_or(millis(10)).min(millis(10));
        poll.poll(&mut events, Some(timeout)).unwrap();
        for event in &events {
            engine.handle_event(event);
        }
    };
    eventually(LOST, "the nodes are ready", || {
        turn(&mut engine);
        engine.coordinator().ready().len() == 3
    });
    fleet[2].stop();
    let asked = fill(&mut engine, &mut turn);
    engine.release_all();
    for _ in 0..20 {
        turn(&mut engine);
    }
    let open = engine.coordinator().open_records();
    println!("{asked} were asked for, {open} are not given back everywhere");
    assert!(open > 0 && open <= asked);
    let start = Instant::now();
    drop(engine);
    println!("dropped in {:?}", start.elapsed());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    fleet[2].cont();
    assert_few_keys_left_and_expiring(&fleet, open);
}

#[test]
fn an_engine_behind_a_descriptor_is_dropped_while_a_socket_is_full() {
    let fleet = Fleet::start(3);
    let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
    let mut outer = Outer::Level;
    outer.wait_ready(&mut locks, 3);
    fleet[2].stop();
    let full = |locks: &FdEngine| locks.engine().coordinator().output(NodeId::new(2)).len();
    let mut asked = 0;
    while full(&locks) < 1 << 20 {
        locks.batch().acquire(large_key(asked), LockOptions::once(SHORT), 0).unwrap();
        asked += 1;
        let lock = outer.won(&mut locks);
        locks.batch().release_nowait(&lock);
        assert!(asked < 10 * LOCKS, "the socket takes and takes");
    }
    // A full socket wakes no loop until it takes bytes again.
    assert!(outer.until_silent(&mut locks) < 50);
    locks.batch().release_all();
    let open = locks.engine().coordinator().open_records();
    let start = Instant::now();
    drop(locks);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    fleet[2].cont();
    assert_few_keys_left_and_expiring(&fleet, open);
}

#[test]
fn socket_that_takes_bytes_again_wakes_the_loop() {
    let fleet = Fleet::start(3);
    for make in event_loops::LOOPS {
        let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
        let mut outer = make(&mut locks);
        outer.wait_ready(&mut locks, 3);
        fleet[2].stop();
        let mut asked = 0;
        while locks.engine().coordinator().output(NodeId::new(2)).len() < 4 << 20 {
            locks.batch().acquire(large_key(asked), LockOptions::once(TTL), 0).unwrap();
            asked += 1;
            let lock = outer.won(&mut locks);
            locks.batch().release_nowait(&lock);
            assert!(asked < 10 * LOCKS, "the socket takes and takes");
        }
        outer.until_silent(&mut locks);
        fleet[2].cont();
        outer.drive_until(&mut locks, "all is given back", |locks| {
            locks.engine().coordinator().open_records() == 0
        });
        assert!(fleet.keys_everywhere().is_empty());
    }
}
