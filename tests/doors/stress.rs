//! A stress run of a door: very many requests, connections that are killed at random, and a
//! watchdog that finds a stall and tells what the door looked like when it went to sleep.
//!
//! `REDLATCH_TEST_STRESS=1000000` says how many ends there are to be. A further door is an
//! implementation of [`Door`]. The hazard is a timer that comes to the help of a lost wake-up: what
//! is asked here has none that ends before the watchdog does.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use redlatch::{LockOptions, Stats};

/// A door that requests go into, and ends come out of.
pub trait Door: Sized + 'static {
    /// A lock that is held.
    type Held;

    /// How many requests are under way at once.
    const AT_ONCE: u64;

    /// How many ends there are in an ordinary run.
    const USUALLY: u64;

    fn open(config: &Config) -> Self;

    /// Asks for a lock. It ends under `number`.
    fn acquire(&mut self, key: &str, options: LockOptions, number: u64);

    /// Gives a lock back, which ends under `number`.
    fn release(&mut self, held: Self::Held, number: u64);

    /// The next end, for which it sleeps as long as it takes; before each sleep it tells the watch
    /// what it looks like.
    fn next(&mut self, watch: &Watch) -> (u64, End<Self::Held>);

    /// Gives back what is left, for ten seconds at most: how many keys may remain, and what was
    /// counted.
    fn close(self) -> (usize, Stats);
}

/// What a request came to.
pub enum End<H> {
    Granted(H),
    Released,
    Refused,
}

/// What the watchdog sees of a door.
#[derive(Default)]
pub struct Watch {
    ends: AtomicU64,
    looks: Mutex<String>,
}

impl Watch {
    /// The door goes to sleep, and looks like this.
    pub fn sleeps(&self, door: &impl Debug) {
        use std::fmt::Write;
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.clear();
        write!(looks, "{door:?}").expect("a string takes everything");
    }
}

/// What a run came to.
#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    released: u64,
    refused: u64,
    longest: Duration,
    took: Duration,
    left: usize,
    stats: Stats,
}

/// A request under way.
struct Asked {
    at: Instant,
    key: String,
    shared: bool,
}

/// Few keys for which the requests contend, beside those that each has for itself.
const SHARED_KEYS: u32 = 3;

/// Runs a door, kills connections to its nodes at random, and watches.
pub fn stress<D: Door>() {
    let wanted = std::env::var("REDLATCH_TEST_STRESS").ok().and_then(|it| it.parse().ok());
    let wanted = wanted.unwrap_or(D::USUALLY);
    let fleet = Fleet::start(3);
    let mut dice = Dice::new(u64::from(std::process::id()));
    let watch = Arc::new(Watch::default());
    let (sender, result) = mpsc::channel();
    let (config, own) = (config(fleet.urls()), Arc::clone(&watch));
    let seed = u64::from(dice.roll(u32::MAX));
    let runner = std::thread::spawn(move || run::<D>(&config, wanted, seed, &own, &sender));
    let (mut last, mut since, mut gap) = (0, Instant::now(), Duration::ZERO);
    let tally: Tally = loop {
        match result.recv_timeout(millis(u64::from(2 + dice.roll(20)))) {
            Ok(tally) => break tally,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match runner.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => panic!("it ended without a word"),
            },
        }
        let ends = watch.ends.load(Ordering::Relaxed);
        if ends != last {
            (last, since) = (ends, Instant::now());
        }
        gap = gap.max(since.elapsed());
        if since.elapsed() > LOST {
            let looks = watch.looks.lock().unwrap_or_else(PoisonError::into_inner);
            panic!("{ends} ends of {wanted}, and none for {LOST:?}. It fell asleep as {looks}");
        }
        kill_some(&fleet[dice.roll(3) as usize], 40, &mut dice);
    };
    report(wanted, gap, &tally);
    assert_eq!(tally.left, 0, "keys that may be left");
    eventually(10 * SECOND, "nothing is left", || fleet.keys_everywhere().is_empty());
}

fn report(wanted: u64, gap: Duration, tally: &Tally) {
    let connections: Vec<u64> = tally.stats.nodes.iter().map(|node| node.connections).collect();
    let Tally { granted, released, refused, longest, took, .. } = tally;
    println!(
        "{wanted} ends in {took:.1?}: {granted} granted, {released} released, {refused} refused; \
         the longest request {longest:.1?}, no end for at most {gap:.1?}; connections to each \
         node: {connections:?}",
    );
    assert!(*granted > wanted / 4, "most of it came to nothing");
    assert!(wanted < 10_000 || connections.iter().all(|&count| count > 1), "nothing was killed");
}

/// One run, on a thread of its own.
struct Run<D: Door> {
    door: D,
    dice: Dice,
    tally: Tally,
    /// What each number was asked for last.
    asked: Vec<Asked>,
    /// Which keys are held.
    held: HashSet<String>,
    /// Locks that are given back later, oldest first.
    kept: VecDeque<(u64, D::Held)>,
    under_way: u64,
}

fn run<D: Door>(config: &Config, wanted: u64, seed: u64, watch: &Watch, sender: &Sender<Tally>) {
    let mut door = D::open(config);
    let mut dice = Dice::new(seed);
    let start = Instant::now();
    let asked = (0..D::AT_ONCE).map(|number| ask(&mut door, number, &mut dice)).collect();
    let (tally, held, kept) = (Tally::default(), HashSet::new(), VecDeque::new());
    let mut run = Run { door, dice, tally, asked, held, kept, under_way: D::AT_ONCE };
    while run.under_way > 0 {
        let (number, end) = run.door.next(watch);
        let ends = watch.ends.fetch_add(1, Ordering::Relaxed) + 1;
        run.ended(number, end, ends < wanted);
    }
    run.tally.took = start.elapsed();
    (run.tally.left, run.tally.stats) = run.door.close();
    let _ = sender.send(run.tally);
}

impl<D: Door> Run<D> {
    fn ended(&mut self, number: u64, end: End<D::Held>, goes_on: bool) {
        let request = &mut self.asked[number as usize];
        self.tally.longest = self.tally.longest.max(request.at.elapsed());
        assert!(request.at.elapsed() < 2 * LOST, "{number}, for {}, took too long", request.key);
        match end {
            End::Granted(lock) => {
                self.tally.granted += 1;
                assert!(self.held.insert(request.key.clone()), "two hold {}", request.key);
                // One that others wait for is given back at once.
                if request.shared {
                    self.release(number, lock);
                } else {
                    self.kept.push_back((number, lock));
                }
            }
            End::Released | End::Refused => {
                let released = matches!(end, End::Released);
                self.tally.released += u64::from(released);
                self.tally.refused += u64::from(!released);
                if goes_on {
                    self.asked[number as usize] = ask(&mut self.door, number, &mut self.dice);
                } else {
                    self.under_way -= 1;
                }
            }
        }
        let most = if goes_on { D::AT_ONCE as usize / 4 } else { 0 };
        while self.kept.len() > most {
            let (number, lock) = self.kept.pop_front().expect("there are more than so many");
            self.release(number, lock);
        }
    }

    fn release(&mut self, number: u64, lock: D::Held) {
        let request = &mut self.asked[number as usize];
        request.at = Instant::now();
        self.held.remove(&request.key);
        self.door.release(lock, number);
    }
}

fn ask<D: Door>(door: &mut D, number: u64, dice: &mut Dice) -> Asked {
    let shared = dice.roll(8) == 0;
    let (key, wait) = if shared {
        (format!("shared:{}", dice.roll(SHARED_KEYS)), HOUR)
    } else {
        (format!("own:{number}"), Duration::ZERO)
    };
    let at = Instant::now();
    door.acquire(&key, LockOptions::ttl(TTL).wait(wait), number);
    Asked { at, key, shared }
}
