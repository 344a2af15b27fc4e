//! A stress run of a door (see `doors`): very many requests, connections that are killed at random,
//! and a watchdog. The watchdog finds a stall and prints the state of the door at its last sleep.
//!
//! `REDLATCH_TEST_STRESS=1000000` sets how many requests end. The hazard is a timer that makes up
//! for a lost wake-up: no request here has a timer that fires before the watchdog does.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use redlatch::{LockOptions, Stats};

/// A way to drive the library: the test makes requests, and the door returns how they end.
pub trait Door: Sized + 'static {
    /// A lock that is held.
    type Held;

    /// How many requests are in flight at once.
    const AT_ONCE: u64;

    /// How many requests end in an ordinary run.
    const USUALLY: u64;

    fn open(config: &Config) -> Self;

    /// Requests a lock. The request ends under `number`.
    fn acquire(&mut self, key: &str, options: LockOptions, number: u64);

    /// Releases a lock. The release ends under `number`.
    fn release(&mut self, held: Self::Held, number: u64);

    /// Returns the next request that ends, and sleeps until one does. Before each sleep the door
    /// reports its state to `watch`.
    fn next(&mut self, watch: &Watch) -> (u64, End<Self::Held>);

    /// Releases all locks, in ten seconds at most. Returns how many keys may remain, and the
    /// counters.
    fn close(self) -> (usize, Stats);
}

/// How a request ended.
pub enum End<H> {
    Granted(H),
    Released,
    Refused,
}

/// The state of a door that the watchdog prints.
#[derive(Default)]
pub struct Watch {
    ends: AtomicU64,
    looks: Mutex<String>,
}

impl Watch {
    /// The door reports this state, and goes to sleep.
    pub fn sleeps(&self, door: &impl Debug) {
        use std::fmt::Write;
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.clear();
        write!(looks, "{door:?}").expect("a string takes everything");
    }
}

/// The figures of a run.
#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    released: u64,
    refused: u64,
    longest: Duration,
    /// The longest time between two ended requests.
    gap: Duration,
    took: Duration,
    left: usize,
    stats: Stats,
}

/// A request in flight.
struct Asked {
    at: Instant,
    key: String,
    shared: bool,
}

/// The requests contend for these few keys. In addition each request number has a key of its own.
const SHARED_KEYS: u32 = 3;

/// Runs a door under a watchdog, and kills connections to its nodes at random.
pub fn stress<D: Door>() {
    let wanted: u64 = number("REDLATCH_TEST_STRESS").unwrap_or(D::USUALLY);
    // Of three nodes two decide, which can hide a lost wake-up of the third. So the test also runs
    // with one node.
    run_on_nodes::<D>(3, wanted - wanted / 4);
    run_on_nodes::<D>(1, wanted / 4);
}

fn run_on_nodes<D: Door>(nodes: usize, wanted: u64) {
    let fleet = Fleet::start(nodes);
    let mut dice = Dice::of_this_run();
    let watch = Arc::new(Watch::default());
    let (sender, result) = mpsc::channel();
    // Short pauses before reconnects: connections are killed again and again.
    let config = config(fleet.urls()).reconnect(millis(1), millis(20));
    let own = Arc::clone(&watch);
    let seed = u64::from(dice.roll(u32::MAX));
    let runner = std::thread::spawn(move || run::<D>(&config, wanted, seed, &own, &sender));
    let (mut last, mut since) = (0, Instant::now());
    // At first all connections of a node, so that a run in which few moments come to kill some has
    // lost one all the same.
    let mut percent = 100;
    let tally: Tally = loop {
        match result.recv_timeout(millis(u64::from(20 + dice.roll(60)))) {
            Ok(tally) => break tally,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match runner.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => panic!("it ended without a word"),
            },
        }
        let ends = watch.ends.load(Ordering::Relaxed);
        if ends == last {
            if since.elapsed() > LOST {
                let looks = watch.looks.lock().unwrap_or_else(PoisonError::into_inner);
                panic!("{ends} ends of {wanted}, none for {LOST:?}. It fell asleep as {looks}");
            }
            // If the interface missed its wake-up, a connection that is killed now would wake it.
            continue;
        }
        (last, since) = (ends, Instant::now());
        kill_some(&fleet[dice.roll(nodes as u32) as usize], percent, &mut dice);
        percent = 40;
    };
    report(wanted, &tally);
    assert_eq!(tally.left, 0, "keys that may be left");
    eventually(10 * SECOND, "nothing is left", || fleet.keys_everywhere().is_empty());
}

fn report(wanted: u64, tally: &Tally) {
    let connections: Vec<u64> = tally.stats.nodes.iter().map(|node| node.connections).collect();
    let Tally { granted, released, refused, longest, gap, took, .. } = tally;
    println!(
        "{} nodes: {wanted} ends in {took:.1?}: {granted} granted, {released} released, \
         {refused} refused; the longest request {longest:.1?}, no end for at most {gap:.1?}; \
         connections to each node: {connections:?}",
        connections.len(),
    );
    assert!(*granted > wanted / 4, "most of it came to nothing");
    let killed = connections.iter().sum::<u64>() > connections.len() as u64;
    assert!(wanted < 10_000 || killed, "no connection was killed");
}

/// One run, which has a thread of its own.
struct Run<D: Door> {
    door: D,
    dice: Dice,
    tally: Tally,
    /// By request number: the last request.
    asked: Vec<Asked>,
    /// Which keys are held.
    held: HashSet<String>,
    /// Locks that are released later, oldest first.
    kept: VecDeque<(u64, D::Held)>,
    /// The numbers that have no request at the moment.
    idle: Vec<u64>,
}

fn run<D: Door>(config: &Config, wanted: u64, seed: u64, watch: &Watch, sender: &Sender<Tally>) {
    let mut door = D::open(config);
    let mut dice = Dice::printed(seed);
    let start = Instant::now();
    let asked = (0..D::AT_ONCE).map(|number| request_lock(&mut door, number, &mut dice)).collect();
    let (tally, held, kept) = (Tally::default(), HashSet::new(), VecDeque::new());
    let mut run = Run { door, dice, tally, asked, held, kept, idle: Vec::new() };
    let (mut ends, mut last) = (0, start);
    while run.idle.len() < D::AT_ONCE as usize {
        let (number, end) = run.door.next(watch);
        ends = watch.ends.fetch_add(1, Ordering::Relaxed) + 1;
        run.tally.gap = run.tally.gap.max(last.elapsed());
        last = Instant::now();
        // Sometimes only one request is open, so that no other request can make up for a lost
        // wake-up.
        let at_once = match ends {
            ends if ends >= wanted => 0,
            ends if ends / 500 % 5 == 4 => 1,
            _ => D::AT_ONCE,
        };
        run.ended(number, end, at_once);
    }
    assert!(ends >= wanted, "it ended early");
    run.tally.took = start.elapsed();
    (run.tally.left, run.tally.stats) = run.door.close();
    let _ = sender.send(run.tally);
}

impl<D: Door> Run<D> {
    fn ended(&mut self, number: u64, end: End<D::Held>, at_once: u64) {
        let request = &mut self.asked[number as usize];
        self.tally.longest = self.tally.longest.max(request.at.elapsed());
        assert!(request.at.elapsed() < 2 * LOST, "{number}, for {}, took too long", request.key);
        match end {
            End::Granted(lock) => {
                self.tally.granted += 1;
                assert!(self.held.insert(request.key.clone()), "two hold {}", request.key);
                // A lock that other requests wait for is released at once.
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
                self.idle.push(number);
            }
        }
        while D::AT_ONCE - (self.idle.len() as u64) < at_once {
            let number = self.idle.pop().expect("fewer are under way than there are");
            self.asked[number as usize] = request_lock(&mut self.door, number, &mut self.dice);
        }
        let most = if at_once == D::AT_ONCE { at_once as usize / 4 } else { 0 };
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

fn request_lock<D: Door>(door: &mut D, number: u64, dice: &mut Dice) -> Asked {
    // Only some of the requests ever wait for others. The others go on, however long that takes.
    let shared = number % 4 == 0 && dice.roll(2) == 0;
    let (key, wait) = if shared {
        (format!("shared:{}", dice.roll(SHARED_KEYS)), HOUR)
    } else {
        // The wait is long enough for the nodes to be connected again.
        (format!("own:{number}"), SECOND)
    };
    let at = Instant::now();
    door.acquire(&key, LockOptions::new(TTL).wait(wait), number);
    Asked { at, key, shared }
}
