//! Real coordinators and in-process masters, in an order that the input decides: requests, bytes in
//! pieces, lost connections, restarts, time. One node may be hostile. Nothing panics, every request
//! ends once, each loss is reported once, at the end nothing is left, and never do two clients
//! believe in one lock: `tests/sim/checker.rs` looks at that.
//!
//! What a hostile node may do depends on the number of nodes. Two quorums share `2q - n` nodes. For
//! an even `n` that is two, so one of them may say whatever it likes. For an odd `n` it is one node
//! alone: if it grants a key twice, there are two holders, whatever the client does. There the
//! hostile node may refuse what it has granted, send garbage and hang up, but it never grants what
//! it has not.

use redlatch::proto::{AutoExtend, Completion, Instant, LockOptions, LockUpdateKind, Op, Outcome};

use crate::checker::Belief;
use crate::choices::Choices;
use crate::world::{Client, Held, Hostility, MILLI, World, millis};

/// Inputs are cut off here.
pub const LONGEST: usize = 600;

const KEYS: [&[u8]; 2] = [b"a", b"b"];
const TTLS: [u64; 4] = [20, 300, 1_000, 2_000];
/// More rounds than it takes until nothing is left.
const ROUNDS: usize = 3_000;

pub fn run(input: &[u8]) {
    let mut choices = Choices::new(&input[..input.len().min(LONGEST)]);
    let mut world = World::new(&mut choices);
    world.flow();
    while !choices.is_over() {
        let act = choices.byte();
        world.act(act & 31, &mut choices);
        world.write_and_connect(act & 32 != 0);
        world.look(act & 64 == 0);
    }
    world.come_to_rest();
}

impl World {
    fn act(&mut self, act: u8, choices: &mut Choices) {
        let client = choices.below(self.clients.len());
        let node = choices.below(self.masters.len());
        match act {
            0..=3 => self.acquire(client, choices),
            4 | 5 => self.extend(client, choices),
            6 | 7 => self.let_go(client, choices),
            8 => self.adopt(client, choices),
            9 => self.take_back(client, choices),
            10 => self.keep(client, choices),
            11 => self.ask_as_an_operator(client, choices),
            12..=15 => self.flow(),
            16 | 17 => self.bring_to_node(client, node, choices.below(200)),
            18 | 19 => self.bring_to_client(client, node, choices.below(100)),
            20 => self.bring_to_node(client, node, usize::MAX),
            21 => self.bring_to_client(client, node, usize::MAX),
            22 | 23 => self.pass(choices.one_of(&[1, 10, 50, 51, 260, 700, 1_100, 2_100]), choices),
            24 => self.skip_to_timeout(client),
            25 | 26 => self.cut(client, node, choices),
            27 => self.restart(node, choices),
            28 => self.release_a_ghost(choices),
            _ => self.be_hostile(client, choices),
        }
    }

    fn begin(&mut self, client: usize, what: &'static str, asked: Option<Op>) {
        let Some(op) = asked else { return };
        self.clients[client].ops.push((op, self.serial));
        self.checker.ask(self.serial, client, what, u64::MAX, 0);
    }

    fn acquire(&mut self, client: usize, choices: &mut Choices) {
        let (key, ttl) = (choices.below(2), millis(choices.one_of(&TTLS)));
        let wait = millis(choices.one_of(&[0, 0, 400, 5_000]));
        let keep = auto_extend(choices);
        let (now, it) = (self.at(), &mut self.clients[client]);
        self.serial += 1;
        it.wants.insert(self.serial, key);
        let options = with_auto_extend(LockOptions::new(ttl).wait(wait), keep);
        let asked = it.core.acquire(KEYS[key], options, self.serial, now);
        self.begin(client, "acquire", asked.ok());
    }

    fn extend(&mut self, client: usize, choices: &mut Choices) {
        let (ttl, now, it) = (millis(choices.one_of(&TTLS)), self.at(), &mut self.clients[client]);
        let Some(held) = choices.place(&it.held) else { return };
        self.serial += 1;
        let asked = it.core.extend(&it.held[held].lock, ttl, self.serial, now);
        self.begin(client, "extend", asked.ok());
    }

    /// Ends a belief in one of the ways that there are.
    fn let_go(&mut self, client: usize, choices: &mut Choices) {
        let (way, now, it) = (choices.below(6), self.at(), &mut self.clients[client]);
        let Some(number) = choices.place(&it.held) else { return };
        self.serial += 1;
        self.checker.end(self.now, it.held[number].belief);
        if way == 1 {
            let Held { lock, key, .. } = &it.held[number];
            let asked = it.core.release_token(KEYS[*key], lock.token(), self.serial, now);
            it.held[number].given_up = true;
            return self.begin(client, "release by token", asked.ok());
        }
        let held = it.held.swap_remove(number);
        match way {
            0 => it.core.release_nowait(&held.lock, now),
            2 => {
                let token = it.core.into_token(held.lock, now);
                self.given.extend(token.map(|token| (held.key, token)));
            }
            _ => {
                let asked = it.core.release(held.lock, self.serial, now);
                self.begin(client, "release", Some(asked));
            }
        }
    }

    fn adopt(&mut self, client: usize, choices: &mut Choices) {
        let Some(number) = choices.place(&self.given) else { return };
        let (key, token) = self.given[number].clone();
        let (ttl, keep) = (millis(choices.one_of(&TTLS)), auto_extend(choices));
        let (now, it) = (self.at(), &mut self.clients[client]);
        self.serial += 1;
        it.wants.insert(self.serial, key);
        let options = with_auto_extend(LockOptions::new(ttl), keep);
        let asked = it.core.adopt(KEYS[key], token, options, self.serial, now);
        self.begin(client, "adopt", asked.ok());
    }

    fn take_back(&mut self, client: usize, choices: &mut Choices) {
        let (now, it) = (self.at(), &mut self.clients[client]);
        let Some(number) = choices.place(&it.ops) else { return };
        let (op, serial) = it.ops.swap_remove(number);
        if choices.below(2) == 0 {
            it.core.cancel(op, now);
        } else {
            it.core.abandon(op, now);
        }
        self.checker.cancel(serial);
    }

    fn keep(&mut self, client: usize, choices: &mut Choices) {
        let (now, it) = (self.at(), &mut self.clients[client]);
        let Some(number) = choices.place(&it.held) else { return };
        match auto_extend(choices) {
            None => it.core.watch(&it.held[number].lock, now),
            Some(keep) => drop(it.core.auto_extend(&it.held[number].lock, keep, now)),
        }
    }

    /// What needs no lock. A forced release takes a lock away from its holder.
    fn ask_as_an_operator(&mut self, client: usize, choices: &mut Choices) {
        let (key, what) = (choices.below(2), choices.below(4));
        let ttl = millis(choices.one_of(&TTLS));
        let (now, serial) = (self.at(), self.serial + 1);
        self.serial = serial;
        let core = &mut self.clients[client].core;
        let asked = match (what, self.given.last().cloned()) {
            (0, _) => core.inspect(KEYS[key], serial, now),
            (1, Some((key, token))) => core.extend_token(KEYS[key], token, ttl, serial, now),
            (2, Some((key, token))) => core.release_token(KEYS[key], token, serial, now),
            (3, _) => {
                self.meddled[key] = true;
                core.force_release(KEYS[key], serial, now)
            }
            _ => return,
        };
        self.begin(client, "a task", asked.ok());
    }
}

/// What the clients report.
impl World {
    /// Takes note of what the clients report; of ends only if `fetches`.
    fn look(&mut self, fetches: bool) {
        let now = self.at();
        // A loss that was reported since the last look comes before a lock that was won after it.
        for client in 0..self.clients.len() {
            self.look_at_locks(client);
        }
        for client in 0..self.clients.len() {
            if fetches {
                while let Some(done) = self.clients[client].core.poll_completion(now) {
                    self.answered(client, done);
                }
            }
            while self.clients[client].core.poll_node_event().is_some() {}
            self.look_at_locks(client);
            let it = &self.clients[client].core;
            assert!(it.open_records() <= it.settings().limits.records, "more than its limit");
        }
        assert!(self.checker.violations().is_empty(), "{:#?}", self.checker.violations());
    }

    fn answered(&mut self, client: usize, done: Completion) {
        let it = &mut self.clients[client];
        let serial = done.data;
        assert!(!it.core.is_open(done.op), "a request is open after its completion");
        if let Ok(Outcome::Acquired(lock)) = done.result {
            let until = it.core.deadline(&lock).expect("it was handed out").as_nanos();
            let key = it.wants.remove(&serial).expect("one lock for each request");
            let token = lock.token().to_string().into_bytes();
            let mut belief = Belief::new((client, serial as usize), key, token, self.now, until);
            belief.forced = self.meddled[key];
            let belief = self.checker.hand_out(self.now, belief);
            let (lost, given_up) = (false, false);
            it.held.push(Held { lock, key, belief, until, lost, given_up });
        }
        it.ops.retain(|(_, other)| *other != serial);
        self.checker.answer(serial, self.now, 0);
    }

    /// What the owners of locks can see.
    fn look_at_locks(&mut self, client: usize) {
        let it = &mut self.clients[client];
        while let Some(update) = it.core.poll_lock_update() {
            let held = it.held.iter_mut().find(|held| held.lock.token() == update.token);
            match update.kind {
                LockUpdateKind::Lost(_) => {
                    let held = held.expect("the loss of a lock that its caller has");
                    assert!(!std::mem::replace(&mut held.lost, true), "a loss is reported twice");
                    assert_eq!(it.core.deadline(&held.lock), None);
                }
                LockUpdateKind::Extended { deadline } => {
                    let held = held.expect("a lock that its caller has");
                    assert!(it.core.deadline(&held.lock) >= Some(deadline));
                }
                _ => {}
            }
        }
        for held in &mut it.held {
            let deadline = it.core.deadline(&held.lock);
            assert!(held.given_up || held.lost == deadline.is_none(), "a loss without a report");
            if self.meddled[held.key] {
                self.checker.delete(held.belief, true);
            }
            match deadline.map(Instant::as_nanos) {
                _ if held.given_up || self.meddled[held.key] => {}
                None if self.checker.belief(held.belief).until > self.now => {
                    self.checker.lose(self.now, held.belief, 0);
                }
                Some(until) if until > held.until => {
                    held.until = until;
                    self.checker.prolong(self.now, held.belief, until, 0);
                }
                _ => {}
            }
        }
    }

    /// All nodes are honest again, everything is given back, and everything comes to an end.
    fn come_to_rest(&mut self) {
        (self.hostility, self.lies) = (Hostility::None, 0);
        let last = self.masters.len() - 1;
        for client in 0..self.clients.len() {
            self.cut(client, last, &mut Choices::new(&[]));
        }
        for (node, connection, bytes) in std::mem::take(&mut self.ghosts) {
            self.execute(node, connection, &bytes);
            self.masters[node].disconnect(connection);
        }
        for _ in 0..ROUNDS {
            self.flow();
            self.look(true);
            for client in 0..self.clients.len() {
                let it = &mut self.clients[client];
                for held in it.held.drain(..) {
                    self.checker.end(self.now, held.belief);
                    it.core.release_nowait(&held.lock, Instant::from_nanos(self.now));
                }
            }
            let is_at_rest = |it: &Client| it.core.open_records() + it.core.open_ops() == 0;
            if self.clients.iter().all(is_at_rest) {
                self.checker.all_answered();
                return self.look(true);
            }
            let due = self.clients.iter().filter_map(|it| it.core.next_timeout()).min();
            let due = due.map_or(u64::MAX, Instant::as_nanos);
            self.now =
                due.clamp(self.now.saturating_add(MILLI), self.now.saturating_add(900 * MILLI));
            for it in &mut self.clients {
                it.core.handle_timeout(Instant::from_nanos(self.now));
            }
        }
        let left = |it: &Client| (it.core.open_records(), it.core.open_ops());
        panic!("left: {:?}", self.clients.iter().map(left).collect::<Vec<_>>());
    }
}

fn with_auto_extend(options: LockOptions, auto_extend: Option<AutoExtend>) -> LockOptions {
    auto_extend.map_or(options, |auto_extend| options.auto_extend(auto_extend))
}

fn auto_extend(choices: &mut Choices) -> Option<AutoExtend> {
    match choices.below(6) {
        0 => Some(AutoExtend::at_most(millis(choices.one_of(&[5, 200, 5_000])))),
        1 => Some(AutoExtend::extensions(choices.below(3) as u32)),
        2 => Some(AutoExtend::at_most(millis(9_000))),
        _ => None,
    }
}
