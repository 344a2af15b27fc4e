//! Random orders: the list of masters is changed by tools that may end anywhere, while clients hold
//! and renew a lock, masters restart, lose their data or freeze, and clients stand still. Two
//! clients must never believe in the lock at once. With more orders:
//!
//! `MEMBERS_SEEDS=400 cargo test --release --all-features --test members random -- --nocapture`

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::proto::change::{Change, Goal, Next, Place, Replacement};
use redlatch::proto::{Lock, MembersState};
use redlatch::testing::master::Restart;

use super::*;

const MASTERS: usize = 5;
/// Longer than a client counts by a list.
const LONGEST_PAUSE: u64 = 40_000;

/// A tool at work.
struct Tool {
    change: Change,
    /// It does nothing before this moment.
    idle_until: Instant,
    asks: Vec<(usize, Option<Replacement>)>,
    learns: Option<usize>,
}

/// What the orders of one seed did.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    grants: usize,
    extends: usize,
    epochs: u64,
    losses: usize,
}

struct World {
    net: Net<Client>,
    rng: StdRng,
    clients: Vec<usize>,
    held: Vec<Option<Lock>>,
    tool: Option<Tool>,
    down: Option<usize>,
    frozen: Option<usize>,
    /// Until when no other master may lose its data.
    safe_from_loss_until: Instant,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> World {
        let mut net = Net::new(MASTERS, seed);
        net.set_latency(Duration::from_micros(100)..=millis(3));
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        pass_quarantines(&mut net);
        net.stop(first);
        let clients: Vec<_> = (0..3).map(|_| client(&mut net, &[0, 1, 2, 3, 4])).collect();
        net.pass(2 * TTL);
        World {
            rng: StdRng::seed_from_u64(seed),
            held: clients.iter().map(|_| None).collect(),
            safe_from_loss_until: net.now(),
            clients,
            net,
            tool: None,
            down: None,
            frozen: None,
            tally: Tally::default(),
        }
    }

    fn play(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.random_range(0..1000) {
                0..500 => self.use_the_lock(),
                500..930 => self.go_on_with_the_tool(),
                930..950 => self.stop_or_resume(),
                950..960 => self.replace_a_client(),
                960..980 => self.freeze_or_thaw(),
                980..995 => self.stop_or_start_a_master(),
                995..997 => self.lose_data(),
                _ => self.tool = None,
            }
            let pause = if self.rng.random_bool(0.05) { 3000 } else { 300 };
            let pause = self.rng.random_range(1..pause);
            self.net.pass(millis(pause));
            self.check();
        }
    }

    /// A client asks for the lock, extends it or gives it back.
    fn use_the_lock(&mut self) {
        let which = self.rng.random_range(0..self.clients.len());
        let (client, now) = (self.clients[which], self.net.now());
        let core = &mut self.net.client_mut(client).core;
        while let Some(done) = core.poll_completion(now) {
            match done.result {
                Ok(Outcome::Acquired(lock)) => {
                    self.tally.grants += 1;
                    self.held[which] = Some(lock);
                }
                Ok(Outcome::Extended { .. }) => self.tally.extends += 1,
                _ => {}
            }
        }
        let over = |lock: &Lock| core.remaining(lock, now).is_zero();
        if self.held[which].as_ref().is_some_and(over) {
            self.held[which] = None;
        }
        match self.held[which].take() {
            None => drop(core.acquire(KEY, LockOptions::once(TTL), 0, now)),
            Some(lock) if self.rng.random_bool(0.03) => drop(core.release(lock, 0, now)),
            Some(lock) => {
                drop(core.extend(&lock, TTL, 0, now));
                self.held[which] = Some(lock);
            }
        }
    }

    /// The tool asks the next question, or begins.
    fn go_on_with_the_tool(&mut self) {
        let now = self.net.now();
        let Some(mut tool) = self.tool.take() else {
            self.tool = Some(self.start_tool());
            return;
        };
        if now < tool.idle_until {
            // The time of a wait is let pass, so that steps follow each other.
            if self.rng.random_bool(0.3) {
                let pause = self.rng.random_range(1..3000);
                self.net.pass(millis(pause));
            }
            self.tool = Some(tool);
            return;
        }
        if let Some(place) = tool.learns.take() {
            tool.change.trusted(place);
        }
        if let Some((master, write)) = tool.asks.pop() {
            let answer = self.answer(master, write);
            tool.change.answered(master, answer);
            self.tool = Some(tool);
            return;
        }
        match tool.change.next(now) {
            Next::Ask(requests) => {
                let asks = requests.into_iter().rev().map(|ask| (ask.place, ask.write));
                tool.asks = asks.collect();
            }
            Next::Quarantine(place) => {
                tool.idle_until = now.saturating_add(2 * TTL);
                tool.learns = Some(place);
            }
            Next::Wait(until) => tool.idle_until = until,
            Next::Pause(pause) => tool.idle_until = now.saturating_add(pause),
            Next::Done(list) => {
                self.tally.epochs = self.tally.epochs.max(list.epoch());
                return;
            }
            Next::Failed(_) => return,
        }
        self.tool = Some(tool);
    }

    fn start_tool(&mut self) -> Tool {
        let place = |master: usize| {
            let run_id = self.net.master(master).identities()[0].as_bytes().try_into().ok();
            Place { address: format!("10.0.0.{master}:6379").into(), run_id }
        };
        let places = (0..MASTERS).map(place).collect();
        let mut to: Vec<_> = (0..MASTERS).collect();
        // Lists of three that are far from each other, because those share no majority.
        while to.len() > 3 {
            let at = self.rng.random_range(0..to.len());
            to.remove(at);
        }
        let goal = match self.rng.random_range(0..20) {
            0 => Goal::Undo,
            _ => Goal::To(to),
        };
        let change = Change::new(places, goal, wait(), self.rng.random());
        Tool { change, idle_until: self.net.now(), asks: Vec::new(), learns: None }
    }

    /// What a master has after a question of the tool.
    fn answer(&mut self, master: usize, write: Option<Replacement>) -> Option<MembersState> {
        if self.down == Some(master) || self.frozen == Some(master) {
            return None;
        }
        let found = value(&self.net, master);
        if let Some(Replacement { expected, new }) = write {
            if found == expected.map_or(String::new(), |it| it.text()) {
                self.net.command(master, &[b"SET", MEMBERS, new.text().as_bytes()]);
            }
        }
        Some(match &*value(&self.net, master) {
            "" => MembersState::Blank,
            text => MembersState::read(text.as_bytes()),
        })
    }

    fn stop_or_resume(&mut self) {
        let client = self.clients[self.rng.random_range(0..self.clients.len())];
        if self.net.is_stopped(client) {
            self.net.resume(client);
        } else if self.rng.random_bool(0.5) {
            self.net.stop(client);
            let pause = self.rng.random_range(1..LONGEST_PAUSE);
            self.net.pass(millis(pause));
            self.check();
        }
    }

    /// The process of a client ends without a word, and another one begins, which knows no list.
    fn replace_a_client(&mut self) {
        let which = self.rng.random_range(0..self.clients.len());
        self.net.stop(self.clients[which]);
        self.clients[which] = client(&mut self.net, &[0, 1, 2, 3, 4]);
        self.held[which] = None;
    }

    fn freeze_or_thaw(&mut self) {
        match self.frozen.take() {
            Some(master) => self.net.thaw(master),
            None if self.down.is_none() => {
                let master = self.rng.random_range(0..MASTERS);
                self.net.freeze(master);
                self.frozen = Some(master);
            }
            None => {}
        }
    }

    fn stop_or_start_a_master(&mut self) {
        match self.down.take() {
            Some(master) => self.net.start(master, Restart::WithData),
            None if self.frozen.is_none() => {
                let master = self.rng.random_range(0..MASTERS);
                self.net.kill(master);
                self.down = Some(master);
            }
            None => {}
        }
    }

    /// One master loses its data, and no other one within the time in which a change may be.
    fn lose_data(&mut self) {
        let now = self.net.now();
        if now < self.safe_from_loss_until || self.down.is_some() || self.frozen.is_some() {
            return;
        }
        self.safe_from_loss_until = now.saturating_add(12 * TTL);
        self.tally.losses += 1;
        let master = self.rng.random_range(0..MASTERS);
        self.net.restart(master, Restart::Empty);
    }

    /// At most one client believes in the lock.
    #[track_caller]
    fn check(&mut self) {
        let now = self.net.now();
        let believes = |which: &usize| {
            let core = &self.net.get_client(self.clients[*which]).core;
            let lock = self.held[*which].as_ref();
            lock.is_some_and(|lock| !core.remaining(lock, now).is_zero())
        };
        let holders: Vec<usize> = (0..self.clients.len()).filter(believes).collect();
        let values: Vec<_> = (0..MASTERS).map(|it| value(&self.net, it)).collect();
        assert!(holders.len() <= 1, "{holders:?} hold one lock\n{values:#?}");
    }
}

fn wait() -> Duration {
    Change::wait_of(TTL)
}

/// Another client marks the masters that are in no list yet, and ends their quarantine.
fn pass_quarantines(net: &mut Net<Client>) {
    let mut settings = settings_of(&[3, 4]);
    settings.check_members = false;
    let client = client_with(net, &[3, 4], settings);
    net.pass(2 * TTL);
    net.stop(client);
}

#[test]
fn random_changes_of_the_list_never_give_two_holders() {
    let seeds = std::env::var("MEMBERS_SEEDS").ok();
    let seeds = seeds.map_or(40, |text| text.parse().expect("a number of seeds"));
    let mut all = Tally::default();
    for seed in 0..seeds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.play(1500);
        let Tally { grants, extends, epochs, losses } = world.tally;
        all.grants += grants;
        all.extends += extends;
        all.epochs += epochs - epochs.min(1);
        all.losses += losses;
    }
    println!("{seeds} seeds: {all:?}");
    assert!(all.epochs >= seeds && all.grants as u64 >= 4 * seeds, "{all:?}");
    assert!(all.losses > 0 && all.extends > all.grants, "{all:?}");
}
