//! Users that hold a lock: for how long, and what they do with it. They extend it, turn auto-extend
//! on, release it, give it away, forget it, or act after its end.

use std::time::Duration;

use redlatch::{Busy, Error, Lock, Outcome};

use crate::agenda::{Event, MILLI, SECOND};
use crate::checker::Belief;
use crate::client::instant;
use crate::user::{Held, Purpose, RELEASE_TIMEOUTS, State};
use crate::world::World;

/// A lock that is dropped without a release has less time left than this, so that it is over before
/// the end of the run is checked.
const FORGETTABLE: u64 = SECOND;

impl World {
    /// A user gets the lock that it waited for.
    pub fn begin_to_hold(&mut self, client: usize, user: usize, lock: Lock, serial: u64) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        let State::Waiting { wish, .. } = it.users[user].state else { return };
        let until = it.coordinator.deadline(&lock).map_or(0, |deadline| deadline.as_nanos());
        let (who, key) = ((client, user), it.users[user].key);
        let token = lock.token().digits().to_vec();
        let mut belief = Belief::new(who, key, token, now, until);
        belief.also = (0..self.plan.keys).filter(|&other| wish.has_also(other)).collect();
        self.tally.sets += u64::from(wish.also != 0);
        let mut keys: Vec<usize> = belief.keys().collect();
        keys.sort_unstable_by_key(|&key| &self.keys[key]);
        let belief = self.checker.hand_out(now, belief);
        // An adopted lock has no fencing number.
        let fenced = lock.fences().len() > 0;
        assert!(!fenced || lock.fences().len() == keys.len(), "a fence for each key");
        self.tally.fenced += u64::from(fenced);
        self.tally.fenced_sets += u64::from(fenced && wish.also != 0);
        for (key, fence) in keys.into_iter().zip(lock.fences()) {
            self.checker.note_fence(belief, key, fence);
        }
        self.probe(belief);
        self.agenda.put(until.saturating_sub(1), Event::Probe { belief });
        let (extend, open_end) = (None, false);
        let mut held = Held { lock, belief, extend, open_end, keep: None, ttl: wish.ttl };
        if let Some(bounds) = wish.bounds {
            self.begin_to_keep(client, &mut held, bounds, serial);
        }
        self.hold(client, user, held);
    }

    /// The user holds the lock for a random time, sometimes beyond its deadline.
    pub fn hold(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let for_long = held.keep.is_some() && !self.healed && self.dice.chance(700);
        let left = self.checker.belief(held.belief).until.saturating_sub(now);
        let to_the_end = left < 300 * MILLI && self.dice.chance(self.plan.patience);
        let by = match self.dice.below(6) {
            _ if for_long => self.dice.below(3 * held.ttl.min(200) * MILLI),
            _ if to_the_end => left + self.dice.below(left / 4 + MILLI),
            0 | 1 => self.dice.below(2 * MILLI),
            2..5 => self.dice.below(left.min(100 * MILLI)),
            _ => self.dice.below(left.min(300 * MILLI)),
        };
        let it = &mut self.clients[client].users[user];
        it.at = if self.plan.directed { u64::MAX } else { now + by };
        it.state = State::Holding(held);
    }

    /// A holder does the next thing with its lock.
    pub fn act_on(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let left = self.checker.belief(held.belief).until.saturating_sub(now);
        let one_key = self.checker.belief(held.belief).also.is_empty();
        let may_forget =
            left < FORGETTABLE && held.extend.is_none() && !held.open_end && held.keep.is_none();
        if !self.healed && self.dice.chance(self.plan.extends) {
            return self.extend(client, user, held);
        }
        if !self.healed && self.dice.chance(self.plan.keeps / 3) {
            return self.change_keeping(client, user, held);
        }
        // If a renewed lock is over, the client still has to report its loss, so it is not given
        // away.
        if !self.healed && left > 0 && one_key && self.dice.chance(self.plan.gives) {
            return self.give_away(client, user, held);
        }
        match self.dice.below(8) {
            0 if !self.healed && held.extend.is_some() => self.forget_extend(client, user, held),
            1 | 2 if may_forget => self.forget(client, user, held),
            3 if may_forget && one_key => self.release_by_token(client, user, held),
            4 | 5 => {
                self.trace.note(now, || format!("client {client} user {user} lets go"));
                self.stop_to_believe(client, &held);
                self.clients[client].coordinator.release_nowait(&held.lock, instant(now));
                self.rest(client, user);
            }
            _ => self.release(client, user, held),
        }
    }

    /// The owner does not believe in the lock any more, and wants no reports about it.
    pub fn stop_to_believe(&mut self, client: usize, held: &Held) {
        self.checker.end(self.agenda.now(), held.belief);
        if let Some(keep) = &held.keep {
            let now = self.agenda.now();
            self.checker.unkeep(keep.serial, now, self.clients[client].stopped_for);
        }
    }

    fn extend(&mut self, client: usize, user: usize, mut held: Held) {
        let now = self.agenda.now();
        let millis = self.plan.ttl(&mut self.dice);
        let ttl = Duration::from_millis(millis);
        let serial = self.next_serial();
        let until = self.checker.belief(held.belief).until;
        let it = &mut self.clients[client];
        let before = it.coordinator.deadline(&held.lock);
        let asked = it.coordinator.extend(&held.lock, ttl, serial, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} user {user} extends #{serial} by {ttl:?}: {outcome:?}")
        });
        match asked {
            Ok(op) => {
                held.extend = Some((op, serial));
                // The agreed deadline of rule 5: the ttl less a hundredth and 2 ms. It is computed
                // here and not by the core, which is under test.
                let agreed = instant(now + millis * MILLI - millis * MILLI / 100 - 2 * MILLI);
                if before.is_some_and(|before| agreed > before) {
                    // Only an extend that prolongs the lock changes the ttl by which the lock is
                    // renewed.
                    held.ttl = millis;
                }
                let purpose = Purpose::Extend { user };
                self.note_request(client, serial, purpose, "extend", until);
            }
            Err(Error::Busy(Busy::Lock)) if held.extend.is_some() => {}
            Err(Error::Lost { .. }) if until <= now => {}
            Err(error) => self.checker.report(format!("an extend was refused: {error}")),
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

    /// An extend ended. Its result counts if its user still holds the lock.
    pub fn extended(
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
            let given = deadline.as_nanos();
            if given > self.checker.belief(held.belief).until {
                let who = (client, user);
                self.checker.report(format!("{who:?} got {given} ns, at {now}, and no other"));
            }
        }
    }

    fn release(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let serial = self.next_serial();
        self.trace.note(now, || format!("client {client} user {user} releases #{serial}"));
        self.stop_to_believe(client, &held);
        let op = self.clients[client].coordinator.release(held.lock, serial, instant(now));
        let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
        self.note_request(client, serial, Purpose::Release { user }, "release", due);
        let at = if self.dice.chance(100) { now + self.dice.below(MILLI) } else { u64::MAX };
        let it = &mut self.clients[client].users[user];
        (it.state, it.at) = (State::Releasing { op, serial }, at);
    }

    /// Releases by key and token. The client's record of the lock does not notice, and ends at its
    /// deadline.
    fn release_by_token(&mut self, client: usize, user: usize, held: Held) {
        let until = self.checker.belief(held.belief).until;
        self.occupied.push((client, self.clients[client].users[user].key, until));
        self.checker.end(self.agenda.now(), held.belief);
        self.release_token(client, user, held.lock.token());
    }
}
