//! Leader election by a blocking client, which has no thread of its own: its campaigns go on inside
//! its calls, and the caller polls what came of them.

use std::time::Duration;

use super::Client;
use crate::net::clock;
use crate::net::observe::{self, Verb};
use crate::proto::election::{Candidate, Leadership, Standing, StandingChange};
use crate::proto::error::Error;
use crate::proto::ids::CampaignId;
use crate::proto::lock::Lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// Leader election. A campaign goes on inside the calls of the client, above all
/// [`drive`](Client::drive), which returns early when a candidate's standing changes. They renew
/// the lock of a leader, too: call one of them at least every third of the ttl.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Candidate, Client, Config, Standing};
///
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let client = Client::connect(config)?;
/// let me = Candidate::named("web-1").address("10.0.0.7:8080");
/// let campaign = client.campaign("scheduler", me, Duration::from_secs(10))?;
/// let mut steps = 0;
/// while steps < 3 {
///     client.drive(Duration::from_millis(100))?;
///     while let Some(change) = client.poll_standing() {
///         match change.standing {
///             Standing::Leading(lock) => println!("I lead, term {:?}", lock.fence()),
///             Standing::Following(leader) => {
///                 println!("{leader:?} leads"); // a term of mine is over
///                 client.end_term(campaign);
///             }
///             Standing::AskedToResign(_) => client.end_term(campaign),
///             Standing::Failed(error) => println!("{error}"),
///             _ => {}
///         }
///     }
///     if !client.remaining_term(campaign).is_zero() {
///         steps += 1; // ... a step of what only the leader does
///     }
/// }
/// client.withdraw(campaign);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Client {
    /// Begins a campaign: the candidate asks for the lock on `name`, in line and with a fencing
    /// number, and leads while it holds the lock. The lock is renewed without a bound unless the
    /// options have one; their wait is ignored.
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, candidate or option; [`Error::Closed`] in a forked
    /// process.
    pub fn campaign(
        &self,
        name: impl AsRef<[u8]>,
        candidate: Candidate,
        options: impl Into<LockOptions>,
    ) -> Result<CampaignId, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.reconnect_after_pause()?;
        let number = inner.notices.next();
        let campaign = inner.engine.campaign(name, candidate, options, number)?;
        inner.engine.flush();
        Ok(campaign)
    }

    /// Begins to observe the election on `name`: each change of who leads is a standing
    /// ([`poll_standing`](Client::poll_standing)).
    ///
    /// # Errors
    /// As [`campaign`](Client::campaign).
    pub fn observe(&self, name: impl AsRef<[u8]>) -> Result<CampaignId, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.reconnect_after_pause()?;
        let campaign = inner.engine.observe(name, 0)?;
        inner.engine.flush();
        Ok(campaign)
    }

    /// Who leads now, by one look at the nodes. Waits for their answers, for the node timeout at
    /// most.
    ///
    /// # Errors
    /// An invalid name, or [`Error::Closed`] in a forked process. Too few answers are no error, but
    /// [`Leadership::Unknown`].
    pub fn leader(&self, name: impl AsRef<[u8]>) -> Result<Leadership, Error> {
        let observer = self.observe(name)?;
        let mut inner = self.inner.borrow_mut();
        let seen = loop {
            inner.take_completions();
            if let Some(Standing::Observed(seen)) = inner.engine.take_standing(observer) {
                break seen;
            }
            inner.turn_until(Instant::from_nanos(u64::MAX))?;
        };
        inner.engine.withdraw(observer);
        Ok(seen)
    }

    /// The next change of where a candidate of this client stands. `data` of a change is a number
    /// of the client's own.
    pub fn poll_standing(&self) -> Option<StandingChange> {
        let mut inner = self.inner.borrow_mut();
        inner.take_completions();
        let change = inner.engine.poll_standing();
        inner.engine.flush();
        change
    }

    /// How long the term of this candidate may still be believed in: zero if it does not lead, or
    /// its lock is over. Read it before each side effect. Asks no node.
    pub fn remaining_term(&self, campaign: CampaignId) -> Duration {
        let mut inner = self.inner.borrow_mut();
        if !inner.engine.check_fork() {
            return Duration::ZERO;
        }
        let engine = &inner.engine;
        let deadline = engine.term(campaign).and_then(|lock| engine.deadline(lock));
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_since(clock::now()))
    }

    /// The caller has stopped what only a leader may do. The lock is released if it is still held,
    /// and the candidate asks for it anew: at once, or after the pause for which it was asked to
    /// resign.
    pub fn end_term(&self, campaign: CampaignId) {
        let mut inner = self.inner.borrow_mut();
        if inner.engine.check_fork() {
            inner.engine.end_term(campaign);
            inner.engine.flush();
        }
    }

    /// The candidate steps down. It does not ask for the lock again before `pause` has passed and
    /// the caller has called [`end_term`](Client::end_term). Waits for the release as
    /// [`Guard::release`](crate::Guard::release) does.
    ///
    /// # Errors
    /// [`Error::Lost`] if the candidate does not lead. It stays out for the pause all the same.
    pub fn resign(&self, campaign: CampaignId, pause: Duration) -> Result<ReleaseOutcome, Error> {
        observe::call(Verb::Release, &[], || {
            match self.ask(|engine| engine.resign(campaign, pause, 0))? {
                Outcome::Released(released) => Ok(released),
                other => unreachable!("a release ended as {other:?}"),
            }
        })
    }

    /// Ends a campaign or an observation. A candidate leaves the line, and if it leads, its lock is
    /// released.
    pub fn withdraw(&self, campaign: CampaignId) {
        let mut inner = self.inner.borrow_mut();
        if inner.engine.check_fork() {
            if let Some(lock) = inner.engine.term(campaign).map(Lock::alias) {
                inner.engine.release_nowait(&lock);
            }
            inner.engine.withdraw(campaign);
            inner.engine.flush();
        }
    }

    /// The candidate is reached at this address from now on. A leader writes it where observers
    /// read it.
    ///
    /// # Errors
    /// An address that no token can name.
    pub fn proclaim(&self, campaign: CampaignId, address: &str) -> Result<(), Error> {
        let mut inner = self.inner.borrow_mut();
        inner.engine.check_fork();
        inner.engine.proclaim(campaign, address)?;
        inner.engine.flush();
        Ok(())
    }
}
