//! Locks that are handed on: one user gives a lock away and another adopts it by its token. Two
//! users may try at the same time, or with a token that is long over, or with that of a client that
//! died.
//!
//! A token is offered only when no user believes in its lock any more: an adoption would take the
//! lock from an owner that does not know of it.

use std::time::Duration;

use redlatch::proto::LockToken;
use redlatch::{Error, Inspection, LockOptions, Op};

use crate::agenda::{Event, MICRO, MILLI};
use crate::client::instant;
use crate::user::{Held, Purpose, State, Wish};
use crate::world::World;

/// How many tokens are remembered: the latest ones.
const REMEMBERED: usize = 6;

/// A lock that may be adopted.
#[derive(Debug, Clone)]
pub struct Offer {
    pub key: usize,
    pub token: LockToken,
    /// No other user gets the token, and this user uses the lock by the token alone.
    pub alone: bool,
}

/// A lock that was given away.
#[derive(Debug)]
pub struct Handed {
    offer: Offer,
    until: u64,
    /// A user has tried to adopt it.
    asked: bool,
}

impl World {
    /// A holder gives its lock away.
    pub fn give_away(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        let (token, key) = (held.lock.token(), self.clients[client].users[user].key);
        self.trace.note(now, || format!("client {client} user {user} gives {key} away: {token}"));
        let belief = self.checker.belief(held.belief);
        let (until, disturbed) = (belief.until, belief.touched);
        self.stop_to_believe(client, &held);
        let given = self.clients[client].coordinator.into_token(held.lock, instant(now));
        match given {
            Some(_) => {
                self.tally.given_away += 1;
                self.given.insert(token.digits().to_vec());
                let asked = disturbed || !self.plan.memory.excludes();
                let at = now + self.dice.below(until - now);
                self.agenda.put(at, Event::ProbeGiven { handed: self.handed.len() });
                let offer = Offer { key, token: token.clone(), alone: false };
                self.handed.push(Handed { offer, until, asked });
                if !(self.dice.chance(self.plan.lends) && self.lend(key, token.clone())) {
                    self.offer(key, token);
                }
            }
            None => self.checker.report(format!("client {client} cannot give away what it has")),
        }
        self.rest(client, user);
    }

    /// Checks that a lock that was given away stays on its nodes for as long as its giver could
    /// have believed in it, unless a user has tried to adopt it.
    pub fn probe_given(&mut self, handed: usize) {
        let now = self.agenda.now();
        let Handed { offer, until, asked } = &self.handed[handed];
        let on = self.supporters(offer.key, offer.token.digits(), *until);
        if !asked && now < *until && 2 * on.len() <= self.nodes.len() {
            let words = format!("what was given away rests on nodes {on:?} only: {offer:?}");
            self.checker.report(words);
        }
    }

    /// Offers a lock that its holder does not hold any more to other users.
    pub fn offer(&mut self, key: usize, token: LockToken) {
        let now = self.agenda.now();
        let offer = Offer { key, token, alone: false };
        self.offers.push(offer.clone());
        if self.offers.len() > REMEMBERED {
            self.offers.remove(0);
        }
        let takers = self.dice.weighted(&[(1, 0), (4, 1), (3, 2)]);
        for _ in 0..takers {
            let client = self.dice.place(self.clients.len());
            let user = self.dice.place(self.plan.users);
            let at = now + self.dice.one_of(&[0, 300 * MICRO, 20 * MILLI]);
            let it = &mut self.clients[client].users[user];
            if matches!(it.state, State::Resting) {
                (it.bid, it.at) = (Some(offer.clone()), at);
                self.rouse(client);
            }
        }
    }

    /// A user tries to adopt a lock that was offered: mostly the one that it was told of.
    pub fn take_up(&mut self, client: usize, user: usize, mut offer: Offer) {
        if !offer.alone && self.dice.chance(100) {
            offer = self.offers[self.dice.place(self.offers.len())].clone();
        }
        let token = offer.token.clone();
        let known = self.handed.iter_mut().filter(|handed| handed.offer.token == token);
        known.for_each(|handed| handed.asked = true);
        if offer.alone {
            return self.borrow(client, user, offer);
        }
        let wish = self.wish();
        self.clients[client].users[user].key = offer.key;
        let asked = self.adopt(client, user, offer.key, token, wish);
        self.wait_for(client, user, wish, 0, asked);
    }

    /// Makes an adopt request, and notes that its answer is due.
    pub fn adopt(
        &mut self,
        client: usize,
        user: usize,
        key: usize,
        token: LockToken,
        wish: Wish,
    ) -> Result<(Op, u64), Error> {
        let now = self.agenda.now();
        let serial = self.next_serial();
        let it = &mut self.clients[client];
        let options = LockOptions::new(Duration::from_millis(wish.ttl));
        let options = wish.keep().map_or(options, |keep| options.auto_extend(keep));
        let asked =
            it.coordinator.adopt(&self.keys[key], token.clone(), options, serial, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} user {user} adopts #{serial} {token} {wish:?}: {outcome:?}")
        });
        let op = asked?;
        let due = now + self.plan.node_timeout() + self.hold_at_start(client);
        self.note_request(client, serial, Purpose::Adopt { user }, "adopt", due);
        Ok((op, serial))
    }

    /// A user inspects a key.
    pub fn look_at_key(&mut self, client: usize, user: usize, key: usize) {
        let now = self.agenda.now();
        let serial = self.next_serial();
        let wish = self.wish();
        let it = &mut self.clients[client];
        let asked = it.coordinator.inspect(&self.keys[key], serial, instant(now));
        self.trace.note(now, || format!("client {client} user {user} looks #{serial} at {key}"));
        if asked.is_ok() {
            let due = now + self.plan.node_timeout();
            self.note_request(client, serial, Purpose::Inspect { user }, "inspect", due);
        }
        self.wait_for(client, user, wish, 0, asked.map(|op| (op, serial)));
    }

    /// Checks the result of an inspection.
    pub fn seen(&mut self, seen: &Inspection) {
        if seen.nodes.len() != self.nodes.len() {
            self.checker.report(format!("an inspection of too few nodes: {seen:?}"));
        }
    }
}
