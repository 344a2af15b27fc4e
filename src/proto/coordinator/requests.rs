//! What callers ask: each request is checked and begun here, and ends by
//! [`poll_completion`](Coordinator::poll_completion). It may have ended when the method returns.

use std::time::Duration;

use super::super::error::{Error, LostReason, Report};
use super::super::keeper::AutoExtend;
use super::super::key::KeyHash;
use super::super::lock::{Lock, LockToken};
use super::super::locks::Wish;
use super::super::ops::Op;
use super::super::time::Instant;
use super::Coordinator;

impl Coordinator {
    /// Asks for `key`. One attempt; further ones until `wait` is over, when the key may be free.
    ///
    /// Where this client waits for the key already, or holds it, it is waited for in order, and
    /// nobody is asked meanwhile; without a wait it is [`Error::Contended`] at once.
    ///
    /// The completion brings `data` back. It may be there at once.
    ///
    /// # Errors
    /// Before anything is sent: a ttl or key that cannot be, or [`Error::Busy`].
    pub fn acquire(
        &mut self,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        self.acquire_and_auto_extend(key, ttl, wait, None, data, now)
    }

    /// As [`acquire`](Coordinator::acquire); and the lock is kept from the moment it is handed out,
    /// as by [`keep`](Coordinator::keep): the completion with the lock is followed by those of the
    /// keeping, under the same op.
    ///
    /// # Errors
    /// Before anything is sent: what cannot be, or [`Error::Busy`].
    pub fn acquire_and_auto_extend(
        &mut self,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
        keep: Option<AutoExtend>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = self.locks.check_wish(key, ttl, keep)?;
        let wish = Wish { ttl, give_up_at: now.saturating_add(wait), keep, data };
        // This is on the path of every acquire.
        let hash = KeyHash::of(key);
        let mut occupant = self.locks.occupant(key, hash);
        if occupant.is_some_and(|number| self.locks.end_if_overdue(number, now)) {
            self.act_on_waits(now);
            occupant = self.locks.occupant(key, hash);
        }
        if let Some(occupant) = occupant {
            return self.waits.queue_up(&mut self.locks, occupant, wish, now);
        }
        let op = self.locks.acquire(key, hash, wish, now);
        self.act_on_waits(now);
        op
    }

    /// Takes a request back: no completion follows. What it had won or may yet win is released.
    /// Nothing happens where it came to its end before.
    ///
    /// An extend or a release that is cancelled goes on; only its caller is gone. A lock whose
    /// keeping is cancelled is renewed no more, and stays until its deadline.
    pub fn cancel(&mut self, op: Op, now: Instant) {
        self.locks.cancel(op, now);
        self.act_on_waits(now);
    }

    /// Renews a lock from now on, by its ttl (the one that was asked for last, but for an extend
    /// that prolongs nothing) and at a third of it: until it is released, given away or lost, or as
    /// far as `keep` allows. The completions are
    /// [`Expiring`](crate::proto::ops::Outcome::Expiring), as often as it comes near its deadline,
    /// [`Renewed`](crate::proto::ops::Outcome::Renewed) where `keep` wants it told, and at last
    /// [`Error::Lost`], once, and before the deadline if it is fetched in time. A lock that is
    /// released or given away needs none.
    ///
    /// A lock that is kept already is kept in this way from now on, and its former op is cancelled.
    ///
    /// # Errors
    /// What cannot be, or [`Error::Lost`].
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        keep: AutoExtend,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.auto_extend(lock, keep, data, now);
        self.act_on_waits(now);
        result
    }

    /// Prolongs a lock to at least `ttl` from now; one that is kept, to its bound at most. While
    /// too few nodes answer it is asked again, up to the deadline that is in force; that one stays
    /// until a majority agreed to a later one.
    ///
    /// # Errors
    /// Before anything is sent: a ttl that cannot be, [`Error::Lost`] when the lock is over, or
    /// [`Error::Busy`] while it is being extended.
    pub fn extend(
        &mut self,
        lock: &Lock,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.extend(lock, ttl, data, now);
        self.act_on_waits(now);
        result
    }

    /// Gives a lock back. It ends when a majority let go of it, or at the node timeout; what is
    /// owed then still goes out by itself. An extend that is under way ends as [`Error::Lost`], a
    /// keeping without a word.
    ///
    /// A lock whose record is over by its deadline is `AlreadyExpired` without asking anybody:
    /// [`release_token`](Coordinator::release_token) asks.
    pub fn release(&mut self, lock: Lock, data: u64, now: Instant) -> Op {
        let result = self.locks.release(lock, data, now);
        self.act_on_waits(now);
        result
    }

    /// Releases `key` where it holds `token`, whoever took it: for a lock whose record is over,
    /// and for scripts.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        key: &[u8],
        token: LockToken,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.release_token(key, token, data, now);
        self.act_on_waits(now);
        result
    }

    /// Gives a lock back without waiting for what comes of it: the release is written so that it
    /// needs no answer.
    pub fn release_nowait(&mut self, lock: &Lock, now: Instant) {
        self.locks.release_nowait(lock, now);
        self.act_on_waits(now);
    }

    /// Gives a lock away: its token is for another to [`adopt`](Coordinator::adopt). It is not
    /// renewed any more, and nothing is ever released for it here. What is left of it is for the
    /// other to use; `None` where it was over.
    pub fn into_token(&mut self, lock: Lock, now: Instant) -> Option<LockToken> {
        let result = self.locks.hand_on(lock, now);
        self.act_on_waits(now);
        result
    }

    /// Takes up the lock on `key` that was given away with `token`: on each node that holds it, a
    /// new token takes its place. Where the giver still believes in it, it is lost to them.
    ///
    /// One attempt, which ends as an acquire does; where the token holds the key on too few nodes,
    /// as [`Error::Lost`]. What it changed is released then.
    ///
    /// # Errors
    /// Before anything is sent: what cannot be, or [`Error::Busy`].
    pub fn adopt(
        &mut self,
        key: &[u8],
        token: LockToken,
        ttl: Duration,
        keep: Option<AutoExtend>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.adopt(key, token, ttl, keep, data, now);
        self.act_on_waits(now);
        result
    }

    /// Prolongs `key` to at least `ttl` from now where it holds `token`, whoever took it: one
    /// round, and nothing is released whatever comes of it. The deadline of the outcome is what a
    /// majority agreed to.
    ///
    /// # Errors
    /// Before anything is sent: what cannot be, or [`Error::Busy`].
    pub fn extend_token(
        &mut self,
        key: &[u8],
        token: LockToken,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.extend_token(key, token, ttl, data, now);
        self.act_on_waits(now);
        result
    }

    /// Deletes `key` on every node, whoever holds it. A holder who still believes in the lock goes
    /// on until they notice: this breaks the promise of a lock.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn force_release(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        let result = self.locks.force_release(key, data, now);
        self.act_on_waits(now);
        result
    }

    /// Looks what every node holds at `key`, and for how long. It ends when all of them answered,
    /// or at the node timeout.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn inspect(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        let result = self.locks.inspect(key, data, now);
        self.act_on_waits(now);
        result
    }

    /// Ends the quarantine of every node that can be asked, and writes it into their node markers,
    /// for the next process. The caller vouches that no client believes in a lock that any of
    /// these nodes forgot. It ends when all nodes have answered, or at the node timeout, with a
    /// report of what each node said; fewer than a quorum are [`Error::NoQuorum`].
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn vouch(&mut self, data: u64, now: Instant) -> Result<Op, Error> {
        let result = self.locks.vouch(data, now);
        self.act_on_waits(now);
        result
    }

    /// The end: takes back every request, and releases what was won and not handed out. What is
    /// in the outboxes behind it needs no answer.
    pub fn close(&mut self, now: Instant) {
        self.locks.close(now);
        self.act_on_waits(now);
    }

    /// Takes back every request and gives back every lock, handed out or not: what is open behind
    /// it are pending releases ([`open_records`](Coordinator::open_records)), to be paid as any
    /// others.
    pub fn release_all(&mut self, now: Instant) {
        self.locks.release_all(now);
        self.act_on_waits(now);
    }

    /// This is the copy of a forked process: its records, connections and pending releases are the
    /// parent's. Every request ends as `ConfigError::Nodes`, now and from now on, and nothing is
    /// written.
    pub fn disown(&mut self, now: Instant) {
        self.locks.disown(now);
        self.waits.clear();
    }

    /// A lock is lost about which nobody was asked.
    pub fn lost_unasked(&self, reason: LostReason, key: &[u8], now: Instant) -> Error {
        self.locks.lost_unasked(reason, key, now)
    }

    /// A report of a key about which nobody was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.locks.report_unasked(key, now)
    }

    /// A report of what keeps each node from being asked.
    pub fn report_standings(&self, now: Instant) -> Box<Report> {
        self.locks.cluster().report_standings(now)
    }
}
