//! The engine behind a descriptor, used by a caller that makes random calls, with nodes that
//! freeze, die and come back. Whenever the engine has a completion or work, the descriptor is
//! readable, or becomes readable without another call.
//!
//! `REDLATCH_TEST_DICE=7` repeats the random choices of one run, but not its timing.

use super::*;
use event_loops::LOOPS;
use redlatch::testing::master::Restart;
use redlatch::testing::tcp::Masters;
use redlatch::{AutoExtend, FdEngine, Lock, LockOptions, Op, Outcome, clock};

const STEPS: u32 = 1500;

/// A caller that drives an engine by its descriptor.
struct Anybody {
    locks: FdEngine,
    outer: Outer,
    dice: Dice,
    masters: Masters,
    held: Vec<Lock>,
    asked: Vec<Op>,
    completions: u32,
    wakes: u32,
}

impl Anybody {
    fn step(&mut self, step: u32) {
        match self.dice.roll(20) {
            0..=4 => self.acquire(step),
            5 | 6 => {
                if let Some(lock) = self.take_random_lock() {
                    self.locks.batch().release(lock, u64::from(step));
                }
            }
            7 => {
                if let Some(lock) = self.take_random_lock() {
                    self.locks.batch().release_nowait(&lock);
                }
            }
            8 => {
                if let Some(lock) = self.take_random_lock() {
                    let _ = self.locks.batch().extend(&lock, millis(400), u64::from(step));
                    self.held.push(lock);
                }
            }
            9 => {
                if !self.asked.is_empty() {
                    let op =
                        self.asked.swap_remove(self.dice.roll(self.asked.len() as u32) as usize);
                    self.locks.batch().cancel(op);
                }
            }
            10 | 11 => drop(self.locks.tick().expect("the poller works")),
            12 | 13 => self.take_completions(1),
            14 => self.take_completions(1000),
            15 => self.make_trouble(),
            _ => {
                let length = millis(u64::from(self.dice.roll(15)));
                self.sleep(length);
            }
        }
    }

    fn acquire(&mut self, step: u32) {
        let ttl = millis(u64::from(10 + self.dice.roll(600)));
        let mut options = LockOptions::new(ttl).wait(millis(u64::from(self.dice.roll(3) * 40)));
        if self.dice.roll(4) == 0 {
            options = options.auto_extend(AutoExtend::at_most(millis(900)));
        }
        // In some steps the caller makes several requests in one turn.
        let mut ask = self.locks.batch();
        for _ in 0..=self.dice.roll(3) {
            let key = format!("key:{}", self.dice.roll(6));
            if let Ok(op) = ask.acquire(key, options, u64::from(step)) {
                self.asked.push(op);
            }
        }
    }

    fn take_random_lock(&mut self) -> Option<Lock> {
        let count = self.held.len() as u32;
        (count > 0).then(|| self.held.swap_remove(self.dice.roll(count) as usize))
    }

    fn take_completions(&mut self, most: u32) {
        for _ in 0..most {
            self.locks.poll_lock_update();
            let Some(done) = self.locks.poll_completion() else { return };
            self.completions += 1;
            if let Ok(Outcome::Acquired(lock)) = done.result {
                self.held.push(lock);
            }
        }
    }

    fn make_trouble(&mut self) {
        let master = &self.masters[self.dice.roll(3) as usize];
        match self.dice.roll(6) {
            0 => master.freeze(),
            1 | 2 => master.thaw(),
            3 => master.kill(),
            _ => {
                // The master may be running, or another process may have taken its port for a
                // moment. In both cases the master stays as it is.
                let _ = master.restart(Restart::Empty);
            }
        }
    }

    /// Waits for the descriptor, and ticks when that wakes the caller.
    fn sleep(&mut self, length: Duration) {
        let due = self.locks.engine().coordinator().next_timeout();
        let woken = self.outer.wakes(&self.locks, length);
        if woken {
            self.wakes += 1;
            self.locks.tick().expect("the poller works");
        } else if due.is_some_and(|due| due <= clock::now()) {
            self.assert_descriptor_wakes("a timer is due");
        }
        if self.locks.engine().coordinator().has_completions() {
            self.assert_descriptor_wakes("completions wait");
        }
        if self.locks.engine().coordinator().has_lock_updates() {
            self.assert_descriptor_wakes("updates wait");
        }
    }

    #[track_caller]
    fn assert_descriptor_wakes(&mut self, why: &str) {
        let woken = self.outer.wakes(&self.locks, LOST);
        assert!(woken, "{why}, and the descriptor is silent: {:?}", self.locks);
        self.wakes += 1;
        self.locks.tick().expect("the poller works");
    }
}

#[test]
fn descriptor_is_readable_whenever_the_engine_has_work_in_random_runs() {
    let given = number("REDLATCH_TEST_DICE");
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    for (number, make) in LOOPS.into_iter().enumerate() {
        let masters = Masters::start(3).unwrap();
        let config = config(masters.urls()).node_timeout(millis(40)).reset_after(millis(150));
        let config = config.probe_interval(millis(200)).reconnect(millis(1), millis(50));
        let mut locks = FdEngine::new(config).unwrap();
        let (outer, dice) = (make(&mut locks), Dice::printed(seed + number as u64));
        let (held, asked) = (Vec::new(), Vec::new());
        let mut anybody =
            Anybody { locks, outer, dice, masters, held, asked, completions: 0, wakes: 0 };
        for step in 0..STEPS {
            anybody.step(step);
            if anybody.locks.engine().coordinator().has_completions() && step % 7 == 0 {
                anybody.assert_descriptor_wakes("completions wait");
            }
        }
        println!("{} completions, {} wake-ups", anybody.completions, anybody.wakes);
        assert!(anybody.completions > STEPS / 10, "too little came of it");
    }
}
