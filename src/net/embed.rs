//! The engine as one file descriptor: that of a poller which has the sockets and a timer in it. So
//! any loop can wait for the whole client by one readable descriptor, and needs no timer for it.
//!
//! The hazard is a descriptor that is not readable although there is something to do. So it is
//! readable while the caller has not fetched all completions or updates of locks, if a request
//! ended inside the call that made it, if a node has sent more than one turn reads, and if a timer
//! is due.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::engine::Engine;
use super::reactor::Reactor;
use crate::config::Config;
use crate::proto::coordinator::NodeEvent;
use crate::proto::error::ConfigError;
use crate::proto::locks::completions::Completion;
use crate::proto::locks::held::updates::LockUpdate;

/// The engine as one file descriptor, for a loop that is not mio's: epoll, poll(2), libuv, glib,
/// calloop, a game loop. Linux only.
///
/// Wait until the descriptor is readable, level-triggered or edge-triggered. Then call
/// [`tick`](FdEngine::tick), and fetch the completions, and the updates of renewed locks
/// ([`poll_lock_update`](FdEngine::poll_lock_update)). The descriptor stays readable while any of
/// these is left. You need no timeout and no timer, because work that is due makes the descriptor
/// readable, too. A loop that never sleeps calls `tick` once per turn without waiting.
///
/// When a request ends, its timer stays set, because to unset it would cost a system call for each
/// request. So the descriptor may become readable once with nothing to do.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Config, FdEngine, Outcome};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let mut locks = FdEngine::new(config)?;
/// locks.batch().acquire("invoice:42", Duration::from_secs(30), 7)?;
/// loop {
///     // Your descriptors beside it; no timeout for ours.
///     poll(&mut [PollFd::new(&locks, PollFlags::IN)], None)?; // a signal ends it with `EINTR`
///     let mut turn = locks.tick()?;
///     while let Some(done) = turn.poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => {
///                 println!("held for {:?} more", turn.remaining(&lock));
///                 turn.release(lock, 8);
///             }
///             (8, Outcome::Released(_)) => return Ok(()),
///             (data, other) => println!("{data}: {other:?}"),
///         }
///     }
/// }
/// # }
/// ```
///
/// The same with epoll, here through `rustix`, edge-triggered:
///
/// ```no_run
/// use std::mem::MaybeUninit;
/// use std::time::Duration;
/// use redlatch::{Config, FdEngine, Outcome};
/// use rustix::event::epoll;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let mut locks = FdEngine::new(config)?;
/// let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
/// let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
/// epoll::add(&poller, &locks, epoll::EventData::new_u64(1), flags)?;
/// locks.batch().acquire("invoice:42", Duration::from_secs(30), 7)?;
/// let mut events = [MaybeUninit::uninit(); 8];
/// loop {
///     epoll::wait(&poller, &mut events, None)?;
///     let mut turn = locks.tick()?;
///     while let Some(done) = turn.poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => drop(turn.release(lock, 8)),
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
/// An `FdEngine` is `Send` and `Sync`: it may be made on one thread and used on another, and every
/// request needs `&mut`. After `fork` it belongs to the parent: in the child every request ends as
/// [`ClosedReason::Forked`](crate::ClosedReason), and the child must not wait for the descriptor,
/// which both processes share. The copy in the child notices the fork in [`tick`](FdEngine::tick),
/// and when a [`Batch`] is dropped. So the child has to call `tick` before
/// [`poll_completion`](FdEngine::poll_completion), which would otherwise return a lock that the
/// parent was granted before the fork. A copy that has the same process number cannot be noticed:
/// see [`Engine::check_fork`].
///
/// No call of an `FdEngine` waits, so a signal interrupts only your own wait. [`Engine`] says what
/// a panic in a function of the [`Config`] does. If a panic of yours unwinds through an `FdEngine`,
/// it is dropped as usual.
///
/// Deregister the `FdEngine` from your loop before you drop it: as long as a forked process has a
/// copy of the descriptor, the drop does not end the registration.
///
/// The drop cancels every request. It releases each lock that no completion has returned, also one
/// that may still be granted, as far as the sockets take the releases without waiting. A lock that
/// a completion has returned stays until its ttl is over, unless you release it:
/// [`Engine::release_all`] releases all of them.
#[derive(Debug)]
pub struct FdEngine {
    engine: Engine,
    reactor: Reactor,
}

impl FdEngine {
    /// Begins to connect to the nodes. Names are looked up here, which may block.
    ///
    /// # Errors
    /// A setting that cannot work, or the system refuses a poller or a timer (`timerfd`).
    pub fn new(config: Config) -> Result<FdEngine, ConfigError> {
        let (reactor, engine) = Reactor::of(config)?;
        if !engine.has_alarm() {
            let problem = "system timer: it cannot be polled".into();
            return Err(ConfigError::System { problem });
        }
        let mut embedded = FdEngine { engine, reactor };
        // The connections begin here: their progress makes the descriptor readable.
        drop(embedded.batch());
        Ok(embedded)
    }

    /// A handle to the engine, for requests. They are written when the handle is dropped, usually
    /// at the end of the statement. Keep the handle to write several requests with one write per
    /// node.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { engine: &mut self.engine }
    }

    /// Reads what the nodes have sent, handles timers that are due, and writes the requests that
    /// follow. Never waits, so you may call it at any time, and have to when the descriptor is
    /// readable.
    ///
    /// The cheapest loop fetches the completions from the returned handle, and makes its next
    /// requests with that handle. When the handle is dropped, it writes these requests together,
    /// and leaves the descriptor readable only if completions are left. A loop that drops the
    /// handle immediately and calls [`poll_completion`](FdEngine::poll_completion) works, too, but
    /// needs two more system calls for each turn with a completion.
    ///
    /// # Errors
    /// When the system's poller fails.
    pub fn tick(&mut self) -> io::Result<Batch<'_>> {
        if self.engine.check_fork() {
            self.reactor.turn(&mut self.engine, Some(Duration::ZERO))?;
            self.engine.go_on();
        }
        Ok(self.batch())
    }

    /// Returns the next request that ended. Returns a lock only before its deadline.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let done = self.engine.poll_completion();
        if done.is_none() {
            // Dropping the handle makes the descriptor not readable any more if nothing is left,
            // and writes the release of a lock that was fetched after its deadline.
            self.batch();
        }
        done
    }

    /// Returns the next update of a lock: see [`Engine::poll_lock_update`]. The descriptor stays
    /// readable while updates are left.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        let update = self.engine.poll_lock_update();
        if update.is_none() {
            // Dropping the handle makes the descriptor not readable any more if nothing is left.
            self.batch();
        }
        update
    }

    /// Returns the next event of a node. Events do not make the descriptor readable, so call this
    /// after every [`tick`](FdEngine::tick). An event that a request causes can be fetched after
    /// the next `tick`.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.engine.poll_node_event()
    }

    /// The engine, for calls that only read.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// A handle to the engine, for requests: see [`FdEngine::batch`] and [`FdEngine::tick`].
#[derive(Debug)]
pub struct Batch<'a> {
    engine: &'a mut Engine,
}

impl Deref for Batch<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.engine
    }
}

impl DerefMut for Batch<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        self.engine
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.engine.end_turn();
    }
}

impl AsFd for FdEngine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl AsRawFd for FdEngine {
    fn as_raw_fd(&self) -> RawFd {
        self.reactor.as_raw_fd()
    }
}

impl Source for FdEngine {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).deregister(registry)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::net::clock;
    use crate::proto::lock_options::LockOptions;
    use crate::proto::settings::RestartGuard;
    use crate::testing::tcp::Masters;
    use mio::{Events, Poll};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const HOUR: Duration = Duration::from_secs(3600);
    const LOCKS: usize = 200;

    /// Waits for the descriptor, for ten seconds at most.
    type Wakes = Box<dyn FnMut(&FdEngine) -> bool>;

    fn level_triggered(_: &mut FdEngine) -> Wakes {
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        Box::new(move |locks| {
            poll(&mut [PollFd::new(locks, PollFlags::IN)], Some(&limit)).expect("the system has it")
                == 1
        })
    }

    fn edge_triggered(locks: &mut FdEngine) -> Wakes {
        let (mut outer, mut events) =
            (Poll::new().expect("the system has it"), Events::with_capacity(4));
        outer.registry().register(locks, Token(7), Interest::READABLE).expect("the system has it");
        Box::new(move |_| {
            outer.poll(&mut events, Some(Duration::from_secs(10))).expect("the system has it");
            !events.is_empty()
        })
    }

    /// All answers have arrived in the socket before the first turn, which reads a tenth of them.
    #[test]
    fn input_that_is_more_than_a_turn_reads_is_reported_again() {
        for make in [level_triggered, edge_triggered] {
            let masters = Masters::start(1).unwrap();
            let config = Config::new(masters.urls()).unwrap().restart_guard(RestartGuard::Off);
            let config = config.node_timeout(HOUR).probe_interval(HOUR).reset_after(HOUR);
            let mut locks = FdEngine::new(config).unwrap();
            let mut wakes = make(&mut locks);
            while locks.engine().coordinator().ready().is_empty() {
                assert!(wakes(&locks));
                locks.tick().unwrap();
            }
            locks.engine.read_at_once(16);
            for data in 0..LOCKS {
                let ttl = Duration::from_secs(60);
                locks
                    .batch()
                    .acquire(data.to_string(), LockOptions::once(ttl), data as u64)
                    .unwrap();
            }
            let start = clock::now();
            while masters[0].keys().len() < LOCKS {
                assert!(clock::now().saturating_since(start) < Duration::from_secs(10));
                std::thread::yield_now();
            }
            let (mut ticks, mut taken) = (0, 0);
            while taken < LOCKS {
                assert!(wakes(&locks), "silent after {taken} locks and {ticks} ticks");
                locks.tick().unwrap();
                ticks += 1;
                taken += std::iter::from_fn(|| locks.poll_completion()).count();
            }
            assert!(ticks > 5, "{ticks} turns read all of it: this test shows nothing");
        }
    }
}
