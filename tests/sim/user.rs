//! The callers: each wants one lock at a time, holds it for a while, prolongs it, gives it back in
//! one of several ways, forgets it, takes its request back, acts too late.
//!
//! Each user checks what it is told; what two users are told is compared by the checker.

use std::time::Duration;

use redlatch::{Busy, Completion, Error, Lock, Op, Outcome, Released};

use crate::agenda::{Event, MILLI, SECOND};
use crate::checker::Belief;
use crate::client::instant;
use crate::plan::Memory;
use crate::world::World;

/// A lock that is dropped without a word has to be over before the end of a run is looked at.
const FORGETTABLE: u64 = SECOND;

/// What is written late because the kernel takes no more is waited for.
const SLACK: u64 = 3 * MILLI;

/// A release waits a node timeout for its answers, counted from when it was written last: it may
/// be said again where a node forgot the script, or lost the connection a moment ago.
const RELEASE_TIMEOUTS: u64 = 4;

/// What a request was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A user wants a lock.
    Acquire { user: usize },
    /// A user wants to keep it.
    Extend { user: usize },
    /// A user gave it back.
    Release { user: usize },
    /// Somebody used a handle that is long over.
    Relic,
    /// The simulation itself asks, and looks at the answer.
    Errand,
    /// Asked for just before the client ends: what comes of it is given back.
    Farewell,
}

/// A lock in a user's hands.
#[derive(Debug)]
pub struct Held {
    lock: Lock,
    belief: usize,
    extend: Option<(Op, u64)>,
    /// An extend that was taken back goes on: nobody knows how long the lock will last.
    open_end: bool,
}

/// What a user is doing.
#[derive(Debug)]
enum State {
    Resting,
    Waiting { op: Op, serial: u64 },
    Holding(Held),
    Releasing { op: Op, serial: u64 },
}

/// Somebody who wants locks.
#[derive(Debug)]
pub struct User {
    /// When it acts next, unless an answer comes before.
    pub at: u64,
    state: State,
    /// The key it wants or has, by its place in the list.
    key: usize,
}

impl User {
    /// One who begins at `at`.
    pub fn new(at: u64) -> User {
        User { at, state: State::Resting, key: 0 }
    }
}

impl User {
    /// Its process is gone; the next one begins at `at`. The belief it had, if it had one.
    pub fn die(&mut self, at: u64) -> Option<usize> {
        self.at = at;
        match std::mem::replace(&mut self.state, State::Resting) {
            State::Holding(held) => Some(held.belief),
            _ => None,
        }
    }
}

/// A handle whose owner has forgotten it.
#[derive(Debug)]
pub struct Relic {
    /// When it is used.
    pub at: u64,
    lock: Lock,
}

impl World {
    /// A client takes what ended, and its users act.
    pub fn serve(&mut self, client: usize) {
        let now = self.agenda.now();
        while let Some(done) = self.clients[client].coordinator.poll_completion(instant(now)) {
            self.answered(client, done);
        }
        self.look_at_events(client);
        for user in 0..self.clients[client].users.len() {
            if self.clients[client].users[user].at <= now {
                self.act(client, user);
            }
        }
        while let Some(at) = self.clients[client].relics.iter().position(|r| r.at <= now) {
            let relic = self.clients[client].relics.swap_remove(at);
            self.use_relic(client, relic);
        }
        self.look_at_beliefs(client);
    }

    /// A user does the next thing.
    fn act(&mut self, client: usize, user: usize) {
        let it = &mut self.clients[client].users[user];
        it.at = u64::MAX;
        match std::mem::replace(&mut it.state, State::Resting) {
            State::Resting => self.begin(client, user),
            State::Waiting { op, serial } | State::Releasing { op, serial } => {
                self.take_back(client, op, serial);
                self.rest(client, user);
            }
            State::Holding(held) => self.act_on(client, user, held),
        }
    }

    fn rest(&mut self, client: usize, user: usize) {
        let at = self.agenda.now() + self.dice.below(self.plan.rest);
        let it = &mut self.clients[client].users[user];
        (it.state, it.at) = (State::Resting, at);
    }

    /// Asks for a key.
    fn begin(&mut self, client: usize, user: usize) {
        if self.healed {
            return;
        }
        let now = self.agenda.now();
        let key = self.dice.place(self.plan.keys);
        let ttl = self.plan.ttl(&mut self.dice);
        let wait = self.dice.weighted(&[(4, 0), (4, 50 * MILLI), (1, 300 * MILLI)]);
        let wait = self.dice.below(wait + 1);
        self.clients[client].users[user].key = key;
        match self.acquire(client, key, ttl, wait, Purpose::Acquire { user }) {
            Ok((op, serial)) => {
                let it = &mut self.clients[client].users[user];
                it.state = State::Waiting { op, serial };
                if self.dice.chance(150) {
                    it.at = now + self.dice.below(wait + self.plan.node_timeout());
                }
            }
            Err(error) => {
                self.tally.busy += 1;
                if !matches!(error, Error::Busy(_)) {
                    self.checker.violate(format!("an acquire was refused: {error}"));
                }
                self.rest(client, user);
            }
        }
    }

    /// Asks for a key, and notes that an answer is due.
    pub fn acquire(
        &mut self,
        client: usize,
        key: usize,
        ttl: u64,
        wait: u64,
        purpose: Purpose,
    ) -> Result<(Op, u64), Error> {
        let now = self.agenda.now();
        let serial = self.next_serial();
        let it = &mut self.clients[client];
        let (ttl, wait_for) = (Duration::from_millis(ttl), Duration::from_nanos(wait));
        let asked = it.coordinator.acquire(&self.keys[key], ttl, wait_for, serial, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} {purpose:?} #{serial} key {key} ttl {ttl:?}: {outcome:?}")
        });
        let op = asked?;
        let due = now + wait + self.plan.node_timeout();
        self.note_request(client, serial, purpose, "acquire", due);
        Ok((op, serial))
    }

    fn note_request(
        &mut self,
        client: usize,
        serial: u64,
        purpose: Purpose,
        what: &'static str,
        due: u64,
    ) {
        let it = &mut self.clients[client];
        it.asked.insert(serial, purpose);
        self.checker.ask(serial, client, what, due + SLACK, it.kept_waiting);
    }

    fn take_back(&mut self, client: usize, op: Op, serial: u64) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} takes #{serial} back"));
        self.tally.cancelled += 1;
        self.clients[client].coordinator.cancel(op, instant(now));
        self.clients[client].asked.remove(&serial);
        self.checker.cancel(serial);
    }

    /// A request came to its end.
    fn answered(&mut self, client: usize, done: Completion) {
        let (now, serial) = (self.agenda.now(), done.data);
        self.trace.note(now, || match &done.result {
            Ok(outcome) => format!("client {client} is told #{serial}: {outcome:?}"),
            Err(error) => format!("client {client} is told #{serial}: {error}"),
        });
        self.checker.answer(serial, now, self.clients[client].kept_waiting);
        self.count(&done.result);
        match (self.clients[client].asked.remove(&serial), done.result) {
            (Some(Purpose::Acquire { user }), Ok(Outcome::Acquired(lock))) => {
                self.begin_to_hold(client, user, lock);
            }
            (Some(Purpose::Extend { user }), result) => {
                self.extended(client, user, serial, result);
            }
            (Some(Purpose::Acquire { user } | Purpose::Release { user }), _) => {
                self.rest(client, user);
            }
            (Some(Purpose::Errand), result) => self.clients[client].errand = Some(result),
            (Some(Purpose::Farewell), Ok(Outcome::Acquired(lock))) => {
                self.clients[client].coordinator.let_go(&lock, instant(now));
            }
            (Some(Purpose::Relic | Purpose::Farewell) | None, _) => {}
        }
    }

    fn count(&mut self, result: &Result<Outcome, Error>) {
        let tally = &mut self.tally;
        *match result {
            Ok(Outcome::Acquired(_)) => &mut tally.handed_out,
            Ok(Outcome::Extended { .. }) => &mut tally.extended,
            Ok(Outcome::Expiring { .. } | Outcome::Inspected(_)) => return,
            Ok(Outcome::Released(Released::Released)) => &mut tally.released,
            Ok(Outcome::Released(Released::TakenByOther)) => &mut tally.taken_by_other,
            Ok(Outcome::Released(Released::AlreadyExpired)) => &mut tally.already_expired,
            Ok(Outcome::Released(Released::Unconfirmed { .. })) => &mut tally.unconfirmed,
            Err(Error::Contended(_)) => &mut tally.contended,
            Err(Error::NoQuorum(_)) => &mut tally.no_quorum,
            Err(Error::Expired(_)) => &mut tally.expired,
            Err(Error::Lost { .. }) => &mut tally.lost,
            Err(error @ (Error::Busy(_) | Error::Config(_))) => {
                return self.checker.violate(format!("an answer that cannot be: {error}"));
            }
        } += 1;
    }

    fn begin_to_hold(&mut self, client: usize, user: usize, lock: Lock) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        let until = it.coordinator.deadline(&lock).map_or(0, |deadline| deadline.as_nanos());
        let (who, key) = ((client, user), it.users[user].key);
        let token = lock.token().as_bytes().to_vec();
        let belief = self.checker.hand_out(now, Belief { who, key, token, from: now, until });
        self.agenda.put(now, Event::Probe { belief });
        self.agenda.put(until.saturating_sub(1), Event::Probe { belief });
        let held = Held { lock, belief, extend: None, open_end: false };
        self.hold(client, user, held);
    }

    /// Keeps it for a while; sometimes for too long.
    fn hold(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let left = self.checker.belief(held.belief).until.saturating_sub(now);
        let to_the_end = left < 300 * MILLI && self.dice.chance(self.plan.patience);
        let by = match self.dice.below(6) {
            _ if to_the_end => left + self.dice.below(left / 4 + MILLI),
            0 | 1 => self.dice.below(2 * MILLI),
            2..5 => self.dice.below(left.min(100 * MILLI)),
            _ => self.dice.below(left.min(300 * MILLI)),
        };
        let it = &mut self.clients[client].users[user];
        it.at = now + by;
        it.state = State::Holding(held);
    }

    /// A holder does something with its lock.
    fn act_on(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let left = self.checker.belief(held.belief).until.saturating_sub(now);
        let may_forget = left < FORGETTABLE && held.extend.is_none() && !held.open_end;
        if !self.healed && self.dice.chance(self.plan.extends) {
            return self.extend(client, user, held);
        }
        match self.dice.below(8) {
            0 if !self.healed && held.extend.is_some() => self.forget_extend(client, user, held),
            1 | 2 if may_forget => self.forget(client, user, held),
            3 if may_forget => self.release_by_token(client, user, held),
            4 | 5 => {
                self.trace.note(now, || format!("client {client} user {user} lets go"));
                self.checker.end(now, held.belief);
                self.clients[client].coordinator.let_go(&held.lock, instant(now));
                self.rest(client, user);
            }
            _ => self.release(client, user, held),
        }
    }

    fn extend(&mut self, client: usize, user: usize, mut held: Held) {
        let now = self.agenda.now();
        let ttl = Duration::from_millis(self.plan.ttl(&mut self.dice));
        let serial = self.next_serial();
        let until = self.checker.belief(held.belief).until;
        let it = &mut self.clients[client];
        let asked = it.coordinator.extend(&held.lock, ttl, serial, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} user {user} extends #{serial} by {ttl:?}: {outcome:?}")
        });
        match asked {
            Ok(op) => {
                held.extend = Some((op, serial));
                let purpose = Purpose::Extend { user };
                self.note_request(client, serial, purpose, "extend", until);
            }
            Err(Error::Busy(Busy::Lock)) if held.extend.is_some() => {}
            Err(Error::Lost { .. }) if until <= now => {}
            Err(error) => self.checker.violate(format!("an extend was refused: {error}")),
        }
        self.hold(client, user, held);
    }

    fn forget_extend(&mut self, client: usize, user: usize, mut held: Held) {
        if let Some((op, serial)) = held.extend.take() {
            self.take_back(client, op, serial);
            held.open_end = true;
        }
        self.hold(client, user, held);
    }

    /// An extend came to its end: what it says counts as long as its user holds the lock.
    fn extended(
        &mut self,
        client: usize,
        user: usize,
        serial: u64,
        result: Result<Outcome, Error>,
    ) {
        let now = self.agenda.now();
        let State::Holding(held) = &mut self.clients[client].users[user].state else { return };
        if held.extend.is_none_or(|(_, asked)| asked != serial) {
            return;
        }
        held.extend = None;
        if let Ok(Outcome::Extended { deadline }) = result {
            let told = deadline.as_nanos();
            if told > self.checker.belief(held.belief).until {
                let who = (client, user);
                self.checker.violate(format!("{who:?} is told {told} ns, at {now}, and no other"));
            }
        }
    }

    fn release(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let serial = self.next_serial();
        self.trace.note(now, || format!("client {client} user {user} releases #{serial}"));
        self.checker.end(now, held.belief);
        let op = self.clients[client].coordinator.release(held.lock, serial, instant(now));
        let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
        self.note_request(client, serial, Purpose::Release { user }, "release", due);
        let at = if self.dice.chance(100) { now + self.dice.below(MILLI) } else { u64::MAX };
        let it = &mut self.clients[client].users[user];
        (it.state, it.at) = (State::Releasing { op, serial }, at);
    }

    /// Releases by key and token; the record does not know, and ends at its deadline.
    fn release_by_token(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let serial = self.next_serial();
        self.trace.note(now, || format!("client {client} user {user} releases token #{serial}"));
        self.checker.end(now, held.belief);
        let it = &mut self.clients[client];
        let (key, token) = (&self.keys[it.users[user].key], held.lock.token());
        match it.coordinator.release_token(key, token, serial, instant(now)) {
            Ok(op) => {
                it.users[user].state = State::Releasing { op, serial };
                let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
                self.note_request(client, serial, Purpose::Release { user }, "release", due);
            }
            Err(_) => {
                self.tally.busy += 1;
                self.rest(client, user);
            }
        }
    }

    /// Drops the handle without a word; it may turn up again.
    fn forget(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} user {user} forgets its lock"));
        let until = self.checker.belief(held.belief).until.max(now);
        if self.dice.chance(600) {
            let at = until + self.dice.below(300 * MILLI);
            self.clients[client].relics.push(Relic { at, lock: held.lock });
        }
        self.rest(client, user);
    }

    /// Uses a handle that is over: it must do nothing.
    fn use_relic(&mut self, client: usize, relic: Relic) {
        let now = self.agenda.now();
        self.tally.relics += 1;
        let what = self.dice.below(4);
        self.trace.note(now, || format!("client {client} uses a relic: {what}"));
        let serial = self.next_serial();
        let it = &mut self.clients[client];
        if !it.coordinator.remaining(&relic.lock, instant(now)).is_zero() {
            self.checker.violate(format!("client {client} believes in a lock that is over"));
        }
        match what {
            0 => it.coordinator.let_go(&relic.lock, instant(now)),
            1 => {
                let ttl = Duration::from_secs(1);
                if it.coordinator.extend(&relic.lock, ttl, serial, instant(now)).is_ok() {
                    self.checker.violate(format!("client {client} extends a lock that is over"));
                }
            }
            2 => {
                let _ = it.coordinator.release(relic.lock, serial, instant(now));
                let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
                self.note_request(client, serial, Purpose::Relic, "release", due);
            }
            _ => {}
        }
    }

    /// What the coordinator says of the locks that its users hold.
    pub fn look_at_beliefs(&mut self, client: usize) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        for (user, state) in it.users.iter().map(|user| &user.state).enumerate() {
            let State::Holding(held) = state else { continue };
            let (belief, who) = (held.belief, (client, user));
            let until = self.checker.belief(belief).until;
            match it.coordinator.deadline(&held.lock).map(|deadline| deadline.as_nanos()) {
                Some(told) if told > until => {
                    self.checker.prolong(now, belief, told);
                    self.agenda.put(told - 1, Event::Probe { belief });
                }
                Some(told) if told < until => {
                    self.checker.violate(format!("the deadline of {who:?} came nearer"));
                }
                None if now < until => {
                    self.checker.end(now, belief);
                    if self.plan.memory == Memory::Kept {
                        let early = until - now;
                        let words = format!("{who:?} lost its lock {early} ns before its deadline");
                        self.checker.violate(words);
                    }
                }
                _ => {}
            }
        }
    }

    /// Nobody begins anything any more, and who has a lock gives it back soon.
    pub fn wind_down(&mut self, client: usize) {
        let now = self.agenda.now();
        for user in &mut self.clients[client].users {
            user.at = match user.state {
                State::Holding(_) => now + self.dice.below(50 * MILLI),
                State::Waiting { .. } if self.dice.chance(500) => now + self.dice.below(50 * MILLI),
                _ => u64::MAX,
            };
        }
    }
}
