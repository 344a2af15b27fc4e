//! Locks over several keys through the shared client, the engine, and the engine with a descriptor.

use redlatch::{AutoExtend, FdEngine, KeySet, Keys, Outcome, SharedClient};

use super::*;
use crate::engine_loop::Loop;

#[test]
fn shared_client_locks_sets_from_threads_and_tasks() {
    let fleet = Fleet::start(3);
    let locks = ready::shared(config(fleet.urls()));
    let threads: Vec<_> = (0..4)
        .map(|number: usize| {
            let locks = locks.clone();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let mut names = ["a", "b", "c"];
                    names.rotate_left(number % 3);
                    let mut guard = locks.lock(&names[..2], TTL).wait()?;
                    assert_eq!(guard.keys().count(), 2);
                    guard.check()?;
                    guard.extend(TTL).wait()?;
                    guard.release().wait()?;
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it does not panic").unwrap();
    }
    let error = locks.try_lock([""; 0], TTL).wait().unwrap_err();
    assert_eq!(error.to_string(), "keys: the list is empty; name at least one");
    let mut guard = locks.try_lock(["a", "b"], TTL).wait().unwrap();
    guard.auto_extend(60 * SECOND).unwrap();
    let (watcher, other) = (guard.watcher(), locks.try_lock(["b", "c"], TTL).wait());
    assert!(other.unwrap_err().is_contended());
    let token = guard.into_token().unwrap();
    assert!(watcher.check().is_err());
    let guard = locks.adopt(["a", "b"], token, TTL).wait().unwrap();
    let names: Vec<&[u8]> = guard.keys().collect();
    assert_eq!(names, [&b"a"[..], b"b"]);
    drop(guard);
    // This lock of one key may use the record that the set had, but not its keys.
    let guard = locks.try_lock("a", TTL).wait().unwrap();
    assert_eq!(guard.keys().collect::<Vec<_>>(), [b"a"]);
    drop(guard);
    fleet.wait_empty();
}

/// The keys of a lock that a client acquires, and drops again.
#[track_caller]
fn taken(client: &Client, keys: impl Keys) -> Vec<String> {
    let guard = client.lock(keys, TTL).expect("they are free");
    guard.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[test]
#[expect(clippy::needless_borrows_for_generic_args, reason = "every type is tried")]
fn keys_of_every_type_are_locked_through_the_clients() {
    let fleet = Fleet::start(3);
    let blocking = client(&fleet);
    let (one, several) = (String::from("a"), ["b", "a"].map(String::from));
    let set = KeySet::new(&several).unwrap();
    for keys in [
        taken(&blocking, "a"),
        taken(&blocking, &one),
        taken(&blocking, b"a"),
        taken(&blocking, &b"a"[..]),
        taken(&blocking, ["a"]),
        taken(&blocking, &[b"a"]),
    ] {
        assert_eq!(keys, ["a"]);
    }
    for keys in [
        taken(&blocking, ["b", "a"]),
        taken(&blocking, &["b", "a"]),
        taken(&blocking, [&b"b"[..], b"a"]),
        taken(&blocking, &several),
        taken(&blocking, &several[..]),
        taken(&blocking, several.to_vec()),
        taken(&blocking, &set),
    ] {
        assert_eq!(keys, ["a", "b"]);
    }
    let shared = ready::shared(config(fleet.urls()));
    // A call may take its keys by value or by reference.
    let calls = [
        shared.lock(one.clone(), TTL).wait().map(|guard| guard.keys().count()),
        shared.lock(&several, TTL).wait().map(|guard| guard.keys().count()),
        shared.lock(several.to_vec(), TTL).wait().map(|guard| guard.keys().count()),
        shared.lock(set.clone(), TTL).wait().map(|guard| guard.keys().count()),
        shared.lock(&set, TTL).wait().map(|guard| guard.keys().count()),
    ];
    assert_eq!(calls.map(|count| count.expect("they are free")), [1, 2, 2, 2, 2]);
    fleet.wait_empty();
}

#[cfg(feature = "tokio")]
#[test]
fn shared_client_locks_sets_in_tokio() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = SharedClient::connect_tokio(config(fleet.urls())).await.expect("it is good");
        ready::all_ready(&locks).await;
        let first = locks.lock(["a", "b"], TTL).await.unwrap();
        let second = locks.lock(["b", "c"], LockOptions::new(TTL).wait(10 * SECOND));
        let release = async {
            assert!(first.check().is_ok());
            first.release().await
        };
        let (second, released) = tokio::join!(second, release);
        assert_eq!(released.unwrap(), ReleaseOutcome::Released);
        drop(second.unwrap());
    });
    fleet.wait_empty();
}

#[test]
fn engine_locks_sets_and_releases_them_by_their_token() {
    let fleet = Fleet::start(3);
    let mut it = Loop::ready(config(fleet.urls()));
    let both = KeySet::new(["a", "b"]).unwrap();
    let options = LockOptions::new(TTL).auto_extend(AutoExtend::extensions(1));
    let op = it.engine.acquire(&both, options, 7).unwrap();
    let mut lock = None;
    it.turn_until("it has the lock", |engine| {
        if let Some(done) = engine.poll_completion() {
            assert_eq!((done.op, done.data), (op, 7));
            let Ok(Outcome::Acquired(acquired)) = done.result else { panic!("{done:?}") };
            lock = Some(acquired);
        }
        lock.is_some()
    });
    let token = it.engine.into_token(lock.expect("it was acquired")).expect("it is held");
    it.engine.release_token(&both, token, 0).unwrap();
    it.turn_until("it is released", |engine| {
        engine.poll_completion().is_some_and(|done| {
            matches!(done.result, Ok(Outcome::Released(ReleaseOutcome::Released)))
        })
    });
    fleet.wait_empty();
}

#[test]
fn engine_behind_a_descriptor_locks_sets() {
    let fleet = Fleet::start(3);
    let mut locks = FdEngine::new(config(fleet.urls())).expect("a good configuration");
    let both = KeySet::new(["a", "b"]).unwrap();
    locks.batch().acquire(&both, TTL, 0).unwrap();
    let mut lock = None;
    eventually(SOON, "it has the lock", || {
        drop(locks.tick().expect("the poller works"));
        if let Some(done) = locks.poll_completion() {
            let Ok(Outcome::Acquired(acquired)) = done.result else { panic!("{done:?}") };
            lock = Some(acquired);
        }
        lock.is_some()
    });
    locks.batch().release(lock.expect("it was acquired"), 0);
    eventually(SOON, "it is released", || {
        drop(locks.tick().expect("the poller works"));
        locks.poll_completion().is_some()
    });
    fleet.wait_empty();
}
