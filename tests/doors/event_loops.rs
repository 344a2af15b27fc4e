//! The descriptor of an [`FdEngine`] in a caller's own event loop, and callers without such a loop:
//! a game that ticks once a frame, and another thread.
//!
//! The hazard is a timeout: if the loop sleeps for a while at most, a wake-up that was lost shows
//! as a pause and not as a failure. So these loops sleep until what they wait for counts as lost.

use super::*;
use redlatch::{Completion, FdEngine, Lock, LockOptions, Outcome, ReleaseOutcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TOKEN: mio::Token = mio::Token(7);

/// An event loop of the caller's that watches the descriptor.
pub enum Outer {
    /// poll(2), level-triggered.
    Level,
    /// epoll, edge-triggered, as mio has it: an event that was reported is not reported again.
    Edge(mio::Poll, mio::Events),
}

/// Both kinds of loops, for tests of what holds in each.
pub const LOOPS: [fn(&mut FdEngine) -> Outer; 2] = [|_| Outer::Level, Outer::edge];

/// For each of `LOOPS`: a loop, and an engine of its own whose three nodes are ready.
pub fn ready_loops(config: Config) -> impl Iterator<Item = (FdEngine, Outer)> {
    LOOPS.into_iter().map(move |make| {
        let mut locks = FdEngine::new(config.clone()).unwrap();
        let mut outer = make(&mut locks);
        outer.wait_ready(&mut locks, 3);
        (locks, outer)
    })
}

impl Outer {
    pub fn edge(locks: &mut FdEngine) -> Outer {
        let poll = mio::Poll::new().expect("a poller");
        let interest = mio::Interest::READABLE;
        poll.registry().register(locks, TOKEN, interest).expect("the descriptor can be polled");
        Outer::Edge(poll, mio::Events::with_capacity(4))
    }

    /// Whether the descriptor wakes the loop within this time.
    pub fn wakes(&mut self, locks: &FdEngine, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let woken = match self {
                Outer::Level => {
                    let left = Timespec::try_from(left).expect("a time that a test waits fits");
                    match poll(&mut [PollFd::new(locks, PollFlags::IN)], Some(&left)) {
                        Err(rustix::io::Errno::INTR) => false,
                        ready => ready.expect("poll works") == 1,
                    }
                }
                Outer::Edge(poll, events) => match poll.poll(events, Some(left)) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => false,
                    polled => polled.map(|()| !events.is_empty()).expect("epoll works"),
                },
            };
            if woken || left.is_zero() {
                return woken;
            }
        }
    }

    /// Waits for the descriptor and ticks, again and again, until `holds` returns true. Only the
    /// descriptor wakes this loop.
    #[track_caller]
    pub fn drive_until(
        &mut self,
        locks: &mut FdEngine,
        what: &str,
        mut holds: impl FnMut(&mut FdEngine) -> bool,
    ) {
        let start = Instant::now();
        while !holds(locks) {
            let left = (3 * LOST).saturating_sub(start.elapsed());
            assert!(self.wakes(locks, left), "the descriptor is silent: {what}: {locks:?}");
            locks.tick().expect("the poller works");
        }
    }

    #[track_caller]
    pub fn wait_ready(&mut self, locks: &mut FdEngine, nodes: usize) {
        self.drive_until(locks, "the nodes are ready", |locks| {
            locks.engine().coordinator().ready().len() == nodes
        });
    }

    /// The lock of the next request that ends.
    #[track_caller]
    pub fn won(&mut self, locks: &mut FdEngine) -> Lock {
        match self.completion(locks).result {
            Ok(Outcome::Acquired(lock)) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    #[track_caller]
    pub fn completion(&mut self, locks: &mut FdEngine) -> Completion {
        let mut done = None;
        self.drive_until(locks, "a request ends", |locks| {
            done = locks.poll_completion();
            done.is_some()
        });
        done.expect("it was there a moment ago")
    }

    /// Waits and ticks until the descriptor wakes the loop no more for a while. Returns how often
    /// the loop was woken.
    #[track_caller]
    pub fn until_silent(&mut self, locks: &mut FdEngine) -> u32 {
        for wakes in 0..200 {
            if !self.wakes(locks, millis(200)) {
                return wakes;
            }
            locks.tick().expect("the poller works");
        }
        panic!("it wakes the loop for nothing, again and again: {locks:?}");
    }
}

/// Acquires and releases one lock.
fn lock_once(outer: &mut Outer, locks: &mut FdEngine, key: &str) {
    locks.batch().acquire(key, LockOptions::once(TTL), 1).unwrap();
    let lock = outer.won(locks);
    locks.batch().release(lock, 2);
    let released = outer.completion(locks);
    assert_eq!(
        (released.data, released.result),
        (2, Ok(Outcome::Released(ReleaseOutcome::Released)))
    );
}

#[test]
fn engine_runs_in_every_event_loop() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        for round in 0..200 {
            lock_once(&mut outer, &mut locks, &format!("key:{round}"));
        }
        drop(locks);
        fleet.wait_empty();
    }
}

#[test]
fn descriptor_that_is_registered_and_deregistered_in_turns_misses_nothing() {
    let fleet = Fleet::start(3);
    let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
    let mut outer = Outer::edge(&mut locks);
    outer.wait_ready(&mut locks, 3);
    let Outer::Edge(ref poll, _) = outer else { unreachable!("it was made so") };
    let registry = poll.registry().try_clone().unwrap();
    for round in 0..20 {
        registry.deregister(&mut locks).unwrap();
        locks.batch().acquire(format!("key:{round}"), LockOptions::once(TTL), round).unwrap();
        eventually(SOON, "the answers are there", || fleet.keys_everywhere().len() == 3);
        // Input that came while the descriptor was not registered is reported after the
        // registration.
        registry.register(&mut locks, TOKEN, mio::Interest::READABLE).unwrap();
        registry.reregister(&mut locks, TOKEN, mio::Interest::READABLE).unwrap();
        let lock = outer.won(&mut locks);
        locks.batch().release(lock, round);
        assert_eq!(outer.completion(&mut locks).data, round);
        eventually(SOON, "all let go", || fleet.keys_everywhere().is_empty());
    }
}

#[test]
fn a_game_loop_ticks_once_a_frame_and_waits_for_nothing() {
    let fleet = Fleet::start(3);
    let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
    let (mut frames, mut taken, mut released) = (0_u64, 0, 0);
    let start = Instant::now();
    while released < 100 {
        frames += 1;
        let before = Instant::now();
        locks.tick().unwrap();
        while let Some(done) = locks.poll_completion() {
            match done.result {
                Ok(Outcome::Acquired(lock)) => {
                    taken += 1;
                    locks.batch().release(lock, 0);
                }
                Ok(Outcome::Released(_)) => released += 1,
                other => panic!("{other:?}"),
            }
        }
        let ready = locks.engine().coordinator().ready().len() == 3;
        if ready && locks.engine().coordinator().open_ops() == 0 && taken < 100 {
            locks.batch().acquire("frame", LockOptions::once(TTL), frames).unwrap();
        }
        assert!(before.elapsed() < LOST, "a frame waited");
        assert!(start.elapsed() < 6 * LOST, "{taken} of 100 in {frames} frames: {locks:?}");
        std::thread::yield_now();
    }
    println!("100 locks in {frames} frames");
}

#[test]
fn engine_moves_between_threads() {
    let fleet = Fleet::start(3);
    for make in LOOPS {
        let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
        locks.batch().acquire("asked here", LockOptions::once(TTL), 1).unwrap();
        let elsewhere = std::thread::spawn(move || {
            let mut outer = make(&mut locks);
            let early = outer.completion(&mut locks);
            assert_eq!(early.data, 1);
            outer.wait_ready(&mut locks, 3);
            lock_once(&mut outer, &mut locks, "on the other thread");
            (outer, locks)
        });
        let (mut outer, mut locks) = elsewhere.join().expect("the other thread is well");
        lock_once(&mut outer, &mut locks, "and back here");
    }
}
