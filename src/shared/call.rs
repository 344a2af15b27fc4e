//! A call of the shared client: a future that any runtime can poll, and that a thread can wait for.
//!
//! The hazard is a call that is dropped between two of its steps. Until the caller has the answer,
//! the request belongs to the engine, which cancels it.
//!
//! A call never ends at its first poll: it lets the executor run something else first. Otherwise a
//! task that repeats a call which fails at once would keep the driver of the client from running,
//! if both share a thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Owner;
use super::driving::Lead;
use super::inner;
use super::open::{Open, Waiter};
use super::park;
use crate::net::observe::{Ended, Verb, Watch};
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::locks::completions::Outcome;

/// What a [`Call`] requests: one of the types in this module's requests.
pub trait Question: sealed::Asked {}

pub(super) mod sealed {
    use super::*;

    /// What a call does with its request.
    pub trait Asked {
        /// The kind of request that the call's span names; `None`: the call has no span.
        const VERB: Option<Verb>;

        /// The result type.
        type Answer: Ended;

        /// The key. The call reads it before it locks the client's mutex.
        fn key(&self) -> &[u8];

        /// Makes the request of the engine.
        fn ask(&self, key: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error>;

        /// Makes the answer of the outcome.
        fn answer(&self, at: Answering<'_, '_>, outcome: Outcome) -> Self::Answer;

        /// The call is over: does what its drop would lock the client's mutex for, because the
        /// mutex is locked now.
        fn retire(&mut self, _open: &mut Open<'_>) {}
    }
}

/// What an answer is made from. The client's mutex is locked, and the place still belongs to the
/// call.
pub struct Answering<'a, 'b> {
    pub(super) owner: &'a Arc<Owner>,
    pub(super) open: &'a mut Open<'b>,
    pub(super) place: usize,
}

/// A call of a [`SharedClient`](super::SharedClient): nothing happens before it is polled or
/// waited for.
///
/// It is a future for any runtime, and [`wait`](Call::wait) blocks on it. It yields to the runtime
/// at least once, also if it fails at once: so a task may retry in a loop. Dropping the call
/// cancels its request: a lock that it won or may yet win is released. An extend or a release in
/// flight goes on without the call. Dropping never blocks.
#[must_use = "a call does nothing unless it is awaited or waited for"]
pub struct Call<Q: Question> {
    owner: Arc<Owner>,
    question: Q,
    stage: Stage,
    /// The error of a call that was refused at its first poll; the second poll returns it.
    refused: Option<Error>,
    /// The call's span, from the first poll on. The call opens and ends it while the client's mutex
    /// is not locked.
    watch: Option<Watch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Asked { place: usize },
    Over,
}

impl<Q: Question> Call<Q> {
    pub(super) fn new(owner: &Arc<Owner>, question: Q) -> Call<Q> {
        Call { owner: Arc::clone(owner), question, stage: Stage::New, refused: None, watch: None }
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
    pub fn wait(mut self) -> Result<Q::Answer, Error> {
        if self.stage != Stage::New || self.refused.is_some() {
            // The call was polled as a future before.
            return park::wait(self);
        }
        let watch = Q::VERB.map(|verb| Watch::begin(verb, self.question.key()));
        let result = self.ask_and_block();
        self.stage = Stage::Over;
        if let Some(watch) = watch {
            watch.end(&result);
        }
        result
    }

    /// Makes the request and waits for its result. The thread leads if it can: see the module
    /// `driving`.
    fn ask_and_block(&mut self) -> Result<Q::Answer, Error> {
        let Call { owner, question, stage, .. } = self;
        let inner = &*owner.inner;
        park::with_bell(|bell| {
            let key = question.key();
            let asked = inner.with(|open| {
                let place = open.ask(|open, data| question.ask(key, open, data))?;
                *stage = Stage::Asked { place };
                let lead = Lead::begin(inner, open);
                if lead.is_none() {
                    open.note_waiter(place, Waiter::Thread(bell.bell()));
                }
                Ok((place, lead))
            });
            let (place, lead) = asked.and_then(|asked| asked)?;
            if let Some(lead) = lead {
                let led = lead.drive(|open| {
                    open.fetch(place).map(|result| finish(owner, question, open, place, result))
                });
                return led.and_then(|result| result);
            }
            loop {
                bell.wait(None);
                let fetched = inner.with_unforked(|open| {
                    let polled = open.poll_place(place, Waiter::Thread(bell.bell()));
                    polled.map(|result| finish(owner, question, open, place, result))
                });
                if let Poll::Ready(result) = fetched? {
                    return result;
                }
            }
        })
    }
}

impl<Q: Question> Future for Call<Q> {
    type Output = Result<Q::Answer, Error>;

    /// # Panics
    /// If it is polled again after it returned its answer.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Call { owner, question, stage, refused, watch } = self.get_mut();
        assert!(*stage != Stage::Over, "a call is polled after its answer");
        let polled = match refused.take() {
            Some(error) => Err(error),
            None if *stage == Stage::New => {
                *watch = Q::VERB.map(|verb| Watch::begin(verb, question.key()));
                let asked = request(owner, question, stage, context.waker().clone());
                if let Err(error) = asked {
                    *refused = Some(error);
                    inner::wake(context.waker().clone());
                }
                return Poll::Pending;
            }
            None => fetch(owner, question, *stage, context.waker().clone()),
        };
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result,
            Err(error) => Err(error),
        };
        *stage = Stage::Over;
        if let Some(watch) = watch.take() {
            watch.end(&result);
        }
        Poll::Ready(result)
    }
}

/// The first poll: makes the request, and notes the waker.
fn request<Q: Question>(
    owner: &Arc<Owner>,
    question: &Q,
    stage: &mut Stage,
    waker: Waker,
) -> Result<(), Error> {
    let key = question.key();
    let asked =
        owner.inner.with(|open| match open.ask(|open, data| question.ask(key, open, data)) {
            Ok(place) => {
                *stage = Stage::Asked { place };
                open.note_waiter(place, Waiter::Task(waker));
                Ok(())
            }
            Err(error) => {
                open.drop_after_unlock(waker);
                Err(error)
            }
        });
    asked.and_then(|asked| asked)
}

/// A later poll: fetches the result if there is one, and makes the answer of it.
fn fetch<Q: Question>(
    owner: &Arc<Owner>,
    question: &mut Q,
    stage: Stage,
    waker: Waker,
) -> Result<Poll<Result<Q::Answer, Error>>, Error> {
    let Stage::Asked { place } = stage else { unreachable!("the request was made before") };
    owner.inner.with(|open| {
        let polled = open.poll_place(place, Waiter::Task(waker));
        polled.map(|result| finish(owner, question, open, place, result))
    })
}

/// Makes the answer of a result while the client's mutex is locked. Then frees the call's place,
/// unless a guard has it by now.
fn finish<Q: Question>(
    owner: &Arc<Owner>,
    question: &mut Q,
    open: &mut Open<'_>,
    place: usize,
    result: Result<Outcome, Error>,
) -> Result<Q::Answer, Error> {
    let answer = |outcome| question.answer(Answering { owner, open: &mut *open, place }, outcome);
    let result = result.map(answer);
    open.leave(place);
    question.retire(open);
    result
}

/// A call pins none of its fields.
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
