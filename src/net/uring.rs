//! The engine with a loop of its own, on io_uring: one system call per turn. No other interface
//! uses a ring.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use super::engine::{Engine, SocketDriver};
use super::reactor::Reactor;
use crate::config::Config;
use crate::proto::error::ConfigError;

/// The engine with a loop of its own, on io_uring: for a thread that waits for nothing else. Each
/// turn writes to all nodes, waits and reads in one system call.
///
/// Make requests of its [`engine_mut`](UringEngine::engine_mut), and call
/// [`turn`](UringEngine::turn) until they have ended. Linux 6.1 or newer. If the kernel refuses a
/// ring, it waits for epoll, and [`socket_driver`](UringEngine::socket_driver) has the reason.
/// Encrypted connections (`rediss://`) are always served by epoll.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Config, Outcome, UringEngine};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let mut locks = UringEngine::new(config)?;
/// locks.engine_mut().acquire("invoice:42", Duration::from_secs(30), 7)?;
/// loop {
///     locks.turn(None)?;
///     while let Some(done) = locks.engine_mut().poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => drop(locks.engine_mut().release(lock, 8)),
///             (8, Outcome::Released(_)) => return Ok(()),
///             (data, other) => println!("{data}: {other:?}"),
///         }
///     }
/// }
/// # }
/// ```
///
/// # Threads, processes, signals
///
/// A ring belongs to one thread, so a `UringEngine` is not `Send`: make it on its thread. After
/// `fork` it belongs to the parent, as an [`Engine`] does: in the child, call `turn` first. A
/// signal ends a wait early.
///
/// Dropping it is what dropping an [`Engine`] is.
#[derive(Debug)]
pub struct UringEngine {
    engine: Engine,
    reactor: Reactor,
    /// It stays on its thread.
    _not_send: PhantomData<*const ()>,
}

impl UringEngine {
    /// Begins to connect to the nodes. Names are looked up here, which may block.
    ///
    /// # Errors
    /// A setting that cannot work, or the system refuses a poller.
    pub fn new(config: Config) -> Result<UringEngine, ConfigError> {
        let (reactor, mut engine) = Reactor::with_timeouts(config)?;
        engine.use_ring();
        Ok(UringEngine { engine, reactor, _not_send: PhantomData })
    }

    /// What serves the sockets of the nodes, and why.
    pub fn socket_driver(&self) -> SocketDriver {
        self.engine.socket_driver()
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for requests and completions. Requests are written by the next
    /// [`turn`](UringEngine::turn).
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Does what is due, writes what was requested, waits until something happens, for `timeout` at
    /// most (`None`: without a limit), and reads. While completions or lock updates are left it
    /// does not wait.
    ///
    /// # Errors
    /// If the system's poller fails.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.engine.check_fork_by_ring() {
            return Ok(());
        }
        self.engine.go_on();
        let due = self.engine.plan_sleep();
        let mut sleep = [due, timeout].into_iter().flatten().min();
        if self.engine.has_ring() {
            if !self.engine.turn_ring(sleep) {
                return Ok(());
            }
            sleep = Some(Duration::ZERO);
        }
        self.reactor.turn(&mut self.engine, sleep)
    }
}
