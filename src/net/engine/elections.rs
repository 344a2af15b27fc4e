//! Leader election by an engine: each call reads the clock, and passes on to the coordinator.

use std::time::Duration;

use super::Engine;
use crate::net::clock;
use crate::proto::election::{Candidate, Leader, Standing, StandingChange};
use crate::proto::error::{ClosedReason, Error};
use crate::proto::ids::{CampaignId, Op};
use crate::proto::lock::Lock;
use crate::proto::lock_options::LockOptions;

impl Engine {
    /// Begins a campaign: the candidate asks for the lock on `name`, in line and with a fencing
    /// number, and leads while it holds the lock. The lock is renewed until the caller ends the
    /// term, without a bound unless the options have one. The wait of the options is ignored: a
    /// candidate waits for as long as the campaign goes on.
    ///
    /// [`poll_standing`](Engine::poll_standing) reports its changes, with `data`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use redlatch::{Candidate, Engine, Error, Standing};
    /// # fn run(engine: &mut Engine) -> Result<(), Error> {
    /// let me = Candidate::named("web-1").address("10.0.0.7:8080");
    /// let campaign = engine.campaign("scheduler", me, Duration::from_secs(10), 0)?;
    /// // In each turn of the loop, after the completions and the lock updates:
    /// while let Some(change) = engine.poll_standing() {
    ///     match change.standing {
    ///         Standing::Leading(lock) => println!("term {:?}", lock.fence()),
    ///         Standing::Following(leader) => {
    ///             println!("{leader:?} leads"); // a term of mine is over
    ///             engine.end_term(campaign);
    ///         }
    ///         Standing::AskedToResign(_) => engine.end_term(campaign),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, candidate or option; [`Error::Closed`] in a forked
    /// process.
    pub fn campaign(
        &mut self,
        name: impl AsRef<[u8]>,
        candidate: Candidate,
        options: impl Into<LockOptions>,
        data: u64,
    ) -> Result<CampaignId, Error> {
        self.refuse_in_a_fork()?;
        self.coordinator.campaign(name.as_ref(), candidate, options, data, clock::now())
    }

    /// Begins to observe the election on `name`: each change of who leads is reported by
    /// [`poll_standing`](Engine::poll_standing) with `data`. The nodes are asked once a second.
    ///
    /// # Errors
    /// An invalid name, or [`Error::Closed`] in a forked process.
    pub fn observe(&mut self, name: impl AsRef<[u8]>, data: u64) -> Result<CampaignId, Error> {
        self.refuse_in_a_fork()?;
        self.coordinator.observe(name.as_ref(), data, clock::now())
    }

    /// A campaign in a forked process would report nothing, and its caller would wait for ever.
    fn refuse_in_a_fork(&mut self) -> Result<(), Error> {
        if self.check_fork() { Ok(()) } else { Err(Error::Closed(ClosedReason::Forked)) }
    }

    /// The next change of where a candidate of this engine stands. Take all of them in each turn,
    /// after the completions and the lock updates: while any is left,
    /// [`prepare`](Engine::prepare) returns a zero timeout. A campaign makes requests of its own.
    /// [`poll_completion`](Engine::poll_completion) takes their ends and does not report them, so a
    /// loop that does not call it stops its campaigns.
    pub fn poll_standing(&mut self) -> Option<StandingChange> {
        if !self.coordinator.has_campaigns() || !self.check_fork() {
            return None;
        }
        self.coordinator.poll_standing(clock::now())
    }

    /// The lock of the present term, if this candidate leads and its caller has taken that
    /// standing.
    pub fn term(&self, campaign: CampaignId) -> Option<&Lock> {
        self.coordinator.term(campaign)
    }

    /// The caller has stopped what only a leader may do. The lock is released if it is still held,
    /// and the candidate asks for it anew: at once, or after the pause for which it was asked to
    /// resign.
    pub fn end_term(&mut self, campaign: CampaignId) {
        self.coordinator.end_term(campaign, clock::now());
    }

    /// The candidate steps down, and does not ask for the lock again before `pause` has passed and
    /// the caller has called [`end_term`](Engine::end_term). The release of the lock ends as any
    /// release, with `data`.
    ///
    /// # Errors
    /// [`Error::Lost`] if this candidate does not lead. It stays out for the pause all the same.
    pub fn resign(
        &mut self,
        campaign: CampaignId,
        pause: Duration,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.resign(campaign, pause, data, clock::now())
    }

    /// The campaign is over: the candidate leaves the line. The lock of a term that the caller has
    /// taken is the caller's, who releases it.
    pub fn withdraw(&mut self, campaign: CampaignId) {
        self.coordinator.withdraw(campaign, clock::now());
    }

    /// The candidate is reached at this address from now on. A leader writes it where observers
    /// read it, at once.
    ///
    /// # Errors
    /// An address that no token can name.
    pub fn proclaim(&mut self, campaign: CampaignId, address: &str) -> Result<(), Error> {
        self.coordinator.proclaim(campaign, address, clock::now())
    }

    /// Asks the leader that was seen to step down, and to stay out for `pause`. It reads that
    /// within about a second. Observe the election to see whether it has stepped down.
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, or [`Error::Busy`].
    pub fn ask_to_resign(
        &mut self,
        name: impl AsRef<[u8]>,
        leader: &Leader,
        pause: Duration,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.ask_to_resign(name.as_ref(), leader, pause, data, clock::now())
    }

    /// As [`Coordinator::poll_news`](crate::proto::Coordinator).
    pub(crate) fn poll_news(&mut self) -> Option<u64> {
        if !self.coordinator.has_campaigns() {
            return None;
        }
        self.coordinator.poll_news(clock::now())
    }

    /// The next standing in this campaign.
    pub(crate) fn take_standing(&mut self, campaign: CampaignId) -> Option<Standing> {
        self.coordinator.take_standing(campaign, clock::now())
    }

    /// The error with which a leader that was asked to resign gives its term up.
    pub(crate) fn why_to_resign(&self, campaign: CampaignId) -> Option<Error> {
        self.coordinator.why_to_resign(campaign, clock::now())
    }
}
