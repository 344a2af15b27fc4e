//! The clients whose locks have short ttls: an engine in a loop, and a shared client whose calls
//! are polled by hand.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::super::shared_stressed::{Line, Ticket};
use super::*;
use crate::engine_loop::Loop;
use redlatch::{Error, Lock, Op, Outcome, SharedClient, SharedGuard};

/// An error that this run provokes: all but an error of the settings, or of a closed client.
#[track_caller]
fn may_come(error: &Error) {
    assert!(!matches!(error, Error::Config(_) | Error::Closed(_)), "{error}");
}

pub struct OnEngine {
    embedded: Loop,
    asked: HashMap<u64, Op>,
    extending: HashMap<u64, Lock>,
    /// The requests that ended during the call that made them.
    at_once: Vec<(u64, End<Lock>)>,
}

impl OnEngine {
    fn asked(&mut self, number: u64, asked: Result<Op, Error>) {
        match asked {
            Ok(op) => drop(self.asked.insert(number, op)),
            Err(error) => {
                let end = self.failed(number, &error);
                self.at_once.push((number, end));
            }
        }
    }

    fn failed(&mut self, number: u64, error: &Error) -> End<Lock> {
        may_come(error);
        self.extending.remove(&number).map_or(End::Failed, |lock| End::Extended(lock, false))
    }
}

impl Locks for OnEngine {
    type Held = Lock;

    fn open(config: Config) -> OnEngine {
        let (asked, extending) = (HashMap::new(), HashMap::new());
        OnEngine { embedded: Loop::new(config), asked, extending, at_once: Vec::new() }
    }

    fn acquire(&mut self, key: &str, ask: Ask, number: u64) {
        let asked = self.embedded.engine.acquire(key, ask.options(), number);
        self.asked(number, asked);
    }

    fn extend(&mut self, held: Lock, ttl: Duration, number: u64) {
        let asked = self.embedded.engine.extend(&held, ttl, number);
        self.extending.insert(number, held);
        self.asked(number, asked);
    }

    fn release(&mut self, held: Lock, number: u64) {
        let op = self.embedded.engine.release(held, number);
        self.asked.insert(number, op);
    }

    fn give_up(&mut self, held: Lock) {
        self.embedded.engine.release_nowait(&held);
    }

    fn cancel(&mut self, number: u64) {
        // A request that failed during the call that made it, and whose result was not fetched, is
        // cancelled, too.
        self.at_once.retain(|(ended, _)| *ended != number);
        if let Some(op) = self.asked.remove(&number) {
            self.embedded.engine.cancel(op);
        }
        if let Some(lock) = self.extending.remove(&number) {
            self.embedded.engine.release_nowait(&lock);
        }
    }

    fn deadline(&self, held: &Lock) -> Option<clock::Instant> {
        self.embedded.engine.deadline(held)
    }

    fn turn(&mut self, most: Duration) -> Vec<(u64, End<Lock>)> {
        self.embedded.turn_within(most);
        while self.embedded.engine.poll_lock_update().is_some() {}
        let mut ends = std::mem::take(&mut self.at_once);
        while let Some(done) = self.embedded.engine.poll_completion() {
            let end = match done.result {
                Ok(Outcome::Acquired(lock)) => End::Granted(lock),
                Ok(Outcome::Released(_)) => End::Released,
                Ok(Outcome::Extended { .. }) => {
                    let lock = self.extending.remove(&done.data).expect("it was extended");
                    End::Extended(lock, true)
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => self.failed(done.data, &error),
            };
            ends.push((done.data, end));
        }
        ends
    }

    fn close(mut self) -> usize {
        self.embedded.engine.release_all();
        let start = Instant::now();
        let open = |engine: &redlatch::Engine| engine.coordinator().open_records();
        while open(&self.embedded.engine) > 0 && start.elapsed() < LOST {
            self.embedded.turn();
        }
        assert_eq!(self.embedded.engine.coordinator().open_ops(), 0, "requests that never end");
        open(&self.embedded.engine)
    }
}

type Task = Pin<Box<dyn Future<Output = End<SharedGuard>>>>;

/// A client that has a driver thread.
pub struct ByHand {
    client: SharedClient,
    line: Arc<Line>,
    tasks: HashMap<u64, Task>,
}

impl ByHand {
    fn begin(&mut self, number: u64, task: impl Future<Output = End<SharedGuard>> + 'static) {
        let former = self.tasks.insert(number, Box::pin(task));
        assert!(former.is_none(), "{number} has not ended");
        self.line.woken.lock().unwrap().push_back(number);
    }
}

impl Locks for ByHand {
    type Held = SharedGuard;

    fn open(config: Config) -> ByHand {
        let client = SharedClient::connect_blocking(config).expect("good settings");
        ByHand { client, line: Arc::default(), tasks: HashMap::new() }
    }

    fn acquire(&mut self, key: &str, ask: Ask, number: u64) {
        let call = self.client.lock(key.to_owned(), ask.options());
        self.begin(number, async move {
            call.await.inspect_err(may_come).map_or(End::Failed, End::Granted)
        });
    }

    fn extend(&mut self, mut held: SharedGuard, ttl: Duration, number: u64) {
        self.begin(number, async move {
            let extended = held.extend(ttl).await;
            let extended = extended.inspect_err(may_come);
            End::Extended(held, extended.is_ok())
        });
    }

    fn release(&mut self, held: SharedGuard, number: u64) {
        self.begin(number, async move {
            held.release().await.inspect_err(may_come).map_or(End::Failed, |_| End::Released)
        });
    }

    fn give_up(&mut self, held: SharedGuard) {
        drop(held);
    }

    fn cancel(&mut self, number: u64) {
        drop(self.tasks.remove(&number).expect("it has not ended"));
    }

    fn deadline(&self, held: &SharedGuard) -> Option<clock::Instant> {
        held.deadline()
    }

    fn turn(&mut self, most: Duration) -> Vec<(u64, End<SharedGuard>)> {
        // A future may wake itself when it is polled, so no future is polled while the mutex is
        // locked.
        let woken = {
            let woken = self.line.woken.lock().unwrap();
            let idle = |woken: &mut VecDeque<u64>| woken.is_empty();
            let waited = self.line.rung.wait_timeout_while(woken, most, idle);
            std::mem::take(&mut *waited.unwrap().0)
        };
        let mut ends = Vec::new();
        for number in woken {
            // The waker may belong to a call that has ended.
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            let waker = Waker::from(Arc::new(Ticket { number, line: Arc::clone(&self.line) }));
            if let Poll::Ready(end) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.tasks.remove(&number);
                ends.push((number, end));
            }
        }
        ends
    }

    fn close(self) -> usize {
        drop(self.tasks);
        self.client.close(LOST).wait()
    }
}
