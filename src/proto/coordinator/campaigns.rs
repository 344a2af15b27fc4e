//! Campaigns: a candidate asks for the lock of an election, and learns who leads.
//!
//! A campaign makes requests as a caller would, and its requests end as any other. What follows
//! from their ends is done in [`poll_standing`](Coordinator::poll_standing) and
//! [`handle_timeout`](Coordinator::handle_timeout), whose callers have just read the clock.

use std::mem;
use std::time::Duration;

use crate::proto::coordinator::Coordinator;
use crate::proto::election::campaign::{Campaign, Candidacy};
use crate::proto::election::elections::Elections;
use crate::proto::election::leader::resign_note;
use crate::proto::election::{Candidate, Leader, Standing, StandingChange};
use crate::proto::error::{ConfigError, Error, LostReason};
use crate::proto::ids::{CampaignId, Op};
use crate::proto::key::KeyHash;
use crate::proto::keys::KeysRef;
use crate::proto::lock::Lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::own_keys::Note;
use crate::proto::time::Instant;

/// How long a leader has to read that it is asked to resign. It looks once a second at least.
const ASKED_FOR: Duration = Duration::from_secs(10);

impl Coordinator {
    /// Begins a campaign: the candidate asks for the lock on `name`, in line and with a fencing
    /// number, and leads while it holds the lock. The lock is renewed until the caller ends the
    /// term, without a bound unless the options have one. The wait of the options is ignored: a
    /// candidate waits for as long as the campaign goes on.
    ///
    /// What comes of it is reported by [`poll_standing`](Coordinator::poll_standing), with `data`;
    /// warnings and the loss of the lock are also lock updates with this `data`.
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, candidate or option.
    pub fn campaign(
        &mut self,
        name: &[u8],
        candidate: Candidate,
        options: impl Into<LockOptions>,
        data: u64,
        now: Instant,
    ) -> Result<CampaignId, Error> {
        let options = self.candidates_options(&candidate, options.into())?;
        self.check_fence()?;
        self.locks.check_params(KeysRef::One(name), options.ttl, options.auto_extend)?;
        let candidacy = Candidacy { candidate, options, version: 0 };
        Ok(self.begin_campaign(Campaign::new(name, Some(candidacy), data, now), now))
    }

    /// Begins to observe the election on `name`: each change of who leads is reported by
    /// [`poll_standing`](Coordinator::poll_standing) with `data`. The nodes are asked every second.
    ///
    /// # Errors
    /// An invalid name.
    pub fn observe(&mut self, name: &[u8], data: u64, now: Instant) -> Result<CampaignId, Error> {
        self.locks.check_key(name)?;
        Ok(self.begin_campaign(Campaign::new(name, None, data, now), now))
    }

    /// Asks for the lock of an election. A leader that has just stepped down must not overtake the
    /// others who wait, so the request joins the line first.
    pub(crate) fn acquire_in_line(
        &mut self,
        name: &[u8],
        options: LockOptions,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        self.waits.expect_line(KeyHash::of(name), now);
        self.acquire(name, options, data, now)
    }

    fn begin_campaign(&mut self, campaign: Campaign, now: Instant) -> CampaignId {
        let id = self.elections.add(campaign);
        self.go_on_with_campaigns(now);
        id
    }

    /// The options with which a candidate asks for the lock.
    fn candidates_options(
        &mut self,
        candidate: &Candidate,
        options: LockOptions,
    ) -> Result<LockOptions, ConfigError> {
        let owner = self.owner_id(&candidate.owner()?)?;
        let terms = options.auto_extend.unwrap_or(AutoExtend::at_most(Duration::MAX));
        Ok(options.wait_forever().fenced().auto_extend(terms).owned_by(owner))
    }

    /// The next change of where a candidate of this client stands. The caller reads the clock
    /// immediately before, and takes all changes in each turn, after the completions and the lock
    /// updates.
    pub fn poll_standing(&mut self, now: Instant) -> Option<StandingChange> {
        self.go_on_with_campaigns(now);
        self.elections.poll_standing()
    }

    /// The data of a campaign that has a standing which was not announced yet. For drivers that
    /// wake a caller first and [take](Coordinator::take_standing) its standings later.
    pub fn poll_news(&mut self, now: Instant) -> Option<u64> {
        self.go_on_with_campaigns(now);
        self.elections.poll_news()
    }

    /// The next standing in this campaign; `None` if there is none. The caller reads the clock
    /// immediately before.
    pub fn take_standing(&mut self, id: CampaignId, now: Instant) -> Option<Standing> {
        self.with_campaigns(|elections, core| {
            let campaign = elections.get_mut(id)?;
            campaign.end_late_term(core, now);
            campaign.poll_standing()
        })
    }

    /// Whether there is a campaign.
    pub fn has_campaigns(&self) -> bool {
        self.elections.next_timeout().is_some()
    }

    /// Whether [`poll_standing`](Coordinator::poll_standing) may have something.
    pub fn has_standings(&self) -> bool {
        self.elections.has_news()
    }

    /// The error with which a leader that was asked to resign gives its term up.
    pub fn why_to_resign(&self, id: CampaignId, now: Instant) -> Option<Error> {
        let campaign = self.elections.get(id)?;
        let asked = campaign.is_asked_to_resign();
        asked.then(|| self.lost_unasked(LostReason::AskedToResign, campaign.name(), now))
    }

    /// The lock of the present term, if this candidate leads and its caller has taken that
    /// standing.
    pub fn term(&self, id: CampaignId) -> Option<&Lock> {
        let lock = self.elections.get(id)?.lock()?;
        self.deadline(lock).is_some().then_some(lock)
    }

    /// The caller has stopped what only a leader may do. The lock is released if it is still held,
    /// and the candidate asks for it anew: at once, or after the pause for which it was asked to
    /// resign.
    pub fn end_term(&mut self, id: CampaignId, now: Instant) {
        self.with_campaigns(|elections, core| {
            if let Some(campaign) = elections.get_mut(id) {
                campaign.end_term(core, now);
                campaign.go_on(core, now);
            }
        });
    }

    /// The candidate steps down, and does not ask for the lock again before `pause` has passed and
    /// the caller has called [`end_term`](Coordinator::end_term). The release of the lock ends as
    /// any release, with `data`.
    ///
    /// # Errors
    /// [`Error::Lost`] if this candidate does not lead. It stays out for the pause all the same.
    pub fn resign(
        &mut self,
        id: CampaignId,
        pause: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let lock =
            self.with_campaigns(|elections, core| elections.get_mut(id)?.resign(pause, core, now));
        let name = self.elections.get(id).map_or(&[][..], Campaign::name);
        match lock {
            Some(lock) => Ok(self.release(lock, data, now)),
            None => Err(self.lost_unasked(LostReason::Over, name, now)),
        }
    }

    /// The campaign is over: the candidate leaves the line. The lock of a term that the caller has
    /// taken is the caller's, who releases it.
    pub fn withdraw(&mut self, id: CampaignId, now: Instant) {
        if let Some(campaign) = self.elections.remove(id) {
            campaign.withdraw(self, now);
        }
    }

    /// The candidate is reached at this address from now on. A leader writes it where observers
    /// read it, at once.
    ///
    /// # Errors
    /// An address that no token can name.
    pub fn proclaim(&mut self, id: CampaignId, address: &str, now: Instant) -> Result<(), Error> {
        let Some(candidacy) = self.elections.get(id).and_then(Campaign::candidacy) else {
            return Ok(());
        };
        let (candidate, options) =
            (candidacy.candidate.clone().address(address), candidacy.options);
        let options = self.candidates_options(&candidate, options)?;
        if let Some(campaign) = self.elections.get_mut(id) {
            campaign.proclaim(candidate, options, now);
        }
        self.go_on_with_campaigns(now);
        Ok(())
    }

    /// Asks the leader that was seen to step down, and to stay out for `pause`. It reads that at
    /// its next look, within a second; whether it has stepped down, the next observation says.
    ///
    /// # Errors
    /// Before anything is sent: an invalid name, or [`Error::Busy`].
    pub fn ask_to_resign(
        &mut self,
        name: &[u8],
        leader: &Leader,
        pause: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let text = resign_note(leader.token(), pause);
        let ttl = ASKED_FOR.min(self.settings().max_ttl);
        self.write_note(name, Note::Resign, text.as_bytes(), ttl, data, now)
    }

    /// Lets the campaigns do what is due, and what follows from their requests.
    #[inline]
    pub(super) fn go_on_with_campaigns(&mut self, now: Instant) {
        if self.elections.next_timeout().is_some() {
            self.with_campaigns(|elections, core| elections.go_on(core, now));
        }
    }

    /// Runs `act` with the campaigns, which make requests of this coordinator. No request reports
    /// anything to a campaign before `act` returns.
    fn with_campaigns<T>(&mut self, act: impl FnOnce(&mut Elections, &mut Coordinator) -> T) -> T {
        let mut elections = mem::take(&mut self.elections);
        let done = act(&mut elections, self);
        self.elections = elections;
        done
    }
}
