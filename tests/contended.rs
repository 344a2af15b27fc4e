//! What the error of a refused request says about the lock that is in its way, with in-process
//! masters and a blocking client.
#![cfg(all(feature = "net", feature = "testing"))]
#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "support/ready.rs"]
mod ready;

use std::time::{Duration, Instant};

use redlatch::testing::tcp::Masters;
use redlatch::{Client, Config, Error, HeldFor, LockOptions, RestartGuard};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(20);

fn client(masters: &Masters) -> Client {
    let config = Config::new(masters.urls()).expect("good addresses");
    ready::client(config.restart_guard(RestartGuard::Off))
}

#[track_caller]
fn held(result: Result<redlatch::Guard<'_>, Error>) -> (Option<HeldFor>, String) {
    match result {
        Err(Error::Contended(report)) => {
            (report.held, Error::Contended(report.clone()).to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn contended_key_that_this_client_auto_extends_is_refused_at_once() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let kept = LockOptions::new(TTL).auto_extend(60 * TTL);
    let guard = client.lock("a", kept).unwrap();
    let start = Instant::now();
    let (held, text) = held(client.lock("a", LockOptions::new(TTL).wait(60 * SECOND)));
    assert!(start.elapsed() < 30 * SECOND, "it waited for itself");
    assert!(matches!(held, Some(HeldFor::Ours { auto_extended: true, .. })), "{held:?}");
    assert!(text.starts_with("held by this client, which renews it; release it"), "{text}");
    guard.check().unwrap();
    guard.release().unwrap();
    drop(client.lock("a", TTL).unwrap());
}

#[test]
fn contended_key_whose_auto_extension_ends_in_time_is_waited_for() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let short = Duration::from_millis(300);
    let _kept = client.lock("a", LockOptions::new(short).auto_extend(2 * short)).unwrap();
    let waited = client.lock("a", LockOptions::new(TTL).wait(10 * SECOND));
    drop(waited.expect("it is over after 600 ms"));
}

/// The request is queued behind a lock of its own client, so the error must not blame another
/// client.
#[test]
fn contended_key_that_this_client_holds_is_not_said_to_be_another_clients() {
    let masters = Masters::start(3).unwrap();
    let client = client(&masters);
    let _guard = client.lock("a", TTL).unwrap();
    let wait = LockOptions::new(TTL).wait(Duration::from_millis(300));
    let (held, text) = held(client.lock("a", wait));
    assert!(matches!(held, Some(HeldFor::Ours { auto_extended: false, .. })), "{held:?}");
    assert!(text.starts_with("held by this client for 19."), "{text}");
    assert!(text.contains("more; release it first: needed 2 of 3 for \"a\": "), "{text}");
    assert_eq!(text.matches(" was not asked").count(), 3, "{text}");
}

#[test]
fn a_wait_that_is_over_says_for_how_long_the_key_is_held() {
    let masters = Masters::start(3).unwrap();
    let (holder, waiter) = (client(&masters), client(&masters));
    let _guard = holder.lock("a", TTL).unwrap();
    let wait = LockOptions::new(TTL).wait(Duration::from_millis(300));
    let (left, text) = held(waiter.lock("a", wait));
    let Some(HeldFor::Left(left)) = left else { panic!("{text}") };
    assert!(left > TTL / 2 && left < TTL, "{left:?}");
    assert!(text.starts_with("held by another client for 1"), "{text}");
}

#[test]
fn a_key_without_a_ttl_is_held_for_ever() {
    let masters = Masters::start(3).unwrap();
    let mut peers = Vec::new();
    for master in &masters {
        use std::io::Write;
        let mut peer = std::net::TcpStream::connect(master.address()).unwrap();
        peer.write_all(b"SET a x\r\n").unwrap();
        peers.push(peer);
    }
    while masters.iter().any(|master| master.get("a").is_none()) {
        std::thread::yield_now();
    }
    let waiter = client(&masters);
    let wait = LockOptions::new(TTL).wait(Duration::from_millis(300));
    let (left, text) = held(waiter.lock("a", wait));
    assert_eq!(left, Some(HeldFor::Ever { nodes: 3 }), "{text}");
    let start = "held for ever by another client, no ttl on 3 of 3 nodes: needed 2 of 3 for \"a\"";
    assert!(text.starts_with(start), "{text}");
}
