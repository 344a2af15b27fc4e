//! Locks that a user has only by their token: no other user is given that token. The user extends
//! the lock by the token, believes in the deadline that the answer reports, and releases the key by
//! the token or leaves it to its ttl.

use std::time::Duration;

use redlatch::proto::LockToken;
use redlatch::{Error, Op, Outcome};

use crate::agenda::{Event, MILLI};
use crate::checker::Belief;
use crate::client::instant;
use crate::handing::Offer;
use crate::user::{Purpose, RELEASE_TIMEOUTS, State};
use crate::world::World;

/// A lock that a user has only by its token.
#[derive(Debug)]
pub struct Borrowed {
    token: LockToken,
    /// The number of the user's belief in the checker, from the first extend that was won.
    belief: Option<usize>,
    /// The extend that is in flight.
    asked: Option<(Op, u64)>,
}

impl World {
    /// Offers a lock that was given away to one user of any client, and to no other. Returns
    /// whether that user was free to take it.
    pub fn lend(&mut self, key: usize, token: LockToken) -> bool {
        let client = self.dice.place(self.clients.len());
        let user = self.dice.place(self.plan.users);
        let at = self.agenda.now() + self.dice.below(MILLI);
        let it = &mut self.clients[client].users[user];
        let free = matches!(it.state, State::Resting) && it.bid.is_none();
        if free {
            (it.bid, it.at) = (Some(Offer { key, token, alone: true }), at);
            self.rouse(client);
        }
        free
    }

    /// A user starts to use a lock whose token it was given.
    pub fn borrow(&mut self, client: usize, user: usize, offer: Offer) {
        let ttl = self.plan.ttl(&mut self.dice);
        self.borrow_for(client, user, offer, ttl);
    }

    /// A user starts to use a lock whose token it was given, and extends it by this many
    /// milliseconds.
    pub fn borrow_for(&mut self, client: usize, user: usize, offer: Offer, ttl: u64) {
        self.clients[client].users[user].key = offer.key;
        let borrowed = Borrowed { token: offer.token, belief: None, asked: None };
        self.prolong_by_token(client, user, borrowed, ttl);
    }

    /// A user extends a lock by its token, by this many milliseconds.
    fn prolong_by_token(&mut self, client: usize, user: usize, mut it: Borrowed, ttl: u64) {
        let (now, serial) = (self.agenda.now(), self.next_serial());
        let key = self.clients[client].users[user].key;
        let core = &mut self.clients[client].coordinator;
        let (length, name) = (Duration::from_millis(ttl), &self.keys[key]);
        let asked = core.extend_token(name, it.token.clone(), length, serial, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            let token = &it.token;
            format!("client {client} user {user} extends {token} #{serial} {ttl} ms: {outcome:?}")
        });
        match asked {
            Ok(op) => {
                // If a node forgot the script, the client sends the extend once more, as it does
                // with a release.
                let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
                self.note_request(client, serial, Purpose::Borrow { user }, "extend", due);
                it.asked = Some((op, serial));
                let hasty = self.dice.chance(100);
                let by = self.dice.below(self.plan.node_timeout());
                let user = &mut self.clients[client].users[user];
                user.at = if hasty { now + by } else { u64::MAX };
                user.state = State::Borrowing(it);
            }
            Err(Error::Busy(_)) => {
                self.tally.busy += 1;
                self.rest(client, user);
            }
            Err(error) => self.checker.report(format!("an extend was refused: {error}")),
        }
    }

    /// An extend by token ended.
    pub fn borrowed(&mut self, client: usize, user: usize, result: Result<Outcome, Error>) {
        let now = self.agenda.now();
        let key = self.clients[client].users[user].key;
        let State::Borrowing(it) = &mut self.clients[client].users[user].state else { return };
        it.asked = None;
        let Ok(Outcome::Extended { deadline }) = result else {
            // The extend failed, so the user still believes in the deadline that it knew before.
            return self.rest(client, user);
        };
        // The user believes in the latest deadline that was reported. That is a new belief, because
        // the one before may have ended.
        let mut until = deadline.as_nanos();
        if let Some(before) = it.belief {
            until = until.max(self.checker.belief(before).until);
            self.checker.end(now, before);
        }
        let belief = Belief::new((client, user), key, it.token.digits().to_vec(), now, until);
        let belief = self.checker.hand_out(now, belief);
        it.belief = Some(belief);
        self.tally.borrowed += 1;
        let at = if self.plan.directed { u64::MAX } else { now + self.dice.below(until - now) };
        self.clients[client].users[user].at = at;
        self.agenda.put(until - 1, Event::Probe { belief });
        self.probe(belief);
    }

    /// A user does the next thing with a lock that it has by its token.
    pub fn act_on_borrowed(&mut self, client: usize, user: usize, it: Borrowed) {
        if let Some((op, serial)) = it.asked {
            self.take_back(client, op, serial);
            return self.rest(client, user);
        }
        match self.dice.below(5) {
            0 | 1 if !self.healed => {
                let ttl = self.plan.ttl(&mut self.dice);
                self.prolong_by_token(client, user, it, ttl);
            }
            2 => self.rest(client, user),
            _ => {
                if let Some(belief) = it.belief {
                    self.checker.end(self.agenda.now(), belief);
                }
                self.release_token(client, user, it.token);
            }
        }
    }

    /// Releases the user's key, if it holds this token.
    pub(super) fn release_token(&mut self, client: usize, user: usize, token: LockToken) {
        let (now, serial) = (self.agenda.now(), self.next_serial());
        self.trace.note(now, || format!("client {client} user {user} releases {token} #{serial}"));
        let it = &mut self.clients[client];
        let key = &self.keys[it.users[user].key];
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
}
