//! A call of the shared client: a future that any runtime can poll, and that a thread can wait for.
//!
//! The hazard is a call that is dropped between two of its steps. Until the caller has the answer,
//! the request belongs to the engine, which cancels it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Owner;
use super::open::Open;
use super::park;
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::locks::requests::Outcome;

/// What a [`Call`] requests: one of the types in this module's requests.
pub trait Question: sealed::Asked {}

pub(super) mod sealed {
    use super::*;

    /// What a call does with its request.
    pub trait Asked {
        /// The result type.
        type Answer;

        /// The key: read before anything is locked.
        fn key(&self) -> &[u8];

        /// Makes the request of the engine.
        fn ask(&self, key: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error>;

        /// The request was made, and its result arrives under `place`.
        fn asked(&self, _open: &mut Open<'_>, _place: usize) {}

        /// Makes the answer of the outcome.
        fn answer(&self, at: Answering<'_, '_>, outcome: Outcome) -> Self::Answer;

        /// The request ended with an error.
        fn failed(&self, _error: &Error) {}
    }
}

/// Where an answer is made: under the lock, at the last moment.
pub struct Answering<'a, 'b> {
    pub(super) owner: &'a Arc<Owner>,
    pub(super) open: &'a mut Open<'b>,
    pub(super) key: &'a [u8],
    pub(super) place: usize,
}

/// A call of a [`SharedClient`](super::SharedClient): nothing happens before it is polled or
/// waited for.
///
/// It is a future for any runtime, and [`wait`](Call::wait) blocks on it. Dropping the call
/// cancels its request: a lock that it won or may yet win is released. An extend or a release in
/// flight goes on without the call. Dropping never blocks.
#[must_use = "a call does nothing unless it is awaited or waited for"]
pub struct Call<Q: Question> {
    owner: Arc<Owner>,
    question: Q,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Asked { place: usize },
    Over,
}

impl<Q: Question> Call<Q> {
    pub(super) fn new(owner: &Arc<Owner>, question: Q) -> Call<Q> {
        Call { owner: Arc::clone(owner), question, stage: Stage::New }
    }

    /// Blocks the thread until there is an answer.
    ///
    /// Do not call it on a thread that has to drive the client. On a current-thread tokio runtime
    /// whose task drives the client, it would wait for itself. In a task of a multi-thread
    /// runtime, wait inside `tokio::task::block_in_place`: the worker may be the one that polls
    /// tokio's sockets.
    ///
    /// # Errors
    /// The error of the call.
    pub fn wait(self) -> Result<Q::Answer, Error> {
        park::wait(self)
    }
}

impl<Q: Question> Future for Call<Q> {
    type Output = Result<Q::Answer, Error>;

    /// # Panics
    /// If it is polled again after it returned its answer.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Call { owner, question, stage } = self.get_mut();
        assert!(*stage != Stage::Over, "a call is polled after its answer");
        let waker = context.waker().clone();
        let key = question.key();
        let polled = owner.inner.with(|open| {
            let place = match *stage {
                Stage::Asked { place } => place,
                _ => match open.ask(|open, data| question.ask(key, open, data)) {
                    Ok(place) => place,
                    Err(error) => {
                        open.drop_after_unlock(waker);
                        return Err(error);
                    }
                },
            };
            if *stage == Stage::New {
                *stage = Stage::Asked { place };
                question.asked(open, place);
            }
            Ok(match open.poll_place(place, waker) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(result) => {
                    let answer = |outcome| {
                        question.answer(Answering { owner, open: &mut *open, key, place }, outcome)
                    };
                    let result = result.map(answer);
                    open.leave(place);
                    Poll::Ready(result)
                }
            })
        });
        let result = match polled.and_then(|polled| polled) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result,
            Err(error) => Err(error),
        };
        *stage = Stage::Over;
        if let Err(error) = &result {
            question.failed(error);
        }
        Poll::Ready(result)
    }
}

/// Nothing in it is pinned.
impl<Q: Question> Unpin for Call<Q> {}

impl<Q: Question> Drop for Call<Q> {
    fn drop(&mut self) {
        if let Stage::Asked { place } = self.stage {
            // If the client is closed, there is nothing to cancel.
            let _ = self.owner.inner.with(|open| open.cancel(place));
        }
    }
}

impl<Q: Question> fmt::Debug for Call<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("stage", &self.stage).finish_non_exhaustive()
    }
}
