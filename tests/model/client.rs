//! A client: a real coordinator, and a caller with one request or one lock at a time.

use std::time::Duration;

use redlatch::proto::{Coordinator, Instant, LockToken, NodeSettings, Settings};
use redlatch::{Error, Lock, LockOptions, Op, Outcome};

use crate::bounds::Plan;
use crate::names;
use crate::time::{
    CONNECT_TIMEOUT, MAX_TTL, NODE_TIMEOUT, PROBE_INTERVAL, RECONNECT, RESET_AFTER, RETRY, TTL,
};

/// The key that all clients ask for.
pub const KEY: &[u8] = b"k";

/// The key of the line of that key.
pub const LINE: &[u8] = b"redlatch:line:{k}";

/// What the caller is doing.
#[derive(Debug)]
pub enum Task {
    Idle,
    /// The caller waits for the lock: by an acquire, or by an adopt.
    Asking(Op),
    /// The caller has the lock, and may wait for the end of an extend.
    Holding(Lock, Option<Op>),
    /// The caller waits for the end of a release.
    Releasing(Op),
}

impl Clone for Task {
    fn clone(&self) -> Task {
        match self {
            Task::Idle => Task::Idle,
            Task::Asking(op) => Task::Asking(*op),
            Task::Holding(lock, extend) => Task::Holding(lock.alias(), *extend),
            Task::Releasing(op) => Task::Releasing(*op),
        }
    }
}

/// A client.
#[derive(Debug, Clone)]
pub struct Client {
    pub core: Coordinator,
    pub task: Task,
    /// The latest deadline that was reported to the caller for the lock that it has. Until then the
    /// caller may act on the lock without a call.
    pub believes_until: Option<Instant>,
    /// How long it waits for the lock; if it waits, then in line.
    pub waits: Duration,
    /// How many extends were won.
    pub extended: u8,
    /// Whether it asks for a fencing number.
    pub fenced: bool,
    /// The greatest number that had been given when it asked.
    pub given_before: Option<u64>,
    /// The number that it was given in the present step.
    pub fence: Option<u64>,
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(client: usize, plan: &Plan, now: Instant) -> Client {
        let (nodes, waits) = (plan.nodes, plan.waits);
        let fenced = plan.fences.is_some_and(|fences| fences.clients[client]);
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.max_ttl = MAX_TTL;
        settings.node_timeout = NODE_TIMEOUT;
        settings.connect_timeout = CONNECT_TIMEOUT;
        settings.reset_after = RESET_AFTER;
        settings.reconnect = (RECONNECT, RECONNECT);
        settings.probe_interval = PROBE_INTERVAL;
        settings.hand_over_ttl = Some(plan.hand_over_ttl);
        settings.retry = (RETRY, RETRY);
        let mut core = Coordinator::new(settings, [0; 32], now).expect("good settings");
        core.plan_draws(names::draws_of(client));
        let (task, given_before, fence) = (Task::Idle, None, None);
        Client { core, task, believes_until: None, waits, extended: 0, fenced, given_before, fence }
    }

    /// Whether the caller believes in its lock.
    pub fn believes_it_holds(&self, now: Instant) -> bool {
        self.believes_until.is_some_and(|until| now < until)
    }

    /// Whether the caller may make a new request. It may still have the handle of a lock that is
    /// over.
    pub fn is_idle(&self, now: Instant) -> bool {
        match &self.task {
            Task::Idle => true,
            Task::Holding(lock, None) => {
                !self.believes_it_holds(now) && self.core.deadline(lock).is_none()
            }
            _ => false,
        }
    }

    /// The caller's lock, if it can be released or given away.
    pub fn lock(&self) -> Option<&Lock> {
        match &self.task {
            Task::Holding(lock, _) => self.core.deadline(lock).map(|_| lock),
            _ => None,
        }
    }

    /// Takes the lock from the caller to end it. The caller does not wait for an extend that is in
    /// flight.
    pub fn remove_held_lock(&mut self, now: Instant) -> Lock {
        self.believes_until = None;
        match std::mem::replace(&mut self.task, Task::Idle) {
            Task::Holding(lock, extend) => {
                extend.into_iter().for_each(|op| self.core.cancel(op, now));
                lock
            }
            task => unreachable!("no lock in {task:?}"),
        }
    }

    /// How many tokens the client has drawn.
    pub fn drawn(&self) -> u64 {
        self.core.tokens_drawn() as u64
    }

    pub fn acquire(&mut self, now: Instant) {
        self.believes_until = None;
        let options = LockOptions::new(TTL).wait(self.waits);
        let options = if self.fenced { options.fenced() } else { options };
        let op = self.core.acquire(KEY, options, 0, now);
        self.task = Task::Asking(op.expect("there is room"));
    }

    pub fn adopt(&mut self, token: LockToken, now: Instant) {
        self.believes_until = None;
        let op = self.core.adopt(KEY, token, TTL, 0, now);
        self.task = Task::Asking(op.expect("there is room"));
    }

    /// Takes the completions. The error is a violation.
    pub fn take_completions(&mut self, now: Instant) -> Result<(), String> {
        while let Some(completion) = self.core.poll_completion(now) {
            let task = std::mem::replace(&mut self.task, Task::Idle);
            self.task = match (task, completion.result) {
                (Task::Asking(op), result) if op == completion.op => match result {
                    Ok(Outcome::Acquired(lock)) => self.handed_out(lock, now)?,
                    Ok(other) => return Err(format!("an acquire ended as {other:?}")),
                    Err(_) => Task::Idle,
                },
                (Task::Holding(lock, Some(op)), result) if op == completion.op => {
                    match result {
                        Ok(Outcome::Extended { deadline }) => self.extended(deadline, now)?,
                        Ok(other) => return Err(format!("an extend ended as {other:?}")),
                        // A reported loss ends the client's belief before the deadline.
                        Err(Error::Lost { .. }) => self.believes_until = None,
                        Err(_) => {}
                    }
                    Task::Holding(lock, None)
                }
                (Task::Releasing(op), Ok(Outcome::Released(_))) if op == completion.op => {
                    Task::Idle
                }
                (task, result) => {
                    return Err(format!("an answer without a request: {result:?} in {task:?}"));
                }
            };
        }
        Ok(())
    }

    fn handed_out(&mut self, lock: Lock, now: Instant) -> Result<Task, String> {
        let until = self.core.deadline(&lock).filter(|&until| until > now);
        if until.is_none() {
            return Err("a lock was handed out after its deadline".into());
        }
        self.believes_until = until;
        self.fence = lock.fence();
        if self.fenced && self.fence.is_none() {
            return Err("a fenced lock has no fencing number".into());
        }
        Ok(Task::Holding(lock, None))
    }

    fn extended(&mut self, deadline: Instant, now: Instant) -> Result<(), String> {
        if !self.believes_it_holds(now) {
            return Err("a lock came back after its deadline".into());
        }
        self.believes_until = self.believes_until.max(Some(deadline));
        self.extended += 1;
        Ok(())
    }
}
