//! What callers ask of an engine. Each request reads the clock, and passes the call to the
//! coordinator.

use std::time::Duration;

use super::Engine;
use crate::net::clock;
use crate::net::observe::Verb;
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::keys::Keys;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::time::Instant;

impl Engine {
    /// Asks for the lock on these keys, one or several ([`Keys`]), and waits for it for 10 s, or as
    /// the options say. The completion brings `data` back. If the options renew the lock, its
    /// warnings and its loss follow as lock updates with the same `data`
    /// ([`poll_lock_update`](Engine::poll_lock_update)).
    ///
    /// An acquire may be requested at once. While the nodes' first handshakes are in flight, the
    /// engine holds the request until a quorum of nodes is connected, for the connect timeout at
    /// most. So an acquire on a new engine may take that much longer than its wait.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use redlatch::{Engine, Error, KeySet};
    /// # fn ask(engine: &mut Engine) -> Result<(), Error> {
    /// let ttl = Duration::from_secs(30);
    /// engine.acquire("invoice:42", ttl, 0)?;
    /// // All of these accounts, or none.
    /// let accounts = KeySet::new((7..10).map(|number| format!("account:{number}")))?;
    /// engine.acquire(&accounts, ttl, 1)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Before anything is sent: an invalid ttl or key, or [`Error::Busy`].
    pub fn acquire(
        &mut self,
        keys: impl Keys,
        options: impl Into<LockOptions>,
        data: u64,
    ) -> Result<Op, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        let asked = self.coordinator.acquire(keys, options, data, clock::now());
        self.observer.asked(&asked, Verb::Acquire, keys.first());
        asked
    }

    /// Renews a lock from now on, by its present ttl, until it is released, given away or lost, or
    /// as far as `auto_extend` allows. Renewals, warnings and the loss are updates
    /// ([`poll_lock_update`](Engine::poll_lock_update)), with the data of the request that the lock
    /// came from. The loss is reported before the deadline if the loop turns in time.
    ///
    /// If the lock is auto-extended already, the new terms replace the old ones:
    /// [`AutoExtend::extensions`] of zero ends the renewal.
    ///
    /// # Errors
    /// Invalid terms, or [`Error::Lost`].
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        auto_extend: impl Into<AutoExtend>,
    ) -> Result<(), Error> {
        self.coordinator.auto_extend(lock, auto_extend.into(), clock::now())
    }

    /// Gives a lock away: returns its token, with which another client can
    /// [`adopt`](Engine::adopt) it. This engine neither renews nor releases it any more. Returns
    /// `None` if the lock was over. If an extend is in flight, the new owner also gets the time it
    /// adds.
    pub fn into_token(&mut self, lock: Lock) -> Option<LockToken> {
        self.coordinator.into_token(lock, clock::now())
    }

    /// Takes up the lock on these keys that was given away with `token`, under a new token. If two
    /// clients try with one token, at most one of them gets the lock. Makes one attempt, whatever
    /// wait the options have.
    ///
    /// Name all keys of the lock: one that is not named stays with the old token until its ttl is
    /// over.
    ///
    /// The request ends as an acquire does, or as [`Error::Lost`] if the token does not hold all of
    /// the keys on enough nodes. If the giver still believes in the lock, it loses it, and learns
    /// of that with its next extend: so give the lock away first.
    ///
    /// The lock has no fencing number, even if it had one before: a number belongs to one holder.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, or [`Error::Busy`].
    pub fn adopt(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        options: impl Into<LockOptions>,
        data: u64,
    ) -> Result<Op, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        let asked = self.coordinator.adopt(keys, token, options, data, clock::now());
        self.observer.asked(&asked, Verb::Adopt, keys.first());
        asked
    }

    /// Extends the keys, one or several, to at least `ttl` from now if they hold `token`, whichever
    /// client took them: for scripts. A node prolongs all keys or none. Makes one round. Nothing is
    /// released, whatever the result.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, or [`Error::Busy`].
    pub fn extend_token(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        ttl: Duration,
        data: u64,
    ) -> Result<Op, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        let asked = self.coordinator.extend_token(keys, token, ttl, data, clock::now());
        self.observer.asked(&asked, Verb::Extend, keys.first());
        asked
    }

    /// Reads what every node holds at `key`, and changes nothing. The request ends when all nodes
    /// have answered, or at the node timeout. It takes one key: an [`Inspection`] says what each
    /// node holds at it.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn inspect(&mut self, key: impl AsRef<[u8]>, data: u64) -> Result<Op, Error> {
        self.coordinator.inspect(key.as_ref(), data, clock::now())
    }

    /// Ends the quarantine of every node that can be asked, and records that in the nodes'
    /// markers, so that the next process trusts them at once, too. The request ends as
    /// [`Outcome::Vouched`](crate::Outcome::Vouched) when all nodes have answered, or at the node
    /// timeout.
    ///
    /// The caller vouches that no client believes in a lock that one of these nodes forgot. That
    /// is so, for instance, on nodes that no client has used yet.
    ///
    /// A node counts only if this client saw its marker before: with
    /// [`RestartGuard::Off`](crate::RestartGuard::Off) no node does.
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn vouch(&mut self, data: u64) -> Result<Op, Error> {
        self.coordinator.vouch(data, clock::now())
    }

    /// Deletes `key` on every node, whichever client holds it. This breaks what a lock promises:
    /// the holder believes in its lock until it notices, and meanwhile another client can take it.
    /// For an operator who knows that the holder is gone. It takes one key, because
    /// its outcome says whether that key was there.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn dangerously_force_release(
        &mut self,
        key: impl AsRef<[u8]>,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.force_release(key.as_ref(), data, clock::now())
    }

    /// Deletes the key that was inspected on each node that still holds what `seen` found there,
    /// whichever client holds it: what changed since then stays. Like
    /// [`dangerously_force_release`](Engine::dangerously_force_release), this breaks what a lock
    /// promises. The request ends as [`Outcome::ForceReleased`](crate::Outcome::ForceReleased),
    /// with what each node said, when all nodes have answered, or at the node timeout.
    ///
    /// A value that is longer than what an inspection keeps of it is compared as far as it was
    /// kept.
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn dangerously_force_release_seen(
        &mut self,
        seen: &Inspection,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.force_release_seen(seen, data, clock::now())
    }

    /// Extends a lock to at least `ttl` from now. While too few nodes answer, the engine asks them
    /// again, up to the deadline that is in force.
    ///
    /// # Errors
    /// Before anything is sent: an invalid ttl, [`Error::Lost`], or [`Error::Busy`] while another
    /// extend of the lock is in flight.
    pub fn extend(&mut self, lock: &Lock, ttl: Duration, data: u64) -> Result<Op, Error> {
        let key = self.observer.key_of(&self.coordinator, lock);
        let asked = self.coordinator.extend(lock, ttl, data, clock::now());
        self.observer.asked(&asked, Verb::Extend, key);
        asked
    }

    /// Releases a lock. The completion comes when a majority of nodes has released it, or at the
    /// node timeout; the engine sends the pending releases afterwards by itself. A lock that was
    /// over before ends as `AlreadyExpired` without a request to the nodes;
    /// [`release_token`](Engine::release_token) asks them.
    pub fn release(&mut self, lock: Lock, data: u64) -> Op {
        let key = self.observer.key_of(&self.coordinator, &lock);
        let op = self.coordinator.release(lock, data, clock::now());
        self.observer.asked(&Ok(op), Verb::Release, key);
        op
    }

    /// Releases the keys if they hold `token`, whichever client took them. Of several keys each is
    /// released by itself.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        data: u64,
    ) -> Result<Op, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        let asked = self.coordinator.release_token(keys, token, data, clock::now());
        self.observer.asked(&asked, Verb::Release, keys.first());
        asked
    }

    /// Releases a lock without a completion. Follow it with [`flush`](Engine::flush) or
    /// [`prepare`](Engine::prepare).
    pub fn release_nowait(&mut self, lock: &Lock) {
        let key = self.observer.key_of(&self.coordinator, lock);
        self.coordinator.release_nowait(lock, clock::now());
        self.observer.sent(key);
    }

    /// Cancels every request and releases every lock, handed out or not: for an orderly end. Drive
    /// the engine on until [`Coordinator::open_records`] is zero: then no key is left on any node.
    /// A node that is away keeps it above zero for up to ten `max_ttl`, so stop after some time: it
    /// counts the keys that may be left on some node until their ttl ends.
    ///
    /// [`Coordinator::open_records`]: crate::proto::coordinator::Coordinator::open_records
    pub fn release_all(&mut self) {
        self.coordinator.release_all(clock::now());
    }

    /// Cancels a request: no completion follows, and a lock that it won or may yet win is
    /// released.
    pub fn cancel(&mut self, op: Op) {
        self.coordinator.cancel(op, clock::now());
        self.observer.forget(op);
    }

    /// How long the lock may still be believed in; zero once it is over. A local read.
    pub fn remaining(&self, lock: &Lock) -> Duration {
        self.coordinator.remaining(lock, clock::now())
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it is over.
    pub fn deadline(&self, lock: &Lock) -> Option<Instant> {
        self.coordinator.deadline(lock)
    }
}
