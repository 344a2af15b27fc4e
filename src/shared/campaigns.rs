//! What a shared client does for its campaigns while its mutex is locked: each has a place, and the
//! state of the lock of its present term.
//!
//! The hazard is a term that goes on for its holder after it is over for the client, or the other
//! way round. So the state of the lock is that of a guard: a loss ends it, and so does a request to
//! resign.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::lock_state::LockState;
use super::open::{Open, Place};
use crate::proto::error::{ClosedReason, Error};
use crate::proto::ids::CampaignId;
use crate::proto::lock::Lock;

impl Open<'_> {
    /// Begins a campaign, which gets a place; returns both.
    pub(super) fn begin_campaign(
        &mut self,
        begin: impl FnOnce(&mut Open<'_>, u64) -> Result<CampaignId, Error>,
    ) -> Result<(usize, CampaignId), Error> {
        if self.closing {
            return Err(Error::Closed(ClosedReason::Asked));
        }
        let place = self.places.insert(Place::Reserved);
        match begin(self, place as u64) {
            Ok(id) => {
                self.places[place] = Place::Campaign { waker: None, term: None, id };
                Ok((place, id))
            }
            Err(error) => {
                self.places.remove(place);
                Err(error)
            }
        }
    }

    /// Notes the waker for the next standing of a campaign. Ready with the error if no standing
    /// comes any more.
    pub(super) fn note_campaigns_waker<T>(
        &mut self,
        place: usize,
        waker: Waker,
    ) -> Poll<Result<T, Error>> {
        let Some(Place::Campaign { waker: noted, .. }) = self.places.get_mut(place) else {
            self.drop_after_unlock(waker);
            return Poll::Ready(Err(Error::Closed(ClosedReason::Asked)));
        };
        self.after_unlock.dropped.extend(noted.replace(waker));
        Poll::Pending
    }

    /// A campaign has a new standing: wakes its caller. If the leader is asked to resign, ends the
    /// state of its lock.
    pub(super) fn pass_on_news(&mut self, place: usize) {
        let Some(Place::Campaign { waker, id, .. }) = self.places.get_mut(place) else { return };
        self.after_unlock.woken.extend(waker.take());
        let Some(error) = self.engine.why_to_resign(*id) else { return };
        // The holder of the term gives it up as it would give up a lock that is lost.
        self.end_lock_of_term(place, Some(error));
    }

    /// The state of the lock of a campaign's new term.
    pub(super) fn hold_term(&mut self, place: usize, key: &[u8], lock: &Lock) -> Arc<LockState> {
        let mut lock_state = self.spares.pop().unwrap_or_default();
        let unshared = Arc::get_mut(&mut lock_state).expect("a spare one has no other owner");
        unshared.reset(key, place);
        lock_state.set_deadline(self.engine.deadline(lock));
        if let Some(Place::Campaign { term, .. }) = self.places.get_mut(place) {
            *term = Some((lock.token(), Arc::clone(&lock_state)));
        }
        lock_state
    }

    /// The term is over for its holder, for this reason or because it resigned.
    pub(super) fn end_lock_of_term(&mut self, place: usize, error: Option<Error>) {
        if let Some(Place::Campaign { term: Some((_, lock_state)), .. }) = self.places.get(place) {
            lock_state.ends(error, &mut self.after_unlock.woken);
        }
    }

    /// The holder has dropped a term.
    pub(super) fn end_term(&mut self, place: usize, campaign: CampaignId) {
        if let Some(Place::Campaign { term, id, .. }) = self.places.get_mut(place) {
            if *id == campaign {
                *term = None;
            }
        }
        self.engine.end_term(campaign);
    }

    /// A campaign is over. If a caller still has its term, the place is that of the term's lock
    /// from now on.
    pub(super) fn end_campaign(&mut self, place: usize, campaign: CampaignId) {
        self.engine.withdraw(campaign);
        if let Some(Place::Campaign { waker, term, .. }) = self.places.get_mut(place) {
            self.after_unlock.dropped.extend(waker.take());
            match term.take() {
                Some((token, lock_state)) => {
                    self.places[place] = Place::Held { token, lock_state };
                }
                None => drop(self.places.remove(place)),
            }
        }
    }
}
