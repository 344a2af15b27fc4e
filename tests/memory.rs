//! What a lock costs in memory, and what a client returns after a burst: the bytes that a counting
//! allocator has handed out and not got back.
//!
//! The coordinator is driven by hand, without sockets, so the memory of the kernel and the poller
//! is not counted. The hazard is a buffer of the test that is counted as the library's: the tests
//! drop theirs, or subtract them.

#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]

#[path = "support/by_hand.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod by_hand;
#[path = "support/counting.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod counting;

use std::time::Duration;

use by_hand::{ByHand, key};
use counting::{live, peak_of};
use redlatch::AutoExtend;
use redlatch::proto::{Lock, LockToken, NodeId};

const LOCKS: usize = 100_000;
const TTL: Duration = Duration::from_secs(60);

/// Acquires all locks, 64 at a time. Returns how many bytes each takes besides its key and token.
fn bytes_per_lock(auto_extend: Option<AutoExtend>) -> f64 {
    let mut by_hand = ByHand::connect(64);
    by_hand.pairs(1_000, TTL);
    let mut locks: Vec<Lock> = Vec::with_capacity(LOCKS + 64);
    let before = live();
    while locks.len() < LOCKS {
        let count = by_hand.in_flight.min(LOCKS - locks.len());
        by_hand.acquire_batch(locks.len(), count, TTL, auto_extend, &mut locks);
    }
    let each = (live() - before) as f64 / LOCKS as f64;
    each - (key(0).len() + size_of::<LockToken>()) as f64
}

#[test]
fn a_held_lock_takes_at_most_300_bytes_beyond_its_key_and_token() {
    let bytes = bytes_per_lock(None);
    println!("a held lock: {bytes:.0} bytes");
    assert!(bytes <= 300.0, "{bytes:.0} bytes");
}

#[test]
fn a_lock_that_is_renewed_takes_at_most_500_bytes_beyond_its_key_and_token() {
    let bytes = bytes_per_lock(Some(AutoExtend::at_most(60 * TTL)));
    println!("a lock that is renewed: {bytes:.0} bytes");
    assert!(bytes <= 500.0, "{bytes:.0} bytes");
}

/// Acquires all locks together and releases all together. One minute later the client has at most 3
/// MiB more than one without a burst.
#[test]
fn a_burst_is_given_back_within_a_minute() {
    let mut by_hand = ByHand::connect(LOCKS / 4);
    by_hand.pairs(1_000, TTL);
    let before = live();
    {
        let mut locks: Vec<Lock> = Vec::with_capacity(LOCKS);
        for batch in 0..4 {
            let count = by_hand.in_flight;
            by_hand.acquire_batch(batch * count, count, TTL, None, &mut locks);
        }
        println!("with {LOCKS} locks: {} KiB", (live() - before) / 1024);
        by_hand.release_all(&mut locks);
    }
    println!("after their release: {} KiB", (live() - before) / 1024);
    assert_eq!(by_hand.coordinator.open_records(), 0);
    by_hand.rest(Duration::from_secs(60));
    let left = live() - before;
    println!("a minute later: {} KiB", left / 1024);
    assert!(left <= 3 << 20, "{left} bytes");
}

/// The releases wait in the outboxes of five nodes until the kernel takes them, 135 bytes for each
/// node. That is most of it.
#[test]
fn releases_of_many_locks_at_once_take_at_most_1000_bytes_each_for_a_moment() {
    let mut by_hand = ByHand::connect(LOCKS / 4);
    let mut locks: Vec<Lock> = Vec::with_capacity(LOCKS);
    for batch in 0..4 {
        by_hand.acquire_batch(batch * LOCKS / 4, LOCKS / 4, TTL, None, &mut locks);
    }
    // The client gives the buffers of the acquires back.
    by_hand.rest(TTL / 2);
    let now = by_hand.now();
    let taken = peak_of(|| {
        for lock in locks.drain(..) {
            by_hand.coordinator.release(lock, 0, now);
        }
    });
    let waiting = |node| by_hand.coordinator.output(NodeId::new(node)).len();
    let written: usize = (0..by_hand::NODES).map(waiting).sum();
    println!("a release: {} bytes, {} of them in outboxes", taken / 100_000, written / LOCKS);
    assert!(taken <= 1_000 * LOCKS as i64, "{taken} bytes");
}
