//! Spans of requests, and events of locks and nodes, through each interface.

use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use redlatch::testing::tcp::Masters;
use redlatch::{Engine, LockOptions, Outcome};

use super::collector::{self, events, spans};
use super::{config, ready};

const TTL: Duration = Duration::from_secs(10);

/// The names and outcomes of all spans with this key.
#[track_caller]
fn outcomes(key: &str) -> Vec<(String, String)> {
    let spans = spans(&[("key", key)]);
    assert!(spans.iter().all(|span| span["took_us"].parse::<u64>().is_ok()), "{spans:?}");
    spans.iter().map(|span| (span["span"].clone(), span["outcome"].clone())).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(verb, outcome)| (verb.to_string(), outcome.to_string())).collect()
}

/// Waits for an event whose fields have these values.
#[track_caller]
fn wait_for_event(wanted: &[(&str, &str)]) {
    let end = Instant::now() + Duration::from_secs(20);
    while events(wanted).is_empty() {
        assert!(Instant::now() < end, "no event {wanted:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tracing_shows_each_request_of_the_blocking_client() {
    collector::begin();
    let masters = Masters::start(3).unwrap();
    let client = ready::client(config(&masters));
    let mut guard = client.lock("blocking", TTL).unwrap();
    guard.extend(TTL).unwrap();
    let other = ready::client(config(&masters));
    assert!(other.try_lock("blocking", TTL).unwrap_err().is_contended());
    guard.release().unwrap();
    drop(client.lock("blocking", TTL).unwrap());
    let expected = [
        ("acquire", "acquired"),
        ("extend", "extended"),
        ("acquire", "contended"),
        ("release", "released"),
        ("acquire", "acquired"),
        ("release", "sent"),
    ];
    assert_eq!(outcomes("blocking"), pairs(&expected));
    let refused = events(&[("in", "acquire"), ("key", "blocking"), ("outcome", "contended")]);
    assert_eq!((refused.len(), &refused[0]["level"][..]), (1, "DEBUG"));
    assert!(refused[0]["error"].contains("blocking"), "{refused:?}");
}

#[test]
fn tracing_shows_each_call_of_the_shared_client_and_one_that_is_dropped() {
    collector::begin();
    let masters = Masters::start(3).unwrap();
    let client = ready::shared(config(&masters));
    let mut guard = client.lock("shared", TTL).wait().unwrap();
    guard.extend(TTL).wait().unwrap();
    let mut waiting = Box::pin(client.lock("shared", TTL));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(waiting);
    guard.release().wait().unwrap();
    drop(client.lock("shared", TTL).wait().unwrap());
    let expected = [
        ("acquire", "acquired"),
        ("extend", "extended"),
        ("acquire", "cancelled"),
        ("release", "released"),
        ("acquire", "acquired"),
        ("release", "sent"),
    ];
    assert_eq!(outcomes("shared"), pairs(&expected));
}

#[test]
fn tracing_shows_each_request_of_an_engine() {
    collector::begin();
    let masters = Masters::start(3).unwrap();
    let (mut poll, mut ready) = (Poll::new().unwrap(), Events::with_capacity(64));
    let mut engine = Engine::new(config(&masters), poll.registry(), Token(0)).unwrap();
    let mut turn_until_done = |engine: &mut Engine| loop {
        let timeout = engine.prepare();
        poll.poll(&mut ready, timeout).unwrap();
        for event in &ready {
            engine.handle_event(event);
        }
        if let Some(done) = engine.poll_completion() {
            return done.result;
        }
    };
    engine.acquire("engine", TTL, 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = turn_until_done(&mut engine) else { panic!("no lock") };
    engine.extend(&lock, TTL, 2).unwrap();
    turn_until_done(&mut engine).unwrap();
    let waiting = engine.acquire("engine", LockOptions::new(TTL).wait(TTL), 3).unwrap();
    engine.cancel(waiting);
    engine.release(lock, 4);
    turn_until_done(&mut engine).unwrap();
    assert!(engine.acquire("engine", Duration::ZERO, 5).is_err(), "the ttl is too short");
    let expected = [
        ("acquire", "acquired"),
        ("extend", "extended"),
        ("acquire", "cancelled"),
        ("release", "released"),
        ("acquire", "misconfigured"),
    ];
    assert_eq!(outcomes("engine"), pairs(&expected));
    // The subscriber takes no event away: the caller still gets every event of the nodes.
    let polled: Vec<_> = std::iter::from_fn(|| engine.poll_node_event()).collect();
    assert!(polled.contains(&redlatch::NodeEvent::QuorumReady), "{polled:?}");
}

#[test]
fn tracing_shows_nodes_that_go_and_locks_that_are_lost() {
    collector::begin();
    let masters = Masters::start(3).unwrap();
    let client = ready::shared(config(&masters));
    let keep = LockOptions::new(Duration::from_secs(1)).auto_extend(TTL);
    let guard = client.lock("lost", keep).wait().unwrap();
    // The subscriber may call the client, because the client reports when its own mutex is free.
    collector::call(Some(client.clone()));
    for master in masters.iter() {
        master.kill();
    }
    let why = guard.lost().wait();
    wait_for_event(&[("message", "lock lost"), ("key", "lost"), ("level", "WARN")]);
    let lost = events(&[("message", "lock lost"), ("key", "lost")]);
    assert_eq!((lost.len(), &lost[0]["error"]), (1, &why.to_string()));
    for master in masters.iter() {
        let label = master.address().to_string();
        let down = [("message", "node state"), ("node", &label[..]), ("state", "down")];
        wait_for_event(&down);
        assert!(!events(&[("node", &label), ("state", "ready"), ("level", "INFO")]).is_empty());
    }
    collector::call(None);
}
