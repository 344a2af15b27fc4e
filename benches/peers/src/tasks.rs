//! Contenders that are asynchronous: tasks on one thread, which share a client, or each have one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use rand::RngExt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::{HOLD, OVERTIME, RETRY};

/// A client for locks, which many tasks share.
pub trait Locks: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Held: Send;

    fn connect(urls: &[String]) -> impl Future<Output = Self>;

    /// One attempt; `None`: there is no majority for it.
    fn try_lock(&self, key: &str) -> impl Future<Output = Option<Self::Held>> + Send;

    /// Waits until the key is free. A library that cannot wait tries again, after `RETRY` on
    /// average.
    fn lock(&self, key: &str) -> impl Future<Output = Self::Held> + Send {
        async move {
            loop {
                if let Some(held) = self.try_lock(key).await {
                    return held;
                }
                let part: f64 = rand::rng().random();
                tokio::time::sleep(RETRY.mul_f64(2.0 * part)).await;
            }
        }
    }

    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// One client for all tasks, each with a key of its own that is free.
pub struct OwnKeys<L> {
    runtime: Runtime,
    locks: L,
}

impl<L: Locks> OwnKeys<L> {
    pub fn connect(urls: &[String]) -> OwnKeys<L> {
        let runtime = runtime();
        let locks = runtime.block_on(L::connect(urls));
        OwnKeys { runtime, locks }
    }
}

impl<L: Locks> Door for OwnKeys<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn run(&mut self, in_flight: usize, length: Duration) -> Round {
        let meter = Meter::start();
        let until = meter.until(length);
        let worker = |slot| pairs(self.locks.clone(), format!("{}:{slot}", L::NAME), until);
        let workers = (0..in_flight).map(worker);
        let samples = self.runtime.block_on(together(workers, length));
        meter.stop(samples)
    }
}

async fn pairs<L: Locks>(locks: L, key: String, until: Instant) -> Samples {
    let mut samples = Samples::default();
    loop {
        let asked = Instant::now();
        if asked >= until {
            return samples;
        }
        let held = locks.try_lock(&key).await;
        // On a busy machine a majority of the nodes may look silent to the library under test.
        let Some(held) = held else {
            samples.lost();
            continue;
        };
        samples.acquired(asked);
        locks.release(held).await;
    }
}

/// A client for each task, and one key that all of them want.
pub struct OneKey<L> {
    runtime: Runtime,
    clients: Vec<L>,
    is_held: Arc<AtomicBool>,
}

impl<L: Locks> OneKey<L> {
    pub fn connect(urls: &[String], contenders: usize) -> OneKey<L> {
        let runtime = runtime();
        let clients = (0..contenders).map(|_| runtime.block_on(L::connect(urls))).collect();
        OneKey { runtime, clients, is_held: Arc::default() }
    }
}

impl<L: Locks> Door for OneKey<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn carries(&self, in_flight: usize) -> bool {
        in_flight == self.clients.len()
    }

    fn run(&mut self, _: usize, length: Duration) -> Round {
        let meter = Meter::start();
        let until = meter.until(length);
        let worker = |locks: &L| holds(locks.clone(), self.is_held.clone(), until);
        let workers = self.clients.iter().map(worker);
        let samples = self.runtime.block_on(together(workers, length));
        meter.stop(samples)
    }
}

async fn holds<L: Locks>(locks: L, is_held: Arc<AtomicBool>, until: Instant) -> Samples {
    let mut samples = Samples::default();
    let key = format!("{}:one", L::NAME);
    loop {
        let asked = Instant::now();
        if asked >= until {
            return samples;
        }
        let held = locks.lock(&key).await;
        samples.acquired(asked);
        assert!(!is_held.swap(true, Ordering::SeqCst), "two had the lock: {}", L::NAME);
        tokio::time::sleep(HOLD).await;
        is_held.store(false, Ordering::SeqCst);
        locks.release(held).await;
    }
}

/// Runs each as a task; returns when all are over, or when they are `OVERTIME` late. Then the tasks
/// are ended where they are, and their samples are lost.
async fn together(
    workers: impl Iterator<Item = impl Future<Output = Samples> + Send + 'static>,
    length: Duration,
) -> Samples {
    let mut tasks: JoinSet<Samples> = JoinSet::new();
    for worker in workers {
        tasks.spawn(worker);
    }
    let mut samples = Samples::default();
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            samples.append(ended.expect("no contender panics"));
        }
    };
    if tokio::time::timeout(length + OVERTIME, all).await.is_err() {
        samples.cut_short();
    }
    samples
}
