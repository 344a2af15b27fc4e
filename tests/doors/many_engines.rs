//! Many engines in one program: ten on one poller, two on one thread, one that moved to another.

use super::*;
use mio::{Events, Poll, Token};
use redlatch::{Completion, Engine, Lock, LockOptions, Outcome};

const ENGINES: usize = 10;

/// What one of the engines has done so far.
struct One {
    engine: Engine,
    base: usize,
    done: u64,
    asked: u64,
}

/// Engines on one poller.
struct Crowd {
    poll: Poll,
    events: Events,
    all: Vec<One>,
}

impl Crowd {
    fn new(fleet: &Fleet, count: usize) -> Crowd {
        let poll = Poll::new().expect("a poller");
        let engine = |number: usize| {
            // The tokens of the engines follow each other without a gap: each engine has one for
            // each node, and one more.
            let base = 1000 + number * (fleet.len() + 1);
            let registry = poll.registry();
            let engine = Engine::new(config(fleet.urls()), registry, Token(base));
            One { engine: engine.expect("good settings"), base, done: 0, asked: 0 }
        };
        let all = (0..count).map(engine).collect();
        Crowd { poll, events: Events::with_capacity(64), all }
    }

    /// One turn of all engines. It ends when an event comes.
    fn turn(&mut self) {
        let sleeps = self.all.iter_mut().filter_map(|one| one.engine.prepare());
        let timeout = sleeps.min().map_or(LOST, |sleep| sleep.min(LOST));
        self.poll.poll(&mut self.events, Some(timeout)).expect("the poller works");
        assert!(!self.events.is_empty() || timeout < LOST, "nobody was woken");
        for event in &self.events {
            let token = event.token();
            let owners: Vec<usize> =
                (0..self.all.len()).filter(|&it| self.all[it].engine.owns(token)).collect();
            let [owner] = owners[..] else { panic!("{token:?} is of {owners:?}") };
            assert_eq!((token.0 - 1000) / 4, owner, "its tokens begin at its base");
            for (number, one) in self.all.iter_mut().enumerate() {
                assert_eq!(one.engine.handle_event(event), number == owner);
            }
        }
    }
}

#[test]
fn ten_engines_live_on_one_poller_through_reconnects() {
    let fleet = Fleet::start(3);
    let mut crowd = Crowd::new(&fleet, ENGINES);
    let mut dice = Dice::of_this_run();
    let start = Instant::now();
    let mut turns = 0_u64;
    // Each engine goes on until it has lost and remade a connection to each node.
    let reconnected = |one: &One| one.engine.stats().nodes.iter().all(|node| node.connections > 1);
    while !crowd.all.iter().all(|one| reconnected(one) && one.done > 200) {
        assert!(start.elapsed() < 60 * SECOND, "no end to it: {:?}", crowd.all[0].engine);
        turns += 1;
        if turns % 50 == 0 {
            kill_some(&fleet[(turns / 50) as usize % 3], 20, &mut dice);
        }
        crowd.turn();
        for one in &mut crowd.all {
            while let Some(Completion { data, result, .. }) = one.engine.poll_completion() {
                assert_eq!(data / 1_000_000, one.base as u64, "another's completion");
                one.done += 1;
                if let Ok(Outcome::Acquired(lock)) = result {
                    one.engine.release(lock, data);
                }
            }
            if one.engine.coordinator().open_ops() == 0 {
                one.asked += 1;
                let data = one.base as u64 * 1_000_000 + one.asked;
                let key = format!("{}:{}", one.base, one.asked % 7);
                one.engine.acquire(key, LockOptions::once(TTL), data).unwrap();
            }
        }
    }
    let counts: Vec<u64> = crowd.all.iter().map(|one| one.done).collect();
    println!("{turns} turns, ends: {counts:?}");
    crowd.all.iter_mut().for_each(|one| one.engine.release_all());
    while crowd.all.iter().any(|one| one.engine.coordinator().open_records() > 0) {
        assert!(start.elapsed() < 60 * SECOND, "something is never given back");
        crowd.turn();
        // The results of the requests that have ended do not matter.
        crowd.all.iter_mut().for_each(|one| while one.engine.poll_completion().is_some() {});
    }
    fleet.wait_empty();
}

fn lock_of(crowd: &mut Crowd, number: usize) -> Lock {
    loop {
        if let Some(done) = crowd.all[number].engine.poll_completion() {
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("no lock") };
            return lock;
        }
        crowd.turn();
    }
}

#[test]
fn two_engines_on_one_thread_contend_and_one_ends_before_the_other() {
    let fleet = Fleet::start(3);
    let mut crowd = Crowd::new(&fleet, 2);
    while !crowd.all.iter().all(|one| one.engine.coordinator().ready().len() == 3) {
        crowd.turn();
    }
    crowd.all[0].engine.acquire("a", LockOptions::once(TTL), 1).unwrap();
    let first = lock_of(&mut crowd, 0);
    let wait = redlatch::LockOptions::new(TTL).wait(HOUR);
    crowd.all[1].engine.acquire("a", wait, 2).unwrap();
    for _ in 0..3 {
        crowd.turn();
    }
    assert!(crowd.all[1].engine.poll_completion().is_none(), "it is the other one's");
    crowd.all[0].engine.release(first, 3);
    let second = lock_of(&mut crowd, 1);
    // The first engine leaves the poller, and the sockets of the second one stay.
    drop(crowd.all.remove(0));
    let left = &mut crowd.all[0];
    left.engine.release(second, 4);
    let start = Instant::now();
    loop {
        let timeout = left.engine.prepare().map_or(LOST, |sleep| sleep.min(LOST));
        crowd.poll.poll(&mut crowd.events, Some(timeout)).unwrap();
        for event in &crowd.events {
            assert!(left.engine.handle_event(event), "an event of one that is gone");
        }
        if left.engine.poll_completion().is_some() {
            break;
        }
        assert!(start.elapsed() < LOST);
    }
    eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn an_engine_is_made_on_one_thread_and_used_on_another() {
    let fleet = Fleet::start(3);
    let mut crowd = Crowd::new(&fleet, 1);
    crowd.all[0].engine.acquire("asked here", LockOptions::once(TTL), 1).unwrap();
    let elsewhere = std::thread::spawn(move || {
        let lock = lock_of(&mut crowd, 0);
        crowd.all[0].engine.release_nowait(&lock);
        while crowd.all[0].engine.coordinator().ready().len() < 3 {
            crowd.turn();
        }
        crowd.all[0].engine.acquire("on the other thread", LockOptions::once(TTL), 2).unwrap();
        let lock = lock_of(&mut crowd, 0);
        (crowd, lock)
    });
    let (mut crowd, lock) = elsewhere.join().expect("the other thread is well");
    crowd.all[0].engine.release(lock, 3);
    while crowd.all[0].engine.poll_completion().is_none() {
        crowd.turn();
    }
    eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn an_engine_outlives_the_poll_it_was_made_on() {
    let fleet = Fleet::start(3);
    let Crowd { poll, events, mut all } = Crowd::new(&fleet, 1);
    let mut crowd = Crowd { poll, events, all: vec![all.remove(0)] };
    while crowd.all[0].engine.coordinator().ready().len() < 3 {
        crowd.turn();
    }
    crowd.all[0].engine.acquire("a", LockOptions::once(TTL), 1).unwrap();
    let lock = lock_of(&mut crowd, 0);
    let Crowd { poll, events, mut all } = crowd;
    drop((poll, events));
    // No poller wakes the engine any more; it still writes and reads when it is called.
    let engine = &mut all[0].engine;
    engine.release(lock, 2);
    engine.prepare();
    eventually(SOON, "its release has arrived", || fleet.keys_everywhere().is_empty());
    drop(all);
}

#[test]
fn engine_refuses_a_base_token_that_leaves_too_few_tokens() {
    let poll = Poll::new().unwrap();
    let config = config(["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]);
    let base = |below: usize| Token(usize::MAX - below);
    for below in 0..3 {
        let refused = Engine::new(config.clone(), poll.registry(), base(below));
        assert!(matches!(refused, Err(redlatch::ConfigError::System { .. })), "{below}");
    }
    let last = Engine::new(config, poll.registry(), base(3)).unwrap();
    assert!(last.owns(base(0)) && last.owns(base(3)) && !last.owns(base(4)));
}
