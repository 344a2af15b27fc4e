//! The callers. Each wants one lock at a time, holds it for a while, extends it, and may have it
//! kept by auto-extend. It releases the lock in one of several ways, gives it away, forgets it,
//! cancels its request, or acts too late.
//!
//! Each user checks what is reported to it; the checker compares the beliefs of different users.
//! What users do with the locks that they hold is in `holding`.

use std::time::Duration;

use redlatch::proto::KeySet;
use redlatch::{
    AutoExtend, Completion, ConfigError, Error, InvalidTtl, Lock, LockOptions, Op, Outcome,
    ReleaseOutcome,
};

use crate::agenda::MILLI;
use crate::borrowing::Borrowed;
use crate::client::instant;
use crate::handing::Offer;
use crate::keeping::{Bounds, Keeping};
use crate::world::World;

/// The longest time that a user waits for a key.
pub const LONGEST_WAIT: u64 = 300 * MILLI;

/// Bytes may be written this much later, because the kernel takes no more before.
const SLACK: u64 = 3 * MILLI;

/// A release waits a node timeout for its answers, counted from when it was last written. It may be
/// written again if a node forgot the script, or if the connection was lost.
pub const RELEASE_TIMEOUTS: u64 = 4;

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A user wants a lock.
    Acquire { user: usize },
    /// A user extends its lock.
    Extend { user: usize },
    /// A user releases its lock.
    Release { user: usize },
    /// A user adopts a lock that another user gave away.
    Adopt { user: usize },
    /// A user extends a lock by its token.
    Borrow { user: usize },
    /// A user inspects a key.
    Inspect { user: usize },
    /// A user used a handle whose lock is long over.
    Relic,
    /// The simulation itself makes the request and reads its answer.
    Errand,
    /// Made just before the client ends: a lock that is granted then has to be released.
    Farewell,
}

/// A lock in a user's hands.
#[derive(Debug)]
pub struct Held {
    pub lock: Lock,
    pub belief: usize,
    pub extend: Option<(Op, u64)>,
    /// An extend was cancelled and may still take effect, so the end of the lock is not known.
    pub open_end: bool,
    /// Its auto-extend, if it has one.
    pub keep: Option<Keeping>,
    /// The ttl of the last request, in milliseconds.
    pub ttl: u64,
}

/// A lock that a user wants: its ttl in milliseconds, and its auto-extend.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub ttl: u64,
    pub bounds: Option<Bounds>,
    /// Whether it is to have a fencing number.
    pub fenced: bool,
    /// The keys besides the user's own: a bit for each index in the list of keys.
    pub also: u64,
}

impl Wish {
    /// A lock without auto-extend.
    pub fn of(ttl: u64) -> Wish {
        Wish { ttl, bounds: None, fenced: false, also: 0 }
    }

    /// Whether the lock has this key besides the user's own.
    pub fn has_also(&self, key: usize) -> bool {
        self.also & (1 << key) != 0
    }

    /// Its auto-extend.
    pub fn keep(&self) -> Option<AutoExtend> {
        self.bounds.map(|bounds| bounds.keep)
    }

    /// The options of an acquire that waits for up to `wait` nanoseconds.
    fn options(&self, wait: u64) -> LockOptions {
        let ttl = Duration::from_millis(self.ttl);
        let options = LockOptions::new(ttl).wait(Duration::from_nanos(wait));
        let options = self.keep().map_or(options, |keep| options.auto_extend(keep));
        if self.fenced { options.fenced() } else { options }
    }
}

/// What a user is doing.
#[derive(Debug)]
pub enum State {
    Resting,
    Waiting { op: Op, serial: u64, wish: Wish, since: u64, gives_up: u64 },
    Holding(Held),
    Borrowing(Borrowed),
    Releasing { op: Op, serial: u64 },
}

/// A user that wants locks.
#[derive(Debug)]
pub struct User {
    /// When the user acts next, unless an answer comes before.
    pub at: u64,
    pub state: State,
    /// The index of the key that it wants or has.
    pub key: usize,
    /// The lock that it is about to adopt.
    pub bid: Option<Offer>,
}

impl User {
    /// A user that begins at `at`.
    pub fn new(at: u64) -> User {
        User { at, state: State::Resting, key: 0, bid: None }
    }

    /// The user's process ends; the next one begins at `at`. Returns the lock that the user held.
    pub fn die(&mut self, at: u64) -> Option<Held> {
        (self.at, self.bid) = (at, None);
        match std::mem::replace(&mut self.state, State::Resting) {
            State::Holding(held) => Some(held),
            _ => None,
        }
    }
}

impl World {
    /// A client fetches completions, and its users act.
    pub fn serve(&mut self, client: usize) {
        let now = self.agenda.now();
        self.take_ends(client);
        self.count_events_of(client);
        for user in 0..self.clients[client].users.len() {
            if self.clients[client].users[user].at <= now {
                self.act(client, user);
            }
        }
        while let Some(at) = self.clients[client].relics.iter().position(|r| r.at <= now) {
            let relic = self.clients[client].relics.swap_remove(at);
            self.use_relic(client, relic);
        }
        self.check_beliefs(client);
    }

    /// A user does the next thing.
    fn act(&mut self, client: usize, user: usize) {
        let it = &mut self.clients[client].users[user];
        it.at = u64::MAX;
        match std::mem::replace(&mut it.state, State::Resting) {
            State::Resting => self.begin(client, user),
            State::Waiting { op, serial, .. } | State::Releasing { op, serial } => {
                self.take_back(client, op, serial);
                self.rest(client, user);
            }
            State::Holding(held) => self.act_on(client, user, held),
            State::Borrowing(it) => self.act_on_borrowed(client, user, it),
        }
    }

    pub fn rest(&mut self, client: usize, user: usize) {
        let at = self.agenda.now() + self.dice.below(self.plan.rest);
        let it = &mut self.clients[client].users[user];
        (it.state, it.at) = (State::Resting, at);
    }

    /// Acquires or adopts a lock, or inspects a key.
    fn begin(&mut self, client: usize, user: usize) {
        if self.healed {
            return;
        }
        if let Some(offer) = self.clients[client].users[user].bid.take() {
            return self.take_up(client, user, offer);
        }
        let key = self.dice.place(self.plan.keys);
        self.clients[client].users[user].key = key;
        if self.dice.chance(self.plan.looks) {
            return self.look_at_key(client, user, key);
        }
        let mut wish = self.wish();
        self.want_others(&mut wish, key);
        let wait = self.dice.weighted(&[(4, 0), (4, 50 * MILLI), (1, LONGEST_WAIT)]);
        let wait = self.dice.below(wait + 1);
        let asked = self.acquire(client, key, wish, wait, Purpose::Acquire { user });
        self.wait_for(client, user, wish, wait, asked);
    }

    /// Draws what a user wants of a lock.
    pub fn wish(&mut self) -> Wish {
        let ttl = self.plan.ttl(&mut self.dice);
        let keeps = self.dice.chance(self.plan.keeps);
        let bounds = if keeps { self.draw_keep(ttl) } else { None };
        let fenced = self.dice.chance(self.plan.fences);
        Wish { ttl, bounds, fenced, also: 0 }
    }

    /// Sometimes adds other keys to the user's own.
    fn want_others(&mut self, wish: &mut Wish, key: usize) {
        if self.plan.sets == 0 || !self.dice.chance(self.plan.sets) {
            return;
        }
        for other in (0..self.plan.keys).filter(|&other| other != key) {
            wish.also |= u64::from(self.dice.chance(500)) << other;
        }
    }

    /// A user waits for the answer to its acquire, unless that was refused.
    pub fn wait_for(
        &mut self,
        client: usize,
        user: usize,
        wish: Wish,
        wait: u64,
        asked: Result<(Op, u64), Error>,
    ) {
        match asked {
            Ok((op, serial)) => {
                let it = &mut self.clients[client].users[user];
                let (since, gives_up) = (self.agenda.now(), self.agenda.now() + wait);
                it.state = State::Waiting { op, serial, wish, since, gives_up };
                if self.dice.chance(150) {
                    let by = self.dice.below(wait + self.plan.node_timeout());
                    it.at = self.agenda.now() + by;
                }
            }
            Err(error) => {
                self.tally.busy += 1;
                if !matches!(error, Error::Busy(_)) {
                    self.checker.report(format!("a request was refused: {error}"));
                }
                self.rest(client, user);
            }
        }
    }

    /// Makes an acquire request, and notes that its answer is due.
    pub fn acquire(
        &mut self,
        client: usize,
        key: usize,
        wish: Wish,
        wait: u64,
        purpose: Purpose,
    ) -> Result<(Op, u64), Error> {
        let now = self.agenda.now();
        let serial = self.next_serial();
        let it = &mut self.clients[client];
        let (options, key_bytes, at) = (wish.options(wait), &self.keys[key], instant(now));
        let core = &mut it.coordinator;
        let asked = if wish.also != 0 {
            let others = (0..self.keys.len()).filter(|&other| wish.has_also(other));
            let names = others.chain([key]).map(|key| &self.keys[key]);
            let keys = KeySet::new(names).expect("they are few");
            core.acquire(&keys, options, serial, at)
        } else {
            core.acquire(key_bytes, options, serial, at)
        };
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} {purpose:?} #{serial} key {key} {wish:?}: {outcome:?}")
        });
        let op = asked?;
        // A fenced lock takes a round of votes and one to write the number back; a set takes a
        // round for each key. In each round a node that forgot the script is asked once more.
        let rounds = match wish.also.count_ones() {
            0 if !wish.fenced => 1,
            others => 2 * u64::from(others + 1 + u32::from(wish.fenced)),
        };
        let due = now + wait + rounds * self.plan.node_timeout() + self.hold_at_start(client);
        self.note_request(client, serial, purpose, "acquire", due);
        Ok((op, serial))
    }

    /// How long the client may delay an acquire because its first handshakes are not over.
    pub fn hold_at_start(&self, client: usize) -> u64 {
        let held = self.clients[client].coordinator.is_starting();
        let longest = self.plan.settings.connect_timeout.as_nanos() as u64;
        // The node whose handshake is written last has a node timeout for it.
        if held { longest + self.plan.node_timeout() } else { 0 }
    }

    /// Notes a request, and when its answer is due.
    pub fn note_request(
        &mut self,
        client: usize,
        serial: u64,
        purpose: Purpose,
        what: &'static str,
        due: u64,
    ) {
        let it = &mut self.clients[client];
        it.asked.insert(serial, purpose);
        self.checker.ask(serial, client, what, due + SLACK, it.stopped_for);
    }

    pub fn take_back(&mut self, client: usize, op: Op, serial: u64) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} takes #{serial} back"));
        self.tally.cancelled += 1;
        self.clients[client].coordinator.cancel(op, instant(now));
        self.clients[client].asked.remove(&serial);
        self.checker.cancel(serial);
    }

    /// Handles the end of a request.
    pub fn answered(&mut self, client: usize, done: Completion) {
        let (now, serial) = (self.agenda.now(), done.data);
        self.trace.note(now, || match &done.result {
            Ok(outcome) => format!("client {client} gets #{serial}: {outcome:?}"),
            Err(error) => format!("client {client} gets #{serial}: {error}"),
        });
        let purpose = self.clients[client].asked.remove(&serial);
        let slack = 2 * self.plan.fetched_late;
        self.checker.answer(serial, now, self.clients[client].stopped_for + slack);
        self.count(purpose, &done.result);
        match (purpose, done.result) {
            (
                Some(Purpose::Acquire { user } | Purpose::Adopt { user }),
                Ok(Outcome::Acquired(lock)),
            ) => {
                self.begin_to_hold(client, user, lock, serial);
            }
            (Some(Purpose::Inspect { user }), Ok(Outcome::Inspected(seen))) => {
                self.seen(&seen);
                self.rest(client, user);
            }
            (Some(Purpose::Borrow { user }), result) => self.borrowed(client, user, result),
            (Some(Purpose::Extend { user }), result) => {
                self.extended(client, user, serial, result);
            }
            (
                Some(
                    Purpose::Acquire { user }
                    | Purpose::Release { user }
                    | Purpose::Adopt { user }
                    | Purpose::Inspect { user },
                ),
                _,
            ) => self.rest(client, user),
            (Some(Purpose::Errand), result) => self.clients[client].make_own_request = Some(result),
            (Some(Purpose::Farewell), Ok(Outcome::Acquired(lock))) => {
                self.clients[client].coordinator.release_nowait(&lock, instant(now));
            }
            (Some(Purpose::Relic | Purpose::Farewell) | None, _) => {}
        }
    }

    fn count(&mut self, purpose: Option<Purpose>, result: &Result<Outcome, Error>) {
        let tally = &mut self.tally;
        let adopts = matches!(purpose, Some(Purpose::Adopt { .. }));
        *match result {
            Ok(Outcome::Acquired(_)) if adopts => &mut tally.adopted,
            Err(Error::Lost { .. }) if adopts => &mut tally.adopted_in_vain,
            Ok(Outcome::Acquired(_)) => &mut tally.handed_out,
            Ok(Outcome::Extended { .. }) => &mut tally.extended,
            Ok(Outcome::Inspected(_)) => &mut tally.inspected,
            Ok(Outcome::Vouched(_)) => {
                return self.checker.report("a vouching that no user asked for".into());
            }
            Ok(Outcome::ForceReleased(_)) => {
                return self.checker.report("a forced release that no user asked for".into());
            }
            Ok(Outcome::Released(ReleaseOutcome::Released)) => &mut tally.released,
            Ok(Outcome::Released(ReleaseOutcome::TakenByOther)) => &mut tally.taken_by_other,
            Ok(Outcome::Released(ReleaseOutcome::AlreadyExpired)) => &mut tally.already_expired,
            Ok(Outcome::Released(ReleaseOutcome::Unconfirmed { .. })) => &mut tally.unconfirmed,
            Err(Error::Contended(_)) => &mut tally.contended,
            Err(Error::NoQuorum(_)) => &mut tally.no_quorum,
            Err(Error::Expired(_)) => &mut tally.expired,
            Err(Error::Lost { .. }) => &mut tally.lost,
            // Shortly before the bound of a renewal, too little time may be left for an extend.
            Err(Error::Config(ConfigError::Ttl(InvalidTtl::TooShort { .. })))
                if matches!(purpose, Some(Purpose::Extend { .. })) =>
            {
                return;
            }
            other => {
                return self.checker.report(format!("a result that cannot be: {other:?}"));
            }
        } += 1;
    }

    /// Users begin nothing new, and a user that has a lock soon releases it.
    pub fn wind_down(&mut self, client: usize) {
        let now = self.agenda.now();
        for user in &mut self.clients[client].users {
            user.at = match user.state {
                State::Holding(_) | State::Borrowing(_) => now + self.dice.below(50 * MILLI),
                State::Waiting { .. } if self.dice.chance(500) => now + self.dice.below(50 * MILLI),
                _ => u64::MAX,
            };
        }
    }
}
