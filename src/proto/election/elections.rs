//! The campaigns of a coordinator: which of them a request belongs to, and what is due.
//!
//! The hazard is an end of a campaign's own request that is reported to the caller, who does not
//! know it. So each end is compared with the requests of the campaigns before it is reported.

use slab::Slab;

use crate::proto::coordinator::Coordinator;
use crate::proto::election::StandingChange;
use crate::proto::election::campaign::Campaign;
use crate::proto::ids::{CampaignId, Generation, Op};
use crate::proto::lock::LockToken;
use crate::proto::time::Instant;

/// The campaigns of a coordinator.
#[derive(Debug, Default)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Elections {
    campaigns: Slab<(Generation, Campaign)>,
    /// The generation of the next campaign.
    next: Generation,
    /// Requests of campaigns that have ended, and whose outcomes the campaigns have not fetched
    /// yet.
    ended: Vec<Op>,
    /// The tokens of locks that were lost since the last [`go_on`](Elections::go_on).
    lost: Vec<LockToken>,
}

impl Elections {
    /// Adds a campaign.
    pub fn add(&mut self, campaign: Campaign) -> CampaignId {
        let generation = self.next.advance();
        let index = self.campaigns.insert((generation, campaign)) as u32;
        CampaignId { index, generation }
    }

    /// Takes a campaign out.
    pub fn remove(&mut self, id: CampaignId) -> Option<Campaign> {
        self.get_mut(id)?;
        Some(self.campaigns.remove(id.index as usize).1)
    }

    /// A campaign; `None` if it is over.
    pub fn get(&self, id: CampaignId) -> Option<&Campaign> {
        let (generation, campaign) = self.campaigns.get(id.index as usize)?;
        (*generation == id.generation).then_some(campaign)
    }

    /// As [`get`](Elections::get).
    pub fn get_mut(&mut self, id: CampaignId) -> Option<&mut Campaign> {
        let (generation, campaign) = self.campaigns.get_mut(id.index as usize)?;
        (*generation == id.generation).then_some(campaign)
    }

    /// Ends all campaigns without a further request.
    pub fn clear(&mut self) {
        *self = Elections { next: self.next, ..Elections::default() };
    }

    /// Notes the end of a request if it belongs to a campaign; returns whether it does.
    #[inline]
    pub fn take_ended(&mut self, op: Op) -> bool {
        !self.campaigns.is_empty() && self.take_ended_of_any(op)
    }

    fn take_ended_of_any(&mut self, op: Op) -> bool {
        let owned = self.campaigns.iter().any(|(_, (_, campaign))| campaign.owns(op));
        if owned {
            self.ended.push(op);
        }
        owned
    }

    /// Notes the loss of a lock, which may be that of a campaign.
    #[inline]
    pub fn note_loss(&mut self, token: &LockToken) {
        if !self.campaigns.is_empty() {
            self.lost.push(token.clone());
        }
    }

    /// The moment at which a campaign has something to do.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.campaigns.is_empty() {
            return None;
        }
        self.campaigns.iter().map(|(_, (_, campaign))| campaign.due()).min()
    }

    /// Whether a campaign has something to report, or an ended request or a lost lock to act on.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.campaigns.is_empty()
            && (!self.ended.is_empty()
                || !self.lost.is_empty()
                || self.campaigns.iter().any(|(_, (_, campaign))| campaign.has_news()))
    }

    /// Lets each campaign do what is due, and what follows from the requests that have ended.
    pub fn go_on(&mut self, core: &mut Coordinator, now: Instant) {
        let lost = std::mem::take(&mut self.lost);
        let ended = std::mem::take(&mut self.ended);
        for (_, (_, campaign)) in &mut self.campaigns {
            lost.iter().for_each(|token| campaign.on_loss(token, now));
            for &op in &ended {
                if campaign.owns(op) {
                    campaign.on_ended(op, core, now);
                }
            }
            campaign.go_on(core, now);
        }
    }

    /// The next change of any campaign.
    pub fn poll_standing(&mut self) -> Option<StandingChange> {
        self.campaigns.iter_mut().find_map(|(index, (generation, campaign))| {
            let standing = campaign.poll_standing()?;
            let campaign_id = CampaignId { index: index as u32, generation: *generation };
            Some(StandingChange { campaign: campaign_id, data: campaign.data, standing })
        })
    }

    /// The data of a campaign that has a standing which was not announced yet.
    pub fn poll_news(&mut self) -> Option<u64> {
        let mut campaigns = self.campaigns.iter_mut().map(|(_, (_, campaign))| campaign);
        campaigns.find_map(|campaign| campaign.announce().then_some(campaign.data))
    }
}
