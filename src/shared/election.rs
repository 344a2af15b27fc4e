//! Leader election by a shared client: a campaign, the term of a leader, and the observation of who
//! leads.
//!
//! The hazard is a term that is over for the client and not for its holder. So a term has the
//! guard of its lock, the client ends the lock's state first, and the candidate asks for the lock
//! again only after the term was dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::{Answering, Call, Question, sealed};
use super::guard::SharedGuard;
use super::open::Open;
use super::watcher::{LockWatcher, Lost};
use super::{Owner, SharedClient, park};
use crate::net::observe::Verb;
use crate::proto::election::{self, Candidate, Leader, Leadership};
use crate::proto::error::{Error, Report};
use crate::proto::ids::{CampaignId, Op};
use crate::proto::lock::LockToken;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// How long the lock of a leader lasts without a renewal, unless the election says otherwise.
const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// An election: candidates of any process campaign for one name, and one of them leads at a time.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::shared::{Election, Standing, Term};
/// use redlatch::{Candidate, Error, SharedClient};
///
/// async fn run(locks: &SharedClient) -> Result<(), Error> {
///     let election = Election::of(locks, "scheduler").ttl(Duration::from_secs(10));
///     let mut me = election.campaign(Candidate::named("web-1").address("10.0.0.7:8080"))?;
///     loop {
///         match me.changed().await? {
///             Standing::Leading(term) => lead(&term).await, // dropping the term resigns
///             Standing::Following(leader) => println!("{leader:?} leads"),
///         }
///     }
/// }
///
/// async fn lead(term: &Term) {
///     println!("term {}", term.number());
///     // ... work until it is over, with `term.check()?` before each side effect:
///     println!("{}", term.lost().await);
/// }
/// ```
///
/// A candidate stands in line for the lock on the election's name, so the next one gets it when the
/// leader goes, and none overtakes another. The lock has a fencing number, the number of the term,
/// and is renewed until the term is dropped: see [`Term`].
#[derive(Debug, Clone)]
pub struct Election {
    owner: Arc<Owner>,
    name: Box<[u8]>,
    ttl: Duration,
    max_hold: Duration,
}

impl Election {
    /// The election of this name: the name is the key of a lock.
    pub fn of(locks: &SharedClient, name: impl AsRef<[u8]>) -> Election {
        Election {
            owner: Arc::clone(&locks.owner),
            name: name.as_ref().into(),
            ttl: DEFAULT_TTL,
            max_hold: Duration::MAX,
        }
    }

    /// How long a leader that died is believed to lead, at most: 10 s unless set. All candidates of
    /// an election should use the same ttl.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Election {
        self.ttl = ttl;
        self
    }

    /// The longest time of one term. Unless set, a term ends only with the [`Term`].
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Election {
        self.max_hold = max_hold;
        self
    }

    /// Begins a campaign. It stands in line for the lock at once, and goes on until the
    /// [`Campaign`] is dropped.
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, candidate or ttl; or [`Error::Closed`].
    pub fn campaign(&self, candidate: Candidate) -> Result<Campaign, Error> {
        let options = LockOptions::new(self.ttl).auto_extend(AutoExtend::at_most(self.max_hold));
        let seat = Seat::take(&self.owner, |open, data| {
            open.engine.campaign(&self.name, candidate, options, data)
        })?;
        Ok(Campaign { seat, name: self.name.clone() })
    }

    /// Observes who leads. Nothing is asked before the first call of the [`Observer`].
    pub fn observe(&self) -> Observer {
        Observer { owner: Arc::clone(&self.owner), name: self.name.clone(), seat: None }
    }
}

/// A campaign's place among those of the client, given back when this is dropped.
struct Seat {
    owner: Arc<Owner>,
    place: usize,
    id: CampaignId,
}

impl Seat {
    fn take(
        owner: &Arc<Owner>,
        begin: impl FnOnce(&mut Open<'_>, u64) -> Result<CampaignId, Error>,
    ) -> Result<Seat, Error> {
        let (place, id) = owner.inner.with(|open| open.begin_campaign(begin))??;
        Ok(Seat { owner: Arc::clone(owner), place, id })
    }

    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut answer: impl FnMut(&mut Open<'_>, election::Standing) -> Option<Result<T, Error>>,
    ) -> Poll<Result<T, Error>> {
        let waker = context.waker().clone();
        let polled = self.owner.inner.with(|open| {
            while let Some(standing) = open.engine.take_standing(self.id) {
                if let Some(answer) = answer(open, standing) {
                    open.drop_after_unlock(waker);
                    return Poll::Ready(answer);
                }
            }
            open.note_campaigns_waker(self.place, waker)
        });
        polled.unwrap_or_else(|closed| Poll::Ready(Err(closed)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // If the client is closed, there is nothing to withdraw.
        let _ = self.owner.inner.with(|open| open.end_campaign(self.place, self.id));
    }
}

/// A candidate in an election: see [`Election::campaign`].
///
/// Dropping it withdraws the candidate, which leaves the line. A [`Term`] that it gave keeps its
/// lock until it is dropped, too.
pub struct Campaign {
    seat: Seat,
    name: Box<[u8]>,
}

/// Where a candidate stands.
#[derive(Debug)]
pub enum Standing {
    /// The candidate leads, until this term is over. The candidate asks for the lock anew only
    /// after the term was dropped.
    Leading(Term),
    /// Another candidate leads; `None`: nobody. Each term of this campaign is followed by this.
    Following(Option<Leader>),
}

impl Campaign {
    /// The next change of where the candidate stands. Between two [`Standing::Leading`] there is
    /// always a [`Standing::Following`]. Of the leaders that followed each other since the last
    /// call only the last one is reported. A lock that was lost before this call returned it is not
    /// reported as a term.
    ///
    /// The future may be dropped at any time: no change is lost.
    ///
    /// # Errors
    /// What refuses the candidate for good: a password or a right that is missing, say. The
    /// campaign goes on all the same, and asks again after one ttl. [`Error::Closed`] once the
    /// client is closed.
    pub fn changed(&mut self) -> Changed<'_> {
        Changed { campaign: self }
    }

    /// Whether the candidate leads: it was returned a [`Term`] whose lock is still held.
    pub fn is_leading(&self) -> bool {
        let Seat { owner, id, .. } = &self.seat;
        owner.inner.with(|open| open.engine.term(*id).is_some()).unwrap_or(false)
    }

    /// Steps down: releases the lock of the term, which is over at once for the [`Term`], too. The
    /// candidate is out for `pause`, so that another one leads, and asks for the lock again only
    /// after the term was dropped.
    ///
    /// # Errors
    /// The call ends with [`Error::Lost`] if the candidate does not lead: it is out for the pause
    /// all the same. [`Error::Closed`].
    pub fn resign(&self, pause: Duration) -> Call<Resign<'_>> {
        Call::new(&self.seat.owner, Resign { campaign: self, pause })
    }

    /// The candidate is reached at this address from now on. Observers of a leader see the new
    /// address after the leader has written it, a round trip later.
    ///
    /// # Errors
    /// An invalid address, or [`Error::Closed`].
    pub fn proclaim(&self, address: &str) -> Result<(), Error> {
        let Seat { owner, id, .. } = &self.seat;
        owner.inner.with(|open| open.engine.proclaim(*id, address))?
    }
}

/// One line with `{:?}`.
impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, leads) = (self.name.escape_ascii(), self.is_leading());
        write!(f, "Campaign {{ election: \"{name}\", leads: {leads} }}")
    }
}

/// The future of [`Campaign::changed`].
#[derive(Debug)]
#[must_use = "it reports nothing unless it is awaited or waited for"]
pub struct Changed<'a> {
    campaign: &'a mut Campaign,
}

impl Changed<'_> {
    /// Blocks the thread until there is a change.
    ///
    /// # Errors
    /// As [`Campaign::changed`].
    pub fn wait(self) -> Result<Standing, Error> {
        park::wait(self)
    }
}

impl Future for Changed<'_> {
    type Output = Result<Standing, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Campaign { seat, name } = &*self.campaign;
        seat.poll(context, |open, standing| match standing {
            election::Standing::Leading(lock) => {
                let number = lock.fence()?;
                let lock_state = open.hold_term(seat.place, name, &lock);
                let guard = SharedGuard::of_term(&seat.owner, lock_state, lock);
                let (place, id) = (seat.place, seat.id);
                Some(Ok(Standing::Leading(Term { guard: Some(guard), number, place, id })))
            }
            election::Standing::Following(leader) => Some(Ok(Standing::Following(leader))),
            election::Standing::Failed(error) => Some(Err(error)),
            // The term is over for its holder by now.
            election::Standing::AskedToResign(_) | election::Standing::Observed(_) => None,
        })
    }
}

/// The lock of a leader: it leads until this is over.
///
/// It ends as any lock does ([`lost`](Term::lost)), and when a client asks the leader to resign.
/// Then stop what only a leader may do, and drop the term: that releases the lock, and only then
/// the candidate asks for it again. A term has no bound unless the election has one: it lives as
/// long as this value, and an operator who sees a leader that hangs can ask it to resign, or end
/// its process.
///
/// Like a guard it is `Send`, not `Clone`, and borrows nothing: other threads get a
/// [`watcher`](Term::watcher).
#[must_use = "a term that is dropped is over"]
pub struct Term {
    /// `None` once it is dropped.
    guard: Option<SharedGuard>,
    number: u64,
    place: usize,
    id: CampaignId,
}

impl Term {
    /// The number of the term: the fencing number of its lock, greater than that of every earlier
    /// term.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the term lasts: call it before each side effect. A local read.
    ///
    /// # Errors
    /// [`Error::Lost`] once it is over, [`Error::Closed`] if the client is closed.
    pub fn check(&self) -> Result<(), Error> {
        self.guard().check()
    }

    /// A future that ends when the term does, before the deadline of the lock, and returns why.
    pub fn lost(&self) -> Lost {
        self.guard().lost()
    }

    /// How long the term may still be believed in; zero once it is over.
    pub fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    /// When the term ends unless its lock is renewed: see [`LockWatcher::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.guard().deadline()
    }

    /// The token of the lock.
    pub fn token(&self) -> LockToken {
        self.guard().token()
    }

    /// A view of the term's lock, for any code that acts in this term.
    pub fn watcher(&self) -> LockWatcher {
        self.guard().watcher()
    }

    fn guard(&self) -> &SharedGuard {
        self.guard.as_ref().expect("it is taken only in the drop")
    }
}

/// One line with `{:?}`.
impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, remaining) = (self.number, self.remaining());
        write!(f, "Term {{ number: {number}, remaining: {remaining:?} }}")
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let owner = Arc::clone(guard.owner());
        // First the lock is released, then the candidate may ask for it again.
        drop(guard);
        let _ = owner.inner.with(|open| open.end_term(self.place, self.id));
    }
}

/// The call of [`Campaign::resign`].
#[derive(Debug)]
pub struct Resign<'a> {
    campaign: &'a Campaign,
    pause: Duration,
}

impl Question for Resign<'_> {}

impl sealed::Asked for Resign<'_> {
    const VERB: Option<Verb> = Some(Verb::Release);

    type Answer = ReleaseOutcome;

    fn key(&self) -> &[u8] {
        &self.campaign.name
    }

    fn ask(&self, _: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        let Seat { place, id, .. } = self.campaign.seat;
        let op = open.engine.resign(id, self.pause, data)?;
        open.end_lock_of_term(place, None);
        Ok(op)
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) -> ReleaseOutcome {
        match outcome {
            Outcome::Released(released) => released,
            other => unreachable!("a release ended as {other:?}"),
        }
    }
}

/// Who leads, seen from outside: see [`Election::observe`]. The nodes are asked about once a second
/// while a call of it is awaited, and after the first [`changed`](Observer::changed) until it is
/// dropped.
pub struct Observer {
    owner: Arc<Owner>,
    name: Box<[u8]>,
    seat: Option<Seat>,
}

impl Observer {
    /// Who leads now, by one look at the nodes.
    ///
    /// # Errors
    /// The future ends with an error for an invalid name, or with [`Error::Closed`]. Too few
    /// answers are no error: [`Leadership::Unknown`].
    pub fn leader(&self) -> Look {
        let (owner, name) = (Arc::clone(&self.owner), self.name.clone());
        Look(Observer { owner, name, seat: None })
    }

    /// The next change of who leads; the first call returns who leads now. Of several changes since
    /// the last call only the last one is returned.
    ///
    /// # Errors
    /// As [`leader`](Observer::leader).
    pub fn changed(&mut self) -> Observed<'_> {
        Observed(self)
    }

    /// Asks this leader to step down, and not to lead again for `pause`. Its [`Term`] is over for
    /// its holder about a second later at most, and the lock is released when the holder has
    /// dropped the term. [`changed`](Observer::changed) reports that. Returns what each node
    /// answered to the note that the leader reads.
    ///
    /// # Errors
    /// The call ends with an error for an invalid name, or with [`Error::Busy`].
    pub fn ask_to_resign<'a>(&'a self, leader: &'a Leader, pause: Duration) -> Call<Request<'a>> {
        Call::new(&self.owner, Request { name: &self.name, leader, pause })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Leadership, Error>> {
        let Observer { owner, name, seat } = self;
        let seat = match seat {
            Some(seat) => seat,
            None => {
                let begin = |open: &mut Open<'_>, data| open.engine.observe(&**name, data);
                match Seat::take(owner, begin) {
                    Ok(taken) => seat.insert(taken),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        };
        seat.poll(context, |_, standing| match standing {
            election::Standing::Observed(leadership) => Some(Ok(leadership)),
            _ => None,
        })
    }
}

/// One line with `{:?}`.
impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer {{ election: \"{}\" }}", self.name.escape_ascii())
    }
}

/// The future of [`Observer::leader`].
#[derive(Debug)]
#[must_use = "nothing is asked unless it is awaited or waited for"]
pub struct Look(Observer);

impl Look {
    /// Blocks the thread until the nodes have answered.
    ///
    /// # Errors
    /// As [`Observer::leader`].
    pub fn wait(self) -> Result<Leadership, Error> {
        park::wait(self)
    }
}

impl Future for Look {
    type Output = Result<Leadership, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

/// The future of [`Observer::changed`].
#[derive(Debug)]
#[must_use = "nothing is reported unless it is awaited or waited for"]
pub struct Observed<'a>(&'a mut Observer);

impl Observed<'_> {
    /// Blocks the thread until who leads has changed.
    ///
    /// # Errors
    /// As [`Observer::changed`].
    pub fn wait(self) -> Result<Leadership, Error> {
        park::wait(self)
    }
}

impl Future for Observed<'_> {
    type Output = Result<Leadership, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

/// The call of [`Observer::ask_to_resign`].
#[derive(Debug)]
pub struct Request<'a> {
    name: &'a [u8],
    leader: &'a Leader,
    pause: Duration,
}

impl Question for Request<'_> {}

impl sealed::Asked for Request<'_> {
    const VERB: Option<Verb> = None;

    type Answer = Report;

    fn key(&self) -> &[u8] {
        self.name
    }

    fn ask(&self, name: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        open.engine.ask_to_resign(name, self.leader, self.pause, data)
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) -> Report {
        match outcome {
            Outcome::Noted(report) => *report,
            other => unreachable!("a note ended as {other:?}"),
        }
    }
}
