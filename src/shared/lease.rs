//! What a holder sees of its lock: how long it may be believed in, whether it was lost, and a
//! future that tells.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::hold::Hold;
use super::hub::Hub;
use super::park;
use crate::net::clock;
use crate::proto::error::{Closed, Error, Loss};
use crate::proto::lock::{self, Lock};
use crate::proto::time::Instant;

/// A view of a lock that is held by a [`SharedGuard`](super::SharedGuard), which it may outlive: it
/// neither keeps nor gives back anything. Once the lock is given back, given away or lost, it is
/// over for all who look at it.
///
/// It is `Clone`, `Send` and `Sync`: give it to whatever acts under the lock. All looks are local
/// reads. In a forked process the lock is over.
pub struct Lease {
    hub: Arc<Hub>,
    hold: Arc<Hold>,
    lock: Lock,
}

impl Lease {
    pub(super) fn new(hub: Arc<Hub>, hold: Arc<Hold>, lock: Lock) -> Lease {
        Lease { hub, hold, lock }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        self.hold.key()
    }

    /// What the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::Token {
        self.lock.token()
    }

    /// How long the lock may still be believed in; zero once it is over.
    pub fn remaining(&self) -> Duration {
        let deadline = self.deadline();
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_since(clock::now()))
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it was given back or is
    /// known to be lost.
    pub fn deadline(&self) -> Option<Instant> {
        if self.hub.is_over() { None } else { self.hold.deadline() }
    }

    /// Whether the lock is still held: to be looked at before each side effect.
    ///
    /// # Errors
    /// [`Error::Lost`] once it is over, with the reason where that was told; [`Error::Closed`]
    /// where its client is no more.
    pub fn check(&self) -> Result<(), Error> {
        if self.remaining().is_zero() {
            let told = if self.hub.is_ours() { self.hold.error() } else { None };
            return Err(told.unwrap_or_else(|| self.is_over()));
        }
        Ok(())
    }

    /// Whether the lock that is kept comes near its deadline, and was not renewed since: it is
    /// renewed still, or lost soon ([`Keep::lead`](crate::Keep::lead)).
    pub fn is_expiring(&self) -> bool {
        self.hold.was_warned()
    }

    /// Comes to an end when the lock does, and says why: in time, before its deadline. A lock that
    /// is given back or given away is over, too.
    ///
    /// A lock that is not kept is watched from the first call on: it is not prolonged, and its loss
    /// is told as that of a kept one. Its ttl has to be 10 ms at least for that.
    pub fn lost(&self) -> Lost {
        let watched = if self.hold.place().is_some() || self.hold.deadline().is_none() {
            Ok(())
        } else {
            // It may be kept by somebody else meanwhile.
            self.hub.with(|open| open.watch(&self.lock, &self.hold)).and_then(|watched| watched)
        };
        Lost { lease: self.clone(), watched, slot: None }
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn into_hold(self) -> Arc<Hold> {
        self.hold
    }

    /// What to say of a lock that is over for no reason that was told.
    fn is_over(&self) -> Error {
        let over = self.hub.with(|open| {
            open.engine.coordinator().lost_unasked(Loss::Over, self.key(), clock::now())
        });
        over.unwrap_or_else(|closed| closed)
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        Lease::new(Arc::clone(&self.hub), Arc::clone(&self.hold), self.lock.alias())
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// The end of a lock, as a future: see [`Lease::lost`]. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "it tells nothing unless it is awaited or waited for"]
pub struct Lost {
    lease: Lease,
    watched: Result<(), Error>,
    /// Where its waker is.
    slot: Option<usize>,
}

impl Lost {
    /// Blocks the thread until the lock is over.
    pub fn wait(self) -> Error {
        park::wait(self)
    }
}

impl Future for Lost {
    /// Why it is over.
    type Output = Error;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Error> {
        let Lost { lease, watched, slot } = self.get_mut();
        if let Err(error) = watched {
            return Poll::Ready(error.clone());
        }
        if !lease.hub.is_ours() {
            return Poll::Ready(Error::Closed(Closed::Forked));
        }
        match lease.hold.poll_end(slot, context.waker()) {
            Poll::Ready(Some(error)) => Poll::Ready(error),
            Poll::Ready(None) => Poll::Ready(lease.is_over()),
            // Nobody would tell any more.
            Poll::Pending if lease.hub.is_over() => {
                let why = lease.hub.with(|_| ()).err();
                Poll::Ready(why.unwrap_or(Error::Closed(Closed::Asked)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.filter(|_| self.lease.hub.is_ours()) {
            self.lease.hold.forget_waker(slot);
        }
    }
}
