//! The requests of callers: each is checked and begun here, and its end is reported by
//! [`poll_completion`](Coordinator::poll_completion). A request may have ended before the method
//! returns.

use std::time::Duration;

use crate::proto::coordinator::Coordinator;
use crate::proto::error::{ConfigError, Error, LostReason, Report};
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::key::KeyHash;
use crate::proto::key_set::KeySet;
use crate::proto::keys::{Keys, KeysRef};
use crate::proto::lock::{Lock, LockToken};
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::owners::OwnerId;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::task::delete::SeenValues;
use crate::proto::locks::task::extend::TokenExtend;
use crate::proto::locks::task::inspect::Inspecting;
use crate::proto::locks::task::note::NoteText;
use crate::proto::locks::task::tasks::Work;
use crate::proto::own_keys::Note;
use crate::proto::settings::RestartGuard;
use crate::proto::time::{Instant, Ttl};

impl Coordinator {
    /// The number of an owner for the options of single requests
    /// ([`LockOptions::owned_by`](LockOptions::owned_by)): the same number for the same text.
    ///
    /// # Errors
    /// If tokens cannot name the owner, or the client has named too many others.
    #[doc(hidden)]
    pub fn owner_id(&mut self, owner: &str) -> Result<OwnerId, ConfigError> {
        self.locks.ops_mut().owners.id_of(owner)
    }

    /// Asks for one lock on these keys, one or several: all of them or none. There is one attempt,
    /// and further ones whenever the keys may be free, until the wait of the options is over.
    ///
    /// If this client already holds a key or waits for it, the request waits for its turn at each
    /// such key, and no node is asked meanwhile. Without a wait it ends as [`Error::Contended`]
    /// immediately.
    ///
    /// The completion returns `data`, and may be ready before this method returns. If the options
    /// renew the lock, its warnings and its loss follow as lock updates with the same `data`
    /// ([`poll_lock_update`](Coordinator::poll_lock_update)).
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument; a fencing number while the restart guard is
    /// off, because then a node that forgot its counters is not noticed; or [`Error::Busy`].
    pub fn acquire(
        &mut self,
        keys: impl Keys,
        options: impl Into<LockOptions>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        self.acquire_keys(keys.named()?.borrowed(), options.into(), data, now)
    }

    fn acquire_keys(
        &mut self,
        keys: KeysRef<'_>,
        options: LockOptions,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let LockOptions { ttl, auto_extend, fenced, owner, .. } = options;
        let ttl = self.locks.check_params(keys, ttl, auto_extend)?;
        if fenced {
            self.check_fence()?;
        }
        let give_up_at = options.give_up_at(now);
        let params = AcquireParams { ttl, give_up_at, auto_extend, fenced, owner, data };
        match keys {
            KeysRef::One(key) => self.begin_acquire(key, params, now),
            KeysRef::Several(keys) => self.begin_acquire_all(keys, params, now),
        }
    }

    /// Refuses a fencing number if nothing would notice a node that forgot its counters.
    pub(super) fn check_fence(&self) -> Result<(), Error> {
        if self.settings().restart_guard == RestartGuard::Off {
            let problem = "the restart guard is off, so a counter that a node forgot would not be \
                           noticed; switch the guard on, or acquire without a fencing number";
            return Err(ConfigError::Fence { problem }.into());
        }
        Ok(())
    }

    #[inline]
    fn begin_acquire(
        &mut self,
        key: &[u8],
        params: AcquireParams,
        now: Instant,
    ) -> Result<Op, Error> {
        let hash = KeyHash::of(key);
        let mut current_record = self.locks.current_record(key, hash);
        if current_record.is_some_and(|number| self.locks.end_if_overdue(number, now)) {
            self.act(now);
            current_record = self.locks.current_record(key, hash);
        }
        if let Some(current_record) = current_record {
            return self.waits.queue_up(&mut self.locks, current_record, key, params, now);
        }
        let in_line = self.waits.has_line(hash, now);
        let op = self.locks.acquire(key, hash, params, in_line, now);
        self.act(now);
        op
    }

    fn begin_acquire_all(
        &mut self,
        keys: &KeySet,
        params: AcquireParams,
        now: Instant,
    ) -> Result<Op, Error> {
        let record_of = |this: &Coordinator, key| this.locks.current_record(key, KeyHash::of(key));
        for key in keys.iter() {
            let current = record_of(self, key);
            if current.is_some_and(|record| self.locks.end_if_overdue(record, now)) {
                self.act(now);
            }
        }
        let current = |(index, key)| record_of(self, key).map(|record| (index, record));
        let current: Vec<_> = keys.iter().enumerate().filter_map(current).collect();
        let op = self.waits.queue_up_set(&mut self.locks, keys, &current, params, now);
        self.act(now);
        op
    }

    /// Cancels a request: no completion follows. The client releases what the request won or may
    /// still win. Cancelling a request that has ended does nothing.
    ///
    /// A cancelled extend or release goes on; only its completion is dropped.
    pub fn cancel(&mut self, op: Op, now: Instant) {
        self.locks.cancel(op, now);
        self.act(now);
    }

    /// As [`cancel`](Coordinator::cancel), but an extend goes on to its end, and nodes are asked
    /// again as before. Its result is an update of the lock
    /// ([`poll_lock_update`](Coordinator::poll_lock_update)). The next extend of the lock replaces
    /// it.
    pub fn abandon(&mut self, op: Op, now: Instant) {
        self.locks.abandon(op, now);
        self.act(now);
    }

    /// Renews a lock from now on, each time a third of its ttl is over. The ttl is the one that was
    /// asked for last, except by an extend that prolonged nothing. Auto-extension lasts until the
    /// lock is released, given away or lost, or as far as `auto_extend` allows. Renewals, warnings
    /// and the loss are updates ([`poll_lock_update`](Coordinator::poll_lock_update)), with the
    /// data of the request that the lock came from.
    ///
    /// If the lock is auto-extended already, `auto_extend` replaces the old terms:
    /// [`AutoExtend::extensions`] of zero ends the renewal.
    ///
    /// # Errors
    /// An invalid argument, or [`Error::Lost`].
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        auto_extend: AutoExtend,
        now: Instant,
    ) -> Result<(), Error> {
        let result = self.locks.auto_extend(lock, auto_extend, now);
        self.act(now);
        result
    }

    /// Watches a lock that is not auto-extended. From now on its loss is noticed as that of an
    /// auto-extended one: the nodes report writes to its key, and the loss is reported a little
    /// before the deadline ([`poll_lock_update`](Coordinator::poll_lock_update)). The lock is not
    /// extended. For a lock that is auto-extended, or over, this does nothing.
    pub fn watch(&mut self, lock: &Lock, now: Instant) {
        self.locks.watch(lock, now);
        self.act(now);
    }

    /// As [`watch`](Coordinator::watch), and the holder is also warned: a third of the ttl before
    /// the deadline, and again before each later deadline. The ttl is the one that was asked for
    /// last when the lock was first watched. If the moment of the warning has passed, it is due
    /// immediately. For a lock that is auto-extended, or over, this does nothing.
    pub fn watch_with_warning(&mut self, lock: &Lock, now: Instant) {
        self.locks.watch_with_warning(lock, now);
        self.act(now);
    }

    /// Whether the lock is held, and the moment of its warning has come: the time of
    /// [`AutoExtend::warn_before`] before the deadline, or a third of the ttl if the lock is not
    /// auto-extended. A lock that is extended or renewed in time is not expiring any more.
    pub fn is_expiring(&self, lock: &Lock, now: Instant) -> bool {
        self.locks.is_expiring(lock, now)
    }

    /// Extends a lock to at least `ttl` from now, but an auto-extended lock no further than its
    /// bound. While too few nodes answer, the client asks them again, up to the deadline that is in
    /// force. That deadline stays until a majority has agreed to a later one.
    ///
    /// # Errors
    /// Before anything is sent: an invalid ttl, [`Error::Lost`] if the lock is over, or
    /// [`Error::Busy`] while another extend of it is in flight.
    pub fn extend(
        &mut self,
        lock: &Lock,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.extend(lock, ttl, data, now);
        self.act(now);
        result
    }

    /// Releases a lock. The request ends when a majority has released the key, or at the node
    /// timeout. Releases that are pending then still go out without the caller. An extend that is
    /// in flight ends as [`Error::Lost`]; auto-extension ends without a completion.
    ///
    /// A lock that has expired is `AlreadyExpired`, and no node is asked. To ask the nodes, use
    /// [`release_token`](Coordinator::release_token).
    pub fn release(&mut self, lock: Lock, data: u64, now: Instant) -> Op {
        let result = self.locks.release(lock, data, now);
        self.act(now);
        result
    }

    /// Releases the keys on the nodes where they hold `token`, no matter which client acquired
    /// them: for a lock whose record is over, and for scripts. Of several keys each is released by
    /// itself.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.release_token(keys.named()?.borrowed(), token, data, now);
        self.act(now);
        result
    }

    /// Releases a lock without waiting for the outcome: the release is written so that it needs no
    /// answer.
    pub fn release_nowait(&mut self, lock: &Lock, now: Instant) {
        self.locks.release_nowait(lock, now);
        self.act(now);
    }

    /// Gives a lock away: another client can [`adopt`](Coordinator::adopt) its token. This client
    /// does not renew the lock any more, and never releases anything for it. Returns the token;
    /// `None` if the lock was over.
    pub fn into_token(&mut self, lock: Lock, now: Instant) -> Option<LockToken> {
        let result = self.locks.hand_off(lock, now);
        self.act(now);
        result
    }

    /// Adopts the lock on these keys, one or several, that was given away with `token`: on each
    /// node where all of them hold the token, a new one takes its place. A giver that still
    /// believes in the lock loses it.
    ///
    /// Name all keys of the lock: one that is not named stays with the old token until its ttl is
    /// over.
    ///
    /// There is one attempt, whatever wait the options have, which ends as an acquire does. If too
    /// few nodes hold the token, it ends as [`Error::Lost`], and what it changed is released.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, options with a fencing number, which belongs
    /// to one holder, or [`Error::Busy`].
    pub fn adopt(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        options: impl Into<LockOptions>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let options = options.into();
        options.check_adopt()?;
        let named = keys.named()?;
        let result = self.locks.adopt(named.borrowed(), token, options, data, now);
        self.act(now);
        result
    }

    /// Extends the keys, one or several, to at least `ttl` from now on the nodes where all of them
    /// hold `token`, no matter which client acquired them: a node prolongs all keys or none. There
    /// is one round, and nothing is released after it. The outcome has the deadline that a majority
    /// agreed to.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, or [`Error::Busy`].
    pub fn extend_token(
        &mut self,
        keys: impl Keys,
        token: LockToken,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let named = keys.named()?;
        let (cluster, ttl) = (self.locks.cluster(), Ttl::new(ttl, self.settings().max_ttl)?);
        let work = Work::Extend(TokenExtend::new(token, ttl, cluster.ballot_about_token()));
        self.begin_task(named.borrowed(), work, data, now)
    }

    /// Deletes `key` on every node, even if another client holds the lock. That holder goes on
    /// believing in the lock until it notices: this breaks the promise of a lock. The call takes
    /// one key, because its outcome says whether that key was there.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn force_release(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        self.begin_task(KeysRef::One(key), Work::Delete, data, now)
    }

    /// Deletes the key that was inspected on each node that still holds what `seen` found there,
    /// whichever client holds it. A value that changed meanwhile stays. The request ends as
    /// [`Outcome::ForceReleased`](crate::Outcome::ForceReleased) when all nodes have answered, or
    /// at the node timeout. A value that is longer than what an inspection keeps is compared as far
    /// as it was kept.
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn force_release_seen(
        &mut self,
        seen: &Inspection,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let work = Work::DeleteSeen(SeenValues::of(seen));
        self.begin_task(KeysRef::One(&seen.key), work, data, now)
    }

    /// Reads what every node holds at `key`, and for how long. The request ends when all nodes have
    /// answered, or at the node timeout. The call takes one key, because an [`Inspection`] says
    /// what each node holds at it.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn inspect(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        let work = Work::Inspect(Inspecting::new(key, self.locks.cluster(), now));
        self.begin_task(KeysRef::One(key), work, data, now)
    }

    /// Writes a note beside a lock's key, for `ttl`, on every node that can be asked. The request
    /// ends as [`Outcome::Noted`](crate::Outcome::Noted) when these nodes have answered, or at the
    /// node timeout, however many accepted. The text has 160 bytes at most: no reader sees more.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key or ttl, or [`Error::Busy`].
    #[doc(hidden)]
    pub fn write_note(
        &mut self,
        key: &[u8],
        note: Note,
        text: &[u8],
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        // A note may outlive its lock, so `max_ttl` does not bound it.
        let work = Work::WriteNote(NoteText::new(note, text, Ttl::new(ttl, Duration::MAX)?));
        self.begin_task(KeysRef::One(key), work, data, now)
    }

    /// Reads a note beside a lock's key on every node, as [`inspect`](Coordinator::inspect) reads a
    /// key. The key of the [`Inspection`] is that of the note, as it is sent.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    #[doc(hidden)]
    pub fn read_note(
        &mut self,
        key: &[u8],
        note: Note,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let sent = [self.settings().key_prefix.as_bytes(), key].concat();
        let work = Work::Inspect(Inspecting::of_note(note, &sent, self.locks.cluster(), now));
        self.begin_task(KeysRef::One(key), work, data, now)
    }

    /// Ends the quarantine of every node that can be asked, and writes it into their node markers,
    /// for the next process. The caller vouches that no client believes in a lock that any of these
    /// nodes forgot. The request ends when all nodes have answered, or at the node timeout, with a
    /// report of what each node said. If fewer than a quorum accepted, it ends as
    /// [`Error::NoQuorum`].
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn vouch(&mut self, data: u64, now: Instant) -> Result<Op, Error> {
        let key = self.settings().node_marker.clone();
        self.begin_task(KeysRef::One(key.as_bytes()), Work::Vouch, data, now)
    }

    fn begin_task(
        &mut self,
        keys: KeysRef<'_>,
        work: Work,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let result = self.locks.begin_task(keys, work, data, now);
        self.act(now);
        result
    }

    /// Ends the client: cancels every request, and releases each lock that was won and not handed
    /// out. What is in the outboxes afterwards needs no answer.
    pub fn close(&mut self, now: Instant) {
        self.elections.clear();
        self.locks.close(now);
        self.act(now);
    }

    /// Cancels every request and releases every lock, handed out or not. What is open afterwards
    /// ([`open_records`](Coordinator::open_records)) are pending releases, which are sent like any
    /// others.
    pub fn release_all(&mut self, now: Instant) {
        self.elections.clear();
        self.locks.release_all(now);
        self.act(now);
    }

    /// Called in a forked process: the records, connections and pending releases are the parent's.
    /// Every request ends as [`ClosedReason::Forked`](crate::proto::error::ClosedReason), now and
    /// from now on, and nothing is written.
    pub fn abandon_after_fork(&mut self) {
        self.elections.clear();
        self.locks.abandon_after_fork();
        self.waits.clear();
    }

    /// The error of a lost lock about which no node was asked.
    pub fn lost_unasked(&self, reason: LostReason, key: &[u8], now: Instant) -> Error {
        self.locks.lost_unasked(reason, key, now)
    }

    /// The error of a lock that is not held any more, and of whose end no report is kept.
    pub fn not_held(&self, lock: &Lock, key: &[u8], now: Instant) -> Error {
        self.locks.not_held(lock, key, now)
    }

    /// A report about a key for which no node was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.locks.report_unasked(key, now)
    }

    /// A report of what keeps each node from being asked.
    pub fn report_node_states(&self, now: Instant) -> Box<Report> {
        self.locks.cluster().report_node_states(now)
    }
}
