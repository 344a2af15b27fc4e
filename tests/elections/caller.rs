//! The program of a candidate: it takes its standings promptly or late, and ends its terms so.

use redlatch::{Leader, Lock};

use super::checker::Checker;
use super::*;

/// A loss may be reported this long before the lock's deadline.
const LOSS_BEFORE: Duration = millis(2);

/// How a caller goes about its campaign.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// How late it takes its standings; zero: at once.
    pub takes_after: Duration,
    /// How long after a term is over it stops its work.
    pub ends_after: Duration,
    /// It ends its term when it is asked to resign.
    pub grants_requests: bool,
}

/// A term that the caller has taken and not ended.
#[derive(Debug)]
pub struct Term {
    pub lock: Lock,
    pub number: u64,
    /// The caller has given it up: it does nothing any more that only a leader may do.
    pub given_up: bool,
}

#[derive(Debug)]
pub struct Caller {
    pub client: usize,
    pub name: String,
    pub address: String,
    pub manner: Manner,
    pub campaign: Option<CampaignId>,
    pub term: Option<Term>,
    /// The lock of a term in a campaign from which it has withdrawn. It goes on for a while.
    pub kept: Option<Lock>,
    /// It stays out until then.
    pub out_until: Instant,
    /// The leader that it follows.
    pub follows: Option<Leader>,
    was_leading: bool,
    takes_at: Option<Instant>,
    ends_at: Option<Instant>,
    /// How often its process led.
    pub terms: usize,
    /// How often it was asked to resign.
    pub requests: usize,
}

impl Caller {
    pub fn new(client: usize, name: String, manner: Manner, now: Instant) -> Caller {
        Caller {
            client,
            address: format!("{name}:1"),
            name,
            manner,
            campaign: None,
            term: None,
            kept: None,
            out_until: now,
            follows: None,
            was_leading: false,
            takes_at: None,
            ends_at: None,
            terms: 0,
            requests: 0,
        }
    }

    pub fn begin(&mut self, net: &mut Net<Client>, checker: &mut Checker) {
        let candidate = Candidate::named(&*self.name).address(&*self.address);
        checker.note_candidate(&self.name, &self.address);
        self.campaign = Some(campaign(net, self.client, candidate));
        (self.was_leading, self.follows, self.out_until) = (false, None, net.now());
    }

    /// Leaves the election. It keeps the lock of its term for a while.
    pub fn withdraw(&mut self, net: &mut Net<Client>) {
        let now = net.now();
        if let Some(campaign) = self.campaign.take() {
            net.client_mut(self.client).core.withdraw(campaign, now);
        }
        if let Some(term) = self.term.take() {
            match term.given_up {
                true => self.ends_at = None,
                false => {
                    self.kept = Some(term.lock);
                    self.ends_at = Some(now.saturating_add(self.manner.ends_after));
                }
            }
        }
    }

    /// Steps down, and stays out for this long.
    pub fn resign(&mut self, pause: Duration, net: &mut Net<Client>) {
        let Some(campaign) = self.campaign else { return };
        let now = net.now();
        if let Some(term) = &mut self.term {
            term.given_up = true;
            self.ends_at.get_or_insert(now.saturating_add(self.manner.ends_after));
        }
        drop(net.client_mut(self.client).core.resign(campaign, pause, 0, now));
        self.out_until = self.out_until.max(now.saturating_add(pause));
    }

    pub fn proclaim(&mut self, address: String, net: &mut Net<Client>, checker: &mut Checker) {
        let Some(campaign) = self.campaign else { return };
        let now = net.now();
        checker.note_candidate(&self.name, &address);
        let core = &mut net.client_mut(self.client).core;
        core.proclaim(campaign, &address, now).expect("the address is good");
        self.address = address;
    }

    /// Whether it may do what only a leader may do.
    pub fn believes(&self, net: &Net<Client>) -> bool {
        let term = self.term.as_ref().filter(|term| !term.given_up);
        let locks = term.map(|term| &term.lock).into_iter().chain(&self.kept);
        let core = &net.get_client(self.client).core;
        let now = net.now();
        locks.into_iter().any(|lock| core.deadline(lock).is_some_and(|deadline| now < deadline))
    }

    /// A turn of its driver. A late caller leaves its standings for later.
    pub fn turn(&mut self, net: &mut Net<Client>, checker: &mut Checker) -> Result<(), String> {
        drive(net, self.client);
        if self.manner.takes_after.is_zero() {
            return self.take(net, checker);
        }
        if self.takes_at.is_none() && Endpoint::has_news(net.get_client(self.client)) {
            self.takes_at = Some(net.now().saturating_add(self.manner.takes_after));
        }
        Ok(())
    }

    /// Does what it does late.
    pub fn go_on(&mut self, net: &mut Net<Client>, checker: &mut Checker) -> Result<(), String> {
        let now = net.now();
        if self.takes_at.take_if(|at| *at <= now).is_some() {
            drive(net, self.client);
            self.take(net, checker)?;
        }
        let core = &net.get_client(self.client).core;
        let is_over = |term: &Term| term.given_up || core.remaining(&term.lock, now).is_zero();
        if self.term.as_ref().is_some_and(is_over) {
            self.ends_at.get_or_insert(now.saturating_add(self.manner.ends_after));
        }
        if self.ends_at.take_if(|at| *at <= now).is_some() {
            self.end(net);
        }
        Ok(())
    }

    /// It ends its terms this late from now on, also the present one if that is over.
    pub fn end_within(&mut self, late: Duration, now: Instant) {
        self.manner.ends_after = late;
        self.ends_at = self.ends_at.map(|at| at.min(now.saturating_add(late)));
    }

    fn end(&mut self, net: &mut Net<Client>) {
        let now = net.now();
        let core = &mut net.client_mut(self.client).core;
        if let Some(lock) = self.kept.take() {
            core.release(lock, 0, now);
        }
        if self.term.take().is_some() {
            let campaign = self.campaign.expect("a term without a campaign is kept");
            core.end_term(campaign, now);
        }
    }

    fn take(&mut self, net: &mut Net<Client>, checker: &mut Checker) -> Result<(), String> {
        loop {
            let now = net.now();
            let core = &mut net.client_mut(self.client).core;
            let Some(change) = core.poll_standing(now) else { return Ok(()) };
            if Some(change.campaign) != self.campaign {
                return Err("a standing in a campaign that is over".into());
            }
            match change.standing {
                Standing::Leading(lock) => self.on_leading(lock, net, checker)?,
                Standing::Following(leader) => self.on_following(leader, net)?,
                Standing::AskedToResign(_) => self.on_request(net, checker)?,
                other => return Err(format!("{other:?} without a reason")),
            }
        }
    }

    fn on_leading(
        &mut self,
        lock: Lock,
        net: &Net<Client>,
        checker: &mut Checker,
    ) -> Result<(), String> {
        let (core, now) = (&net.get_client(self.client).core, net.now());
        if self.was_leading {
            return Err("leads twice, and follows nobody between".into());
        }
        if self.term.is_some() {
            return Err("leads again before its term was ended".into());
        }
        if now < self.out_until {
            return Err(format!("leads in its pause, which lasts until {:?}", self.out_until));
        }
        if core.deadline(&lock).is_none_or(|deadline| deadline <= now) {
            return Err(format!("leads by a lock that is over: {lock:?}"));
        }
        let own = self.campaign.and_then(|campaign| core.term(campaign));
        if own != Some(&lock) {
            return Err(format!("leads by {lock:?}, and its term has {own:?}"));
        }
        let Some(number) = lock.fence() else { return Err("leads without a number".into()) };
        checker.on_term(lock.token().to_string(), number)?;
        self.term = Some(Term { lock, number, given_up: false });
        (self.was_leading, self.follows) = (true, None);
        self.terms += 1;
        Ok(())
    }

    fn on_following(&mut self, leader: Option<Leader>, net: &Net<Client>) -> Result<(), String> {
        let (core, now) = (&net.get_client(self.client).core, net.now());
        if let Some(term) = self.term.as_ref().filter(|term| !term.given_up) {
            let left = core.remaining(&term.lock, now);
            if left > LOSS_BEFORE {
                return Err(format!("follows while it leads for another {left:?}"));
            }
        }
        if self.campaign.and_then(|campaign| core.term(campaign)).is_some() {
            return Err("follows, and has a term".into());
        }
        (self.was_leading, self.follows) = (false, leader);
        Ok(())
    }

    fn on_request(&mut self, net: &Net<Client>, checker: &Checker) -> Result<(), String> {
        let Some(term) = &mut self.term else { return Err("asked to resign, no leader".into()) };
        if !checker.was_asked_to_resign(&term.lock.token().to_string()) {
            return Err("asked to resign, and nobody did".into());
        }
        self.requests += 1;
        if self.manner.grants_requests {
            term.given_up = true;
            self.ends_at.get_or_insert(net.now().saturating_add(self.manner.ends_after));
        }
        Ok(())
    }
}
