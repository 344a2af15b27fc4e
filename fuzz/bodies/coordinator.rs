//! Real coordinators and in-process masters, in an order that the input decides: requests, bytes in
//! pieces, lost connections, restarts, time. One node may be hostile. Nothing panics, every request
//! ends once, each loss is reported once, and at the end nothing is left. Never do two clients
//! believe in one lock: `tests/sim/checker.rs` checks that.
//!
//! What a hostile node may do depends on the number `n` of nodes. Two quorums `q` share `2q - n`
//! nodes. If `n` is even, they share two, so one of them may say anything. If `n` is odd, they
//! share only one: if that node grants a key twice, there are two holders, whatever the clients do.
//! Then the hostile node may refuse what it has granted, send garbage and hang up, but it never
//! reports a grant that it has not made.

use redlatch::proto::{
    AutoExtend, Completion, Instant, LockOptions, LockUpdateKind, Note, Op, Outcome,
};
use redlatch::testing::net::Net;

use crate::checker::Belief;
use crate::choices::Choices;
use crate::world::{Held, Hostility, World, millis};

/// The rest of a longer input is ignored.
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
        let client = choices.below(self.callers.len());
        let node = choices.below(self.net.nodes());
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
            18 | 19 => self.net.deliver_some_to_client(client, node, choices.below(100)),
            20 => self.bring_to_node(client, node, usize::MAX),
            21 => self.net.deliver_to_client(client, node),
            22 | 23 => self.pass(choices.one_of(&[1, 10, 50, 51, 260, 700, 1_100, 2_100]), choices),
            // The next timer may be far ahead only if it is the next probe.
            24 => self.net.skip_to_timer(client, millis(3_000)),
            25 | 26 => self.net.cut(client, node),
            27 => self.restart(node, choices),
            28 => self.release_an_orphan(choices),
            _ => self.be_hostile(client, choices),
        }
    }

    fn begin(&mut self, client: usize, what: &'static str, asked: Option<Op>) {
        let Some(op) = asked else { return };
        self.callers[client].ops.push((op, self.serial));
        self.checker.ask(self.serial, client, what, u64::MAX, 0);
    }

    fn acquire(&mut self, client: usize, choices: &mut Choices) {
        let (key, ttl) = (choices.below(2), millis(choices.one_of(&TTLS)));
        let wait = millis(choices.one_of(&[0, 0, 400, 5_000]));
        let keep = auto_extend(choices);
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        let it = &mut self.callers[client];
        self.serial += 1;
        it.wants.insert(self.serial, key);
        let options = with_auto_extend(LockOptions::new(ttl).wait(wait), keep);
        let asked = core.acquire(KEYS[key], options, self.serial, now);
        self.begin(client, "acquire", asked.ok());
    }

    fn extend(&mut self, client: usize, choices: &mut Choices) {
        let (ttl, now) = (millis(choices.one_of(&TTLS)), self.net.now());
        let (core, it) = (self.net.client_mut(client), &mut self.callers[client]);
        let Some(held) = choices.place(&it.held) else { return };
        self.serial += 1;
        let asked = core.extend(&it.held[held].lock, ttl, self.serial, now);
        self.begin(client, "extend", asked.ok());
    }

    /// Ends a belief in one of several ways.
    fn let_go(&mut self, client: usize, choices: &mut Choices) {
        let (way, now) = (choices.below(6), self.net.now());
        let (core, it) = (self.net.client_mut(client), &mut self.callers[client]);
        let Some(number) = choices.place(&it.held) else { return };
        self.serial += 1;
        self.checker.end(now.as_nanos(), it.held[number].belief);
        if way == 1 {
            let Held { lock, key, .. } = &it.held[number];
            let asked = core.release_token(KEYS[*key], lock.token(), self.serial, now);
            it.held[number].given_up = true;
            return self.begin(client, "release by token", asked.ok());
        }
        let held = it.held.swap_remove(number);
        match way {
            0 => core.release_nowait(&held.lock, now),
            2 => {
                let token = core.into_token(held.lock, now);
                self.given.extend(token.map(|token| (held.key, token)));
            }
            _ => {
                let asked = core.release(held.lock, self.serial, now);
                self.begin(client, "release", Some(asked));
            }
        }
    }

    fn adopt(&mut self, client: usize, choices: &mut Choices) {
        let Some(number) = choices.place(&self.given) else { return };
        let (key, token) = self.given[number].clone();
        let (ttl, keep) = (millis(choices.one_of(&TTLS)), auto_extend(choices));
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        let it = &mut self.callers[client];
        self.serial += 1;
        it.wants.insert(self.serial, key);
        let options = with_auto_extend(LockOptions::new(ttl), keep);
        let asked = core.adopt(KEYS[key], token, options, self.serial, now);
        self.begin(client, "adopt", asked.ok());
    }

    fn take_back(&mut self, client: usize, choices: &mut Choices) {
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        let it = &mut self.callers[client];
        let Some(number) = choices.place(&it.ops) else { return };
        let (op, serial) = it.ops.swap_remove(number);
        if choices.below(2) == 0 {
            core.cancel(op, now);
        } else {
            core.abandon(op, now);
        }
        self.checker.cancel(serial);
    }

    fn keep(&mut self, client: usize, choices: &mut Choices) {
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        let it = &mut self.callers[client];
        let Some(number) = choices.place(&it.held) else { return };
        match auto_extend(choices) {
            None => core.watch(&it.held[number].lock, now),
            Some(keep) => drop(core.auto_extend(&it.held[number].lock, keep, now)),
        }
    }

    /// Makes a request that needs no lock. A forced release takes a lock away from its holder.
    fn ask_as_an_operator(&mut self, client: usize, choices: &mut Choices) {
        let (key, what) = (choices.below(2), choices.below(4));
        let ttl = millis(choices.one_of(&TTLS));
        let (now, serial) = (self.net.now(), self.serial + 1);
        self.serial = serial;
        let core = self.net.client_mut(client);
        let asked = match (what, self.given.last().cloned()) {
            (0, _) => core.inspect(KEYS[key], serial, now),
            (1, Some((key, token))) => core.extend_token(KEYS[key], token, ttl, serial, now),
            (2, Some((key, token))) => core.release_token(KEYS[key], token, serial, now),
            (1, None) => core.write_note(KEYS[key], Note::Leader, b"text", ttl, serial, now),
            (2, None) => core.read_note(KEYS[key], Note::Leader, serial, now),
            (3, _) => {
                self.meddled[key] = true;
                core.force_release(KEYS[key], serial, now)
            }
            _ => return,
        };
        self.begin(client, "a task", asked.ok());
    }
}

/// Takes what the clients report.
impl World {
    /// Passes what the clients report to the checker; completions only if `fetches`.
    fn look(&mut self, fetches: bool) {
        let now = self.net.now();
        // A loss may have been reported before another lock was won, so losses are passed on first.
        self.clients().for_each(|client| self.look_at_locks(client));
        for client in self.clients() {
            let next = |net: &mut Net| net.client_mut(client).poll_completion(now);
            while let Some(done) = fetches.then(|| next(&mut self.net)).flatten() {
                self.answered(client, done);
            }
            while self.net.client_mut(client).poll_node_event().is_some() {}
            self.look_at_locks(client);
            let core = self.net.get_client(client);
            assert!(core.open_records() <= core.settings().limits.records, "more than its limit");
        }
        assert!(self.checker.violations().is_empty(), "{:#?}", self.checker.violations());
    }

    fn answered(&mut self, client: usize, done: Completion) {
        let (now, core) = (self.now(), self.net.get_client(client));
        let it = &mut self.callers[client];
        let serial = done.data;
        assert!(!core.is_open(done.op), "a request is open after its completion");
        if let Ok(Outcome::Acquired(lock)) = done.result {
            let until = core.deadline(&lock).expect("it was handed out").as_nanos();
            let key = it.wants.remove(&serial).expect("one lock for each request");
            let token = lock.token().to_string().into_bytes();
            let mut belief = Belief::new((client, serial as usize), key, token, now, until);
            belief.forced = self.meddled[key];
            let belief = self.checker.hand_out(now, belief);
            let (lost, given_up) = (false, false);
            it.held.push(Held { lock, key, belief, until, lost, given_up });
        }
        it.ops.retain(|(_, other)| *other != serial);
        self.checker.answer(serial, now, 0);
    }

    /// Passes on what the owners of locks can see.
    fn look_at_locks(&mut self, client: usize) {
        let now = self.now();
        let (core, it) = (self.net.client_mut(client), &mut self.callers[client]);
        while let Some(update) = core.poll_lock_update() {
            let held = it.held.iter_mut().find(|held| held.lock.token() == update.token);
            match update.kind {
                LockUpdateKind::Lost(_) => {
                    let held = held.expect("the loss of a lock that its caller has");
                    assert!(!std::mem::replace(&mut held.lost, true), "a loss is reported twice");
                    assert_eq!(core.deadline(&held.lock), None);
                }
                LockUpdateKind::Extended { deadline } => {
                    let held = held.expect("a lock that its caller has");
                    assert!(core.deadline(&held.lock) >= Some(deadline));
                }
                _ => {}
            }
        }
        for held in &mut it.held {
            let deadline = core.deadline(&held.lock);
            assert!(held.given_up || held.lost == deadline.is_none(), "a loss without a report");
            if self.meddled[held.key] {
                self.checker.delete(held.belief, true);
            }
            match deadline.map(Instant::as_nanos) {
                _ if held.given_up || self.meddled[held.key] => {}
                None if self.checker.belief(held.belief).until > now => {
                    self.checker.lose(now, held.belief, 0);
                }
                Some(until) if until > held.until => {
                    held.until = until;
                    self.checker.prolong(now, held.belief, until, 0);
                }
                _ => {}
            }
        }
    }

    /// Makes all nodes honest, releases everything, and runs until nothing is left.
    fn come_to_rest(&mut self) {
        (self.hostility, self.lies) = (Hostility::None, 0);
        let last = self.net.nodes() - 1;
        self.clients().for_each(|client| self.net.cut(client, last));
        while self.net.orphans() > 0 {
            self.net.deliver_orphan(0, usize::MAX);
        }
        for _ in 0..ROUNDS {
            self.flow();
            self.look(true);
            for client in self.clients() {
                let now = self.net.now();
                for held in self.callers[client].held.drain(..) {
                    self.checker.end(now.as_nanos(), held.belief);
                    self.net.client_mut(client).release_nowait(&held.lock, now);
                }
            }
            let all = || self.clients().map(|client| self.net.get_client(client));
            if all().all(|core| core.open_records() + core.open_ops() == 0) {
                self.checker.check_all_answered();
                return self.look(true);
            }
            let due = all().filter_map(|core| core.next_timeout()).min();
            let due = due.map_or(millis(900), |due| due.saturating_since(self.net.now()));
            self.net.advance(due.clamp(millis(1), millis(900)));
            self.clients().for_each(|client| self.net.expire(client));
        }
        let left = |client| {
            let core = self.net.get_client(client);
            (core.open_records(), core.open_ops())
        };
        panic!("left: {:?}", self.clients().map(left).collect::<Vec<_>>());
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
