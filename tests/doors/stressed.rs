//! The doors under stress: each as an implementation of [`Door`], and a test that runs it.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use super::*;
use mio::{Events, Poll, Token};
use redlatch::{Completion, Engine, FdEngine, Lock, LockOptions, Outcome, Stats};
use stress::{Door, End, Watch, stress};

#[test]
fn blocking() {
    stress::<Blocking>();
}

#[test]
fn engine_on_a_mio_poll_misses_no_wake_up_under_stress() {
    stress::<OnPoll>();
}

#[test]
fn engine_behind_a_descriptor_in_poll_misses_no_wake_up_under_stress() {
    stress::<Level>();
}

#[test]
fn engine_behind_a_descriptor_in_epoll_misses_no_wake_up_under_stress() {
    stress::<Edge>();
}

fn ended_request(done: Completion) -> (u64, End<Lock>) {
    let end = match done.result {
        Ok(Outcome::Acquired(lock)) => End::Granted(lock),
        Ok(Outcome::Released(_)) => End::Released,
        Ok(other) => panic!("{other:?}"),
        Err(_) => End::Refused,
    };
    (done.data, end)
}

/// The engine on a caller's mio poller.
struct OnPoll {
    engine: Engine,
    poll: Poll,
    events: Events,
}

impl OnPoll {
    fn turn(&mut self, most: Option<Duration>, watch: Option<&Watch>) {
        let timeout = self.engine.prepare();
        if timeout.is_none_or(|timeout| !timeout.is_zero()) {
            watch.inspect(|watch| watch.sleeps(&self.engine));
        }
        let timeout = timeout.into_iter().chain(most).min();
        self.poll.poll(&mut self.events, timeout).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }
}

impl Door for OnPoll {
    type Held = Lock;
    const AT_ONCE: u64 = 32;
    const USUALLY: u64 = 20_000;

    fn open(config: &Config) -> OnPoll {
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config.clone(), poll.registry(), Token(0));
        OnPoll { engine: engine.expect("good settings"), poll, events: Events::with_capacity(64) }
    }

    fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
        self.engine.acquire(key, options, number).expect("there is room");
    }

    fn release(&mut self, held: Lock, number: u64) {
        self.engine.release(held, number);
    }

    fn next(&mut self, watch: &Watch) -> (u64, End<Lock>) {
        loop {
            if let Some(done) = self.engine.poll_completion() {
                return ended_request(done);
            }
            self.turn(None, Some(watch));
        }
    }

    fn close(mut self) -> (usize, Stats) {
        self.engine.release_all();
        let start = Instant::now();
        while self.engine.coordinator().open_records() > 0 && start.elapsed() < LOST {
            self.turn(Some(millis(10)), None);
        }
        (self.engine.coordinator().open_records(), self.engine.stats().clone())
    }
}

/// The engine behind a descriptor, in a loop that nothing else wakes.
struct FdLoop {
    locks: FdEngine,
    outer: Outer,
}

impl FdLoop {
    fn open(config: &Config, make: fn(&mut FdEngine) -> Outer) -> FdLoop {
        let mut locks = FdEngine::new(config.clone()).expect("good settings");
        let outer = make(&mut locks);
        FdLoop { locks, outer }
    }

    fn next(&mut self, watch: &Watch) -> (u64, End<Lock>) {
        loop {
            if let Some(done) = self.locks.poll_completion() {
                return ended_request(done);
            }
            watch.sleeps(&self.locks);
            // The watchdog ends the test before this hour is over.
            assert!(self.outer.wakes(&self.locks, HOUR), "nobody woke it");
            self.locks.tick().expect("the poller works");
        }
    }

    fn close(mut self) -> (usize, Stats) {
        self.locks.batch().release_all();
        let start = Instant::now();
        while self.locks.engine().coordinator().open_records() > 0 && start.elapsed() < LOST {
            self.outer.wakes(&self.locks, LOST);
            self.locks.tick().expect("the poller works");
        }
        let engine = self.locks.engine();
        (engine.coordinator().open_records(), engine.stats().clone())
    }
}

/// In poll(2).
struct Level(FdLoop);

/// In an edge-triggered epoll.
struct Edge(FdLoop);

macro_rules! behind_a_descriptor {
    ($door:ident, $make:expr) => {
        impl Door for $door {
            type Held = Lock;
            const AT_ONCE: u64 = 32;
            const USUALLY: u64 = 20_000;

            fn open(config: &Config) -> $door {
                $door(FdLoop::open(config, $make))
            }

            fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
                self.0.locks.batch().acquire(key, options, number).expect("there is room");
            }

            fn release(&mut self, held: Lock, number: u64) {
                self.0.locks.batch().release(held, number);
            }

            fn next(&mut self, watch: &Watch) -> (u64, End<Lock>) {
                self.0.next(watch)
            }

            fn close(self) -> (usize, Stats) {
                self.0.close()
            }
        }
    };
}

behind_a_descriptor!(Level, |_| Outer::Level);
behind_a_descriptor!(Edge, Outer::edge);

/// Blocking clients. A request ends in the call that makes it, so each client has a thread of its
/// own.
struct Blocking {
    workers: Vec<Worker>,
    ends: Receiver<(u64, End<()>)>,
    looks: VecDeque<String>,
}

struct Worker {
    orders: Option<Sender<Order>>,
    thread: JoinHandle<(usize, Stats)>,
}

/// A key to lock; `None`: the thread has to release its lock.
type Order = Option<(String, LockOptions)>;

fn work(
    config: Config,
    number: u64,
    orders: &Receiver<Order>,
    ends: &Sender<(u64, End<()>)>,
) -> (usize, Stats) {
    let client = Client::connect(config).expect("good settings");
    let mut held = None;
    loop {
        let order = match orders.recv_timeout(millis(20)) {
            Ok(order) => order,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // The pending releases of a connection that was killed are sent inside a call of
                // the client.
                client.drive(Duration::ZERO).expect("the poller works");
                continue;
            }
        };
        let end = match order {
            Some((key, options)) => match client.lock(key, options) {
                Ok(guard) => {
                    held = Some(guard);
                    End::Granted(())
                }
                Err(_) => End::Refused,
            },
            None => match held.take().expect("it was granted").release() {
                Ok(_) => End::Released,
                Err(_) => End::Refused,
            },
        };
        if ends.send((number, end)).is_err() {
            break;
        }
    }
    drop(held);
    let stats = client.stats();
    (client.close(LOST), stats)
}

impl Door for Blocking {
    type Held = ();
    const AT_ONCE: u64 = 8;
    const USUALLY: u64 = 20_000;

    fn open(config: &Config) -> Blocking {
        let (sender, ends) = mpsc::channel();
        let worker = |number| {
            let (orders, take) = mpsc::channel();
            let (config, sender) = (config.clone(), sender.clone());
            let thread = std::thread::spawn(move || work(config, number, &take, &sender));
            Worker { orders: Some(orders), thread }
        };
        let workers = (0..Self::AT_ONCE).map(worker).collect();
        Blocking { workers, ends, looks: VecDeque::new() }
    }

    fn acquire(&mut self, key: &str, options: LockOptions, number: u64) {
        self.order(number, Some((key.to_owned(), options)));
    }

    fn release(&mut self, (): (), number: u64) {
        self.order(number, None);
    }

    fn next(&mut self, watch: &Watch) -> (u64, End<()>) {
        watch.sleeps(&self.looks);
        let (number, end) = self.ends.recv().expect("the clients are well");
        self.looks.retain(|order| !order.starts_with(&format!("{number}:")));
        (number, end)
    }

    fn close(self) -> (usize, Stats) {
        let mut sum = (0, Stats::default());
        for mut worker in self.workers {
            worker.orders = None;
            let (left, stats) = worker.thread.join().expect("the client is well");
            sum = (sum.0 + left, stats);
        }
        sum
    }
}

impl Blocking {
    fn order(&mut self, number: u64, order: Order) {
        self.looks.push_back(format!("{number}: {order:?}"));
        let worker = &self.workers[number as usize];
        worker.orders.as_ref().expect("it is open").send(order).expect("the client is well");
    }
}
