//! The shared client under stress, as [`Door`]s: polled by hand, waited for by threads, and on
//! tokio.
//!
//! The hazard is a call to the client, which would make up for a lost wake-up: so these tests call
//! no other method of the client while requests are in flight.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;

use super::*;
use redlatch::{Error, LockOptions, SharedClient, SharedGuard, Stats};
use stress::{Door, End, Watch, stress};

#[test]
fn shared_client_polled_by_hand_misses_no_wake_up_under_stress() {
    stress::<ByHand>();
}

#[test]
fn shared_client_of_many_threads_misses_no_wake_up_under_stress() {
    stress::<Threads>();
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_client_on_one_thread_misses_no_wake_up_under_stress() {
    stress::<OnTokio<1>>();
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_client_on_several_threads_misses_no_wake_up_under_stress() {
    stress::<OnTokio<4>>();
}

type Ended = End<SharedGuard>;

async fn lock(client: SharedClient, key: String, options: LockOptions) -> Ended {
    match client.lock(key, options).await {
        Ok(guard) => End::Granted(guard),
        Err(Error::Closed(closed)) => panic!("{closed}"),
        Err(_) => End::Refused,
    }
}

async fn give_back(guard: SharedGuard) -> Ended {
    match guard.release().await {
        Ok(_) => End::Released,
        Err(Error::Closed(closed)) => panic!("{closed}"),
        Err(_) => End::Refused,
    }
}

fn close_client(client: &SharedClient) -> (usize, Stats) {
    let stats = client.stats();
    (client.close(LOST).wait(), stats)
}

/// The numbers of the futures that have to be polled.
#[derive(Default)]
pub struct Line {
    pub woken: Mutex<VecDeque<u64>>,
    pub rung: Condvar,
}

/// A waker of a future: it puts the future's number into the queue.
pub struct Ticket {
    pub number: u64,
    pub line: Arc<Line>,
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.line.woken.lock().unwrap().push_back(self.number);
        self.line.rung.notify_one();
    }
}

/// One thread polls the futures, each only after a wake-up. Another thread drives the client.
struct ByHand {
    client: SharedClient,
    line: Arc<Line>,
    tasks: Vec<Option<Pin<Box<dyn Future<Output = Ended>>>>>,
}

impl ByHand {
    fn begin(&mut self, number: u64, future: impl Future<Output = Ended> + 'static) {
        self.tasks[number as usize] = Some(Box::pin(future));
        self.line.woken.lock().unwrap().push_back(number);
    }
}

impl Door for ByHand {
    type Held = SharedGuard;
    const AT_ONCE: u64 = 32;
    const USUALLY: u64 = 20_000;

    fn open(config: &Config) -> ByHand {
        let client = SharedClient::connect_blocking(config.clone()).expect("good settings");
        let tasks = (0..Self::AT_ONCE).map(|_| None).collect();
        ByHand { client, line: Arc::default(), tasks }
    }

    fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
        self.begin(number, lock(self.client.clone(), key.to_owned(), options));
    }

    fn release(&mut self, held: SharedGuard, number: u64) {
        self.begin(number, give_back(held));
    }

    fn next(&mut self, watch: &Watch) -> (u64, Ended) {
        loop {
            let mut woken = self.line.woken.lock().unwrap();
            let number = loop {
                if let Some(number) = woken.pop_front() {
                    break number;
                }
                let open: Vec<usize> =
                    (0..self.tasks.len()).filter(|&it| self.tasks[it].is_some()).collect();
                watch.sleeps(&open);
                woken = self.line.rung.wait(woken).unwrap();
            };
            drop(woken);
            // A late wake-up may name a request that has ended.
            let Some(task) = &mut self.tasks[number as usize] else { continue };
            let waker = Waker::from(Arc::new(Ticket { number, line: Arc::clone(&self.line) }));
            if let Poll::Ready(end) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.tasks[number as usize] = None;
                return (number, end);
            }
        }
    }

    fn close(self) -> (usize, Stats) {
        close_client(&self.client)
    }
}

/// Threads that share one client and make blocking calls.
struct Threads {
    client: SharedClient,
    workers: Vec<(Sender<Order>, JoinHandle<()>)>,
    ends: Receiver<(u64, Ended)>,
}

enum Order {
    Lock(String, LockOptions),
    Release(SharedGuard),
}

impl Door for Threads {
    type Held = SharedGuard;
    const AT_ONCE: u64 = 16;
    const USUALLY: u64 = 20_000;

    fn open(config: &Config) -> Threads {
        let client = SharedClient::connect_blocking(config.clone()).expect("good settings");
        let (sender, ends) = mpsc::channel();
        let worker = |number| {
            let (orders, take) = mpsc::channel();
            let (client, sender) = (client.clone(), sender.clone());
            let work = move || {
                for order in take {
                    let end = match order {
                        Order::Lock(key, options) => match client.lock(key, options).wait() {
                            Ok(guard) => End::Granted(guard),
                            Err(_) => End::Refused,
                        },
                        Order::Release(guard) => match guard.release().wait() {
                            Ok(_) => End::Released,
                            Err(_) => End::Refused,
                        },
                    };
                    sender.send((number, end)).expect("the ends are taken");
                }
            };
            (orders, std::thread::spawn(work))
        };
        let workers = (0..Self::AT_ONCE).map(worker).collect();
        Threads { client, workers, ends }
    }

    fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
        let order = Order::Lock(key.to_owned(), options);
        self.workers[number as usize].0.send(order).expect("it is well");
    }

    fn release(&mut self, held: SharedGuard, number: u64) {
        self.workers[number as usize].0.send(Order::Release(held)).expect("it is well");
    }

    fn next(&mut self, watch: &Watch) -> (u64, Ended) {
        watch.sleeps(&"waiting for the threads");
        self.ends.recv().expect("the threads are well")
    }

    fn close(self) -> (usize, Stats) {
        let over = close_client(&self.client);
        for (orders, thread) in self.workers {
            drop(orders);
            thread.join().expect("it is well");
        }
        over
    }
}

/// Tasks of a runtime with this many threads, which also drives the client.
#[cfg(feature = "tokio")]
struct OnTokio<const THREADS: usize> {
    client: SharedClient,
    runtime: tokio::runtime::Handle,
    thread: JoinHandle<()>,
    stop: tokio::sync::oneshot::Sender<()>,
    sender: Sender<(u64, Ended)>,
    ends: Receiver<(u64, Ended)>,
}

#[cfg(feature = "tokio")]
impl<const THREADS: usize> OnTokio<THREADS> {
    fn begin(&self, number: u64, future: impl Future<Output = Ended> + Send + 'static) {
        let sender = self.sender.clone();
        self.runtime.spawn(async move {
            let _ = sender.send((number, future.await));
        });
    }
}

#[cfg(feature = "tokio")]
impl<const THREADS: usize> Door for OnTokio<THREADS> {
    type Held = SharedGuard;
    const AT_ONCE: u64 = 32;
    const USUALLY: u64 = 20_000;

    fn open(config: &Config) -> Self {
        let mut builder = match THREADS {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(THREADS).enable_all().build().expect("a runtime");
        let client = runtime.block_on(SharedClient::connect_tokio(config.clone()));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let (sender, ends) = mpsc::channel();
        let client = client.expect("good settings");
        OnTokio { client, runtime: handle, thread, stop, sender, ends }
    }

    fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
        self.begin(number, lock(self.client.clone(), key.to_owned(), options));
    }

    fn release(&mut self, held: SharedGuard, number: u64) {
        self.begin(number, give_back(held));
    }

    fn next(&mut self, watch: &Watch) -> (u64, Ended) {
        watch.sleeps(&"waiting for the tasks");
        self.ends.recv().expect("there is a sender")
    }

    fn close(self) -> (usize, Stats) {
        let over = close_client(&self.client);
        self.stop.send(()).expect("it runs");
        self.thread.join().expect("it is well");
        over
    }
}
