//! The engine behind one file descriptor: a poller inside a poller, with a timer in it, so that any
//! loop carries the whole client as one readable descriptor and needs no timer for it.
//!
//! The hazard is a descriptor that stays silent while there is something to do. So it is readable
//! as long as completions wait, when a request ends inside the call that made it, when a node has
//! sent more than one turn reads, and when something is due.

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
use crate::proto::ops::Completion;

/// The engine behind one file descriptor, for a loop that is not mio's: epoll, poll(2), libuv,
/// glib, calloop, a game loop. Linux only.
///
/// Wait until it is readable, whichever trigger the loop has; then [`tick`](Embedded::tick), and
/// take the completions. It needs no timeout and no timer: what is due makes it readable, too. What
/// was not taken keeps it readable. A loop that turns all the time ticks once a turn and does not
/// wait for anything.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Config, FdEngine, Outcome};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let mut locks = FdEngine::new(config)?;
/// locks.batch().acquire("invoice:42", Duration::from_secs(10), 7)?;
/// loop {
///     // Your descriptors beside it; no timeout for ours.
///     poll(&mut [PollFd::new(&locks, PollFlags::IN)], None)?;
///     locks.tick()?;
///     while let Some(done) = locks.poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => {
///                 println!("held for {:?} more", locks.engine().remaining(&lock));
///                 locks.batch().release(lock, 8);
///             }
///             (8, Outcome::Released(_)) => return Ok(()),
///             (data, other) => println!("{data}: {other:?}"),
///         }
///     }
/// }
/// # }
/// ```
///
/// The same in epoll, here through `rustix`, edge-triggered:
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
/// locks.batch().acquire("invoice:42", Duration::from_secs(10), 7)?;
/// let mut events = [MaybeUninit::uninit(); 8];
/// loop {
///     epoll::wait(&poller, &mut events, None)?;
///     locks.tick()?;
///     while let Some(done) = locks.poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => drop(locks.batch().release(lock, 8)),
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
/// It is `Send` and `Sync`: it may be made on one thread and used on another, and whoever asks it
/// for something needs it mutably. After `fork` it belongs to the parent: in the child every
/// request ends as [`ConfigError::Nodes`](crate::ConfigError), and the descriptor, which both
/// processes share, is not to be waited for. A copy with the same process number is not noticed:
/// see [`Engine::check_fork`]. No call of it waits, so no signal interrupts one; your own wait it
/// may. What becomes of a panic in a function that the [`Config`] was given is said at
/// the [`Engine`]; one of yours that drops it in unwinding does what any drop of it does.
///
/// Take it out of your loop before you drop it: as long as a forked process has a copy of the
/// descriptor, closing it here does not.
///
/// Dropping it releases what it was asked for and did not hand out, as far as the sockets take it
/// without waiting. A lock that it did hand out stays until its ttl is over, unless it is released:
/// [`Engine::release_all`] does it for all of them.
#[derive(Debug)]
pub struct FdEngine {
    engine: Engine,
    reactor: Reactor,
}

impl FdEngine {
    /// Begins to connect to the nodes. Names are looked up here, which may block.
    ///
    /// # Errors
    /// A setting that cannot work, or the system refuses what is needed: it wants a poller and a
    /// timer (`timerfd`).
    pub fn new(config: Config) -> Result<FdEngine, ConfigError> {
        let (reactor, engine) = Reactor::of(config)?;
        if !engine.has_alarm() {
            let problem = "no timer that a poller can wait for".into();
            return Err(ConfigError::System { problem });
        }
        let mut embedded = FdEngine { engine, reactor };
        // The connections are begun here: what comes of them makes the descriptor readable.
        drop(embedded.batch());
        Ok(embedded)
    }

    /// The engine, to ask it for something. What was asked is written when the handle is dropped,
    /// at the end of the statement: hold it to ask for several things in one write for each node.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { engine: &mut self.engine }
    }

    /// Reads what the nodes said, does what is due and writes what follows from it. It never
    /// waits: call it when the descriptor is readable, or whenever you like.
    ///
    /// # Errors
    /// When the system's poller fails.
    pub fn tick(&mut self) -> io::Result<()> {
        if self.engine.check_fork() {
            self.reactor.wait(Some(Duration::ZERO))?;
            self.reactor.hand_over(&mut self.engine);
        }
        self.engine.prepare();
        Ok(())
    }

    /// The next request that came to its end. A lock is handed out only before its deadline.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let done = self.engine.poll_completion();
        if done.is_none() {
            // All were taken: they do not keep the descriptor readable any more. One that was
            // taken too late may have left a release behind.
            self.batch();
        }
        done
    }

    /// The next thing that happened to a node. Events do not make the descriptor readable: look
    /// for them behind every [`tick`](Embedded::tick). One that comes up while something is
    /// asked is there at the next.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.engine.poll_node_event()
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// The engine behind a descriptor, while it is asked for something: see [`FdEngine::ask`].
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
    use crate::config::LockOptions;
    use crate::net::clock;
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

    /// All answers lie in the socket, and a turn reads a tenth of them.
    #[test]
    fn input_that_is_more_than_a_turn_reads_is_told_of_again() {
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
                assert!(wakes(&locks), "silent behind {taken} locks and {ticks} ticks");
                locks.tick().unwrap();
                ticks += 1;
                taken += std::iter::from_fn(|| locks.poll_completion()).count();
            }
            assert!(ticks > 5, "{ticks} turns read all of it: this test shows nothing");
        }
    }
}
