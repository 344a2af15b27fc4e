//! Very many locks with ttls and node timeouts of a few milliseconds, most of which fail: they
//! expire, are cancelled, dropped or lost while others are in flight.
//!
//! Unlike in [`stress`](super::stress), every request here has timers, and most of them fire. The
//! test looks for a panic, a request that ends twice or never, two holders of one key, and a key
//! that is left.
//!
//! `REDLATCH_TEST_STRESS=1000000` sets how many locks are asked for in each part, and adds parts
//! with up to 4,096 in flight.

mod clients;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt::Debug;

use super::*;
use clients::{ByHand, OnEngine};
use redlatch::{AutoExtend, LockOptions, clock};

#[test]
fn engine_with_short_ttls_has_no_two_holders_and_leaves_no_key() {
    short_ttls::<OnEngine>();
}

#[test]
fn shared_client_with_short_ttls_has_no_two_holders_and_leaves_no_key() {
    short_ttls::<ByHand>();
}

/// The most slots in use at once: a lock that is requested, held, extended or released takes one.
const AT_ONCE: [usize; 2] = [512, 4096];

/// How many locks are requested in an ordinary run.
const USUALLY: u64 = 4_000;

/// A run waits for this many grants, however many requests failed.
const GRANTS: u64 = 20;

/// How long a run may take in which all requests fail.
const LONGEST: Duration = Duration::from_secs(60);

/// At most this part of the slots gets a request in one turn.
const ASKED_IN_A_TURN: usize = 16;

/// Connections are killed after this many ended requests.
const KILLED_EVERY: u64 = 1_000;

/// The kinds of requests for a lock.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub ttl: Duration,
    pub wait: Duration,
    pub kept: bool,
}

impl Ask {
    pub fn options(self) -> LockOptions {
        let options = LockOptions::new(self.ttl).wait(self.wait);
        if self.kept { options.auto_extend(AutoExtend::at_most(4 * self.ttl)) } else { options }
    }
}

/// How a request ended.
#[derive(Debug)]
pub enum End<H> {
    Granted(H),
    /// The extend ended; whether it was won. In both cases the lock can still be read.
    Extended(H, bool),
    Released,
    /// The request failed, or the renewal of the lock that it was granted failed.
    Failed,
}

/// A client that the test drives, and the locks that it holds.
pub trait Locks: Sized {
    /// The handle of a lock that is held, or was.
    type Held: Debug;

    fn open(config: Config) -> Self;

    /// Requests a lock. This request, and all later ones about the lock, end under `number`.
    fn acquire(&mut self, key: &str, ask: Ask, number: u64);

    fn extend(&mut self, held: Self::Held, ttl: Duration, number: u64);

    fn release(&mut self, held: Self::Held, number: u64);

    /// Releases a lock without waiting for the result.
    fn give_up(&mut self, held: Self::Held);

    /// Drops the caller of an acquire or extend, which then gets no result.
    fn cancel(&mut self, number: u64);

    /// The deadline up to which the holder of this lock believes in it.
    fn deadline(&self, held: &Self::Held) -> Option<clock::Instant>;

    /// Sleeps for at most this long, and returns the requests that ended.
    fn turn(&mut self, most: Duration) -> Vec<(u64, End<Self::Held>)>;

    /// Releases all locks, in ten seconds at most, and returns how many keys may remain.
    fn close(self) -> usize;
}

/// What happens with one lock, from its request to its release.
struct Slot<H> {
    key: String,
    ask: Ask,
    stage: Stage<H>,
}

enum Stage<H> {
    Acquiring,
    Held(H),
    /// An extend is in flight. Until its answer comes, the holder believes in the lock up to this
    /// moment.
    Extending(Option<clock::Instant>),
    Releasing,
}

/// The results of a run.
#[derive(Debug, Default)]
struct Tally {
    /// The most slots in use at once.
    most: usize,
    granted: u64,
    refused: u64,
    cancelled: u64,
    extended: u64,
    not_extended: u64,
    released: u64,
    not_released: u64,
    dropped: u64,
    lost: u64,
}

/// Runs with 512 slots, and in a long run also with 4,096.
fn short_ttls<L: Locks>() {
    let wanted = number("REDLATCH_TEST_STRESS");
    let sizes = if wanted.is_some() { &AT_ONCE[..] } else { &AT_ONCE[..1] };
    for &at_once in sizes {
        for nodes in [3, 5] {
            run_on_nodes::<L>(nodes, at_once, wanted.unwrap_or(USUALLY));
        }
    }
}

fn run_on_nodes<L: Locks>(nodes: usize, at_once: usize, wanted: u64) {
    let fleet = Fleet::start(nodes);
    let mut dice = Dice::of_this_run();
    let mut timeouts = Vec::new();
    // Two clients in one thread, which share some of their keys.
    let clients = (0..2).map(|_| {
        let timeout = millis(dice.between(1, 10));
        timeouts.push(timeout);
        let config = Config::new(fleet.urls()).expect("good addresses").node_timeout(timeout);
        L::open(config.restart_guard(RestartGuard::Off).reconnect(millis(1), millis(20)))
    });
    let clients = clients.collect();
    let (slots, later, holders) = (HashMap::new(), BinaryHeap::new(), HashMap::new());
    let (tally, number, ends, longest_wait) = (Tally::default(), 0, 0, at_once as u64);
    let mut run = Run { clients, slots, later, holders, dice, longest_wait, tally, number, ends };
    let took = run.until_over(&fleet, at_once, wanted);
    println!(
        "{nodes} nodes, {at_once} in flight, node timeouts {timeouts:?}: {} ends in {took:.1?}: \
         {:?}",
        run.ends, run.tally
    );
    for client in run.clients {
        assert_eq!(client.close(), 0, "keys that may be left");
    }
    eventually(10 * SECOND, "nothing is left", || fleet.keys_everywhere().is_empty());
}

struct Run<L: Locks> {
    clients: Vec<L>,
    slots: HashMap<u64, Slot<L::Held>>,
    /// By moment: the slots whose next action is due then. A slot may be gone by that time.
    later: BinaryHeap<Reverse<(Instant, u64)>>,
    /// By key: the client that believes in its lock, or the last one that did.
    holders: HashMap<String, Vec<u64>>,
    dice: Dice,
    /// How long a lock is held, in milliseconds. The longer, the more locks are in flight.
    longest_wait: u64,
    tally: Tally,
    /// The number of the next slot.
    number: u64,
    /// How many slots have ended.
    ends: u64,
}

impl<L: Locks> Run<L> {
    fn until_over(&mut self, fleet: &Fleet, at_once: usize, wanted: u64) -> Duration {
        let start = Instant::now();
        let (mut last, mut killed) = ((0, start), 0);
        loop {
            let goes_on = self.number < wanted || self.tally.granted < GRANTS;
            // A turn makes few requests, so that it takes less than a ttl.
            let more = (at_once - self.slots.len()).min(at_once / ASKED_IN_A_TURN);
            (0..more).filter(|_| goes_on).for_each(|_| self.ask());
            self.tally.most = self.tally.most.max(self.slots.len());
            if self.slots.is_empty() {
                return start.elapsed();
            }
            for client in 0..self.clients.len() {
                for (number, end) in self.clients[client].turn(millis(1)) {
                    self.ended(number, end);
                }
            }
            self.act_on_due_slots();
            if self.ends > last.0 {
                last = (self.ends, Instant::now());
            }
            let left = self.slots.len();
            assert!(last.1.elapsed() < 3 * LOST, "none of {left} ends: {:?}", self.tally);
            let vain = self.tally.granted < GRANTS && start.elapsed() > LONGEST;
            assert!(!vain, "nothing came of it: {:?}", self.tally);
            if self.ends / KILLED_EVERY > killed {
                killed = self.ends / KILLED_EVERY;
                kill_some(&fleet[self.dice.place(fleet.len())], 30, &mut self.dice);
            }
        }
    }

    fn client(&mut self, number: u64) -> &mut L {
        let place = number as usize % self.clients.len();
        &mut self.clients[place]
    }

    fn ask(&mut self) {
        let (number, dice) = (self.number, &mut self.dice);
        self.number += 1;
        let kept = dice.roll(4) == 0;
        let ttl = millis(dice.between(if kept { 10 } else { 5 }, 50));
        let wait = millis(if dice.roll(4) == 0 { 0 } else { dice.below(self.longest_wait) });
        let key = match dice.roll(16) {
            0 => format!("shared:{}", dice.roll(4)),
            _ => format!("own:{number}"),
        };
        let ask = Ask { ttl, wait, kept };
        if dice.roll(8) == 0 {
            self.later.push(Reverse((Instant::now() + millis(dice.below(12)), number)));
        }
        self.client(number).acquire(&key, ask, number);
        self.slots.insert(number, Slot { key, ask, stage: Stage::Acquiring });
    }

    fn over(&mut self, number: u64) {
        let slot = self.slots.remove(&number).expect("it was there");
        if let Some(numbers) = self.holders.get_mut(&slot.key) {
            numbers.retain(|&it| it != number);
            if numbers.is_empty() {
                self.holders.remove(&slot.key);
            }
        }
        self.ends += 1;
    }

    fn ended(&mut self, number: u64, end: End<L::Held>) {
        let Some(slot) = self.slots.get_mut(&number) else {
            panic!("{number} ends twice, or after its caller was gone: {end:?}");
        };
        match (&slot.stage, end) {
            (Stage::Acquiring, End::Granted(held)) => {
                self.tally.granted += 1;
                self.on_held(number, held);
            }
            (Stage::Extending(_), End::Extended(held, well)) => {
                *(if well { &mut self.tally.extended } else { &mut self.tally.not_extended }) += 1;
                self.on_held(number, held);
            }
            (Stage::Acquiring, End::Failed) => {
                self.tally.refused += 1;
                self.over(number);
            }
            (Stage::Releasing, End::Released) => {
                self.tally.released += 1;
                self.over(number);
            }
            (Stage::Releasing, End::Failed) => {
                self.tally.not_released += 1;
                self.over(number);
            }
            // The renewals of the lock have ended. Its holder releases it later.
            (Stage::Held(_), End::Failed) if slot.ask.kept => self.tally.lost += 1,
            (_, end) => panic!("{number} for {} ends as {end:?}", slot.key),
        }
    }

    /// The lock is held, or an extend of it failed. In both cases its holder uses it again later.
    fn on_held(&mut self, number: u64, held: L::Held) {
        let slot = self.slots.get_mut(&number).expect("it was there");
        slot.stage = Stage::Held(held);
        let most = slot.ask.ttl.as_millis() as u64 * 3 / 2;
        let key = slot.key.clone();
        self.later.push(Reverse((Instant::now() + millis(self.dice.below(most)), number)));
        let holders = self.holders.entry(key.clone()).or_default();
        if !holders.contains(&number) {
            holders.push(number);
        }
        let now = clock::now();
        let believing = self.holders[&key].iter().filter(|&&it| self.is_believed_at(it, now));
        let believing: Vec<_> = believing.collect();
        assert!(believing.len() < 2, "{believing:?} believe that they hold {key}");
    }

    fn is_believed_at(&self, number: u64, now: clock::Instant) -> bool {
        let client = &self.clients[number as usize % self.clients.len()];
        let until = match &self.slots[&number].stage {
            Stage::Held(held) => client.deadline(held),
            Stage::Extending(until) => *until,
            Stage::Acquiring | Stage::Releasing => None,
        };
        until.is_some_and(|until| until > now)
    }

    fn act_on_due_slots(&mut self) {
        while let Some(&Reverse((at, number))) = self.later.peek() {
            if at > Instant::now() {
                return;
            }
            self.later.pop();
            if let Some(slot) = self.slots.get_mut(&number) {
                match std::mem::replace(&mut slot.stage, Stage::Releasing) {
                    Stage::Acquiring | Stage::Extending(_) => self.drop_caller(number),
                    Stage::Held(held) => self.act_as_holder(number, held),
                    Stage::Releasing => {}
                }
            }
        }
    }

    fn drop_caller(&mut self, number: u64) {
        self.client(number).cancel(number);
        self.tally.cancelled += 1;
        self.over(number);
    }

    fn act_as_holder(&mut self, number: u64, held: L::Held) {
        let now = clock::now();
        let until = self.client(number).deadline(&held);
        let kept = self.slots[&number].ask.kept;
        match self.dice.roll(8) {
            0 | 1 => {
                self.tally.dropped += 1;
                self.client(number).give_up(held);
                self.over(number);
            }
            2 | 3 if !kept => {
                let ttl = millis(self.dice.between(5, 50));
                if self.dice.roll(8) == 0 {
                    let at = Instant::now() + millis(self.dice.below(4));
                    self.later.push(Reverse((at, number)));
                }
                self.set_stage(number, Stage::Extending(until));
                self.client(number).extend(held, ttl, number);
            }
            // The renewal goes on up to the deadline of the lock, after which the holder has to
            // stop.
            4 | 5 if until.is_some_and(|until| until > now) => {
                let left = until.map_or(Duration::ZERO, |until| until.saturating_since(now));
                self.later.push(Reverse((Instant::now() + left, number)));
                self.set_stage(number, Stage::Held(held));
            }
            _ => self.client(number).release(held, number),
        }
    }

    fn set_stage(&mut self, number: u64, stage: Stage<L::Held>) {
        self.slots.get_mut(&number).expect("it was there").stage = stage;
    }
}
