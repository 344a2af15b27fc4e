//! Fencing numbers of locks over several keys, on real servers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use redlatch::proto::counter_key;

use super::*;

const MAX_TTL: Duration = SECOND;

fn fenced() -> LockOptions {
    LockOptions::new(millis(500)).wait(20 * SECOND).fenced()
}

/// A client with the restart guard, and with a `max_ttl` that makes the quarantine short.
fn guarded(fleet: &Fleet) -> Client {
    let config = config(fleet.urls()).restart_guard(RestartGuard::On).max_ttl(MAX_TTL);
    // The client is ready only when the quarantine of the nodes is over.
    ready::client(config)
}

fn no_lock_is_left(fleet: &Fleet) {
    let is_lock = |name: &str| name != "redlatch:node" && !name.starts_with("redlatch:fence:");
    eventually(SOON, "no lock is left", || keys(fleet).iter().all(|(_, name)| !is_lock(name)));
}

#[test]
fn each_key_of_a_set_has_a_number_that_grows_beside_single_locks_and_other_sets() {
    let fleet = Fleet::start(5);
    drop(guarded(&fleet));
    let (last, holds) = (Mutex::new(BTreeMap::<Vec<u8>, u64>::new()), 40);
    let wanted: [&[&str]; 5] = [&["a", "b"], &["b", "c"], &["c", "b", "a"], &["a"], &["b"]];
    let contend = |names: &[&str]| {
        let (client, mut held, mut written) = (guarded(&fleet), 0, 0);
        while held < holds {
            let Ok(guard) = client.lock(names, fenced()) else { continue };
            assert_eq!(guard.fences().count(), names.len(), "a number for each key");
            assert_eq!(guard.fence().is_some(), names.len() == 1);
            let mut last = last.lock().expect("no client panics");
            // A holder whose thread ran late writes its numbers after the next holder. Its numbers
            // are not checked.
            if guard.remaining() > millis(200) {
                for (key, fence) in guard.fences() {
                    assert_eq!(guard.fence_of(key), Some(fence));
                    let before = last.insert(key.to_vec(), fence);
                    assert!(before < Some(fence), "{fence} of {key:?} after {before:?}");
                }
                held += 1;
            }
            drop(last);
            let _ = guard.release();
            written = client.stats().written_back;
        }
        written
    };
    let written: u64 = std::thread::scope(|scope| {
        let threads = wanted.map(|names| scope.spawn(move || contend(names)));
        threads.into_iter().map(|thread| thread.join().expect("no client panics")).sum()
    });
    println!("{} holds, {written} written back", holds * wanted.len());
    assert_eq!(last.into_inner().unwrap().len(), 3);
    no_lock_is_left(&fleet);
}

#[test]
fn fenced_set_survives_forgotten_scripts_and_heals_its_counters() {
    despite_stalls(millis(150), |_| fenced_set_heals_its_counters());
}

fn fenced_set_heals_its_counters() {
    let fleet = Fleet::start(3);
    let client = guarded(&fleet);
    let mut guard = client.lock(["a", "b"], fenced()).unwrap();
    let fences: Vec<u64> = guard.fences().map(|(_, fence)| fence).collect();
    fleet.command(&["SCRIPT", "FLUSH"]);
    let counters = ["a", "b"].map(|key| counter_key(key.as_bytes()));
    assert_eq!(fleet[0].command(&[&b"DEL"[..], b"b", &counters[1]]).int(), 2);
    guard.extend(millis(900)).unwrap();
    eventually(SOON, "the key and its counter are healed", || {
        client.drive(millis(10)).expect("the poller works");
        fleet[0].get("b").is_some() && fleet[0].get(&counters[1]).is_some()
    });
    for (counter, fence) in counters.iter().zip(&fences) {
        let healed = String::from_utf8(fleet[0].get(counter).unwrap()).unwrap();
        assert!(healed.parse::<u64>().unwrap() >= *fence, "{healed} is below {fence}");
    }
    assert_eq!(guard.fence_of("a"), Some(fences[0]), "they stay the same");
    assert_eq!((guard.fence_of("c"), guard.fence()), (None, None));
    guard.release().unwrap();
    let next = client.lock("b", fenced()).unwrap();
    assert!(next.fence().unwrap() > fences[1]);
    drop(next);
    no_lock_is_left(&fleet);
}

#[test]
fn fences_are_not_given_where_another_program_uses_the_counter_of_one_key() {
    let fleet = Fleet::start(3);
    let client = guarded(&fleet);
    let counter = counter_key(b"b");
    for (node, value) in fleet.iter().zip(["text", "-5", "1e30"]) {
        assert!(node.command(&[&b"SET"[..], &counter, value.as_bytes()]).is_ok());
    }
    let error = client.try_lock(["a", "b"], fenced()).unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("the fencing counter is not a number"), "{error}");
    client.drive(millis(100)).unwrap();
    no_lock_is_left(&fleet);
    assert!(fleet.iter().all(|node| node.get(counter_key(b"a")).is_none()), "nothing was counted");
    // A lock without numbers needs no counter, so it is granted.
    assert_eq!(client.lock(["a", "b"], millis(500)).unwrap().fences().count(), 0);
}

#[test]
fn counters_and_locks_with_similar_names_do_not_collide() {
    let fleet = Fleet::start(3);
    let client = guarded(&fleet);
    let names = ["a", "a:fence", "{a}:fence", "fence:{a}"];
    let mut last = BTreeMap::new();
    for turn in 0..9 {
        // All keys as one lock, or two locks of one key each.
        let groups: &[&[&str]] = if turn % 2 == 0 { &[&names] } else { &[&["a"], &["{a}:fence"]] };
        let guards = groups.iter().map(|&group| client.lock(group, fenced()).unwrap());
        for guard in guards.collect::<Vec<_>>() {
            for (key, fence) in guard.fences() {
                let earlier = last.insert(key.to_vec(), fence);
                assert!(earlier < Some(fence), "{earlier:?}, {fence}");
            }
            assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        }
    }
    no_lock_is_left(&fleet);
}

#[test]
fn shared_guard_of_a_fenced_set_has_its_numbers() {
    let fleet = Fleet::start(3);
    drop(guarded(&fleet));
    let config = config(fleet.urls()).restart_guard(RestartGuard::On).max_ttl(MAX_TTL);
    let locks = ready::shared(config);
    let guard = locks.lock(["b", "a"], fenced()).wait().unwrap();
    let numbers: Vec<(Vec<u8>, u64)> =
        guard.fences().map(|(key, fence)| (key.to_vec(), fence)).collect();
    assert_eq!(numbers.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(guard.watcher().fence_of("b"), Some(numbers[1].1));
    guard.release().wait().unwrap();
    no_lock_is_left(&fleet);
}
