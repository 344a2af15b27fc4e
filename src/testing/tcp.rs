//! Masters on TCP ports of this machine, inside this process: for your own tests, and for a demo. A
//! test can freeze, kill and restart them, delay their replies and let them refuse commands. It can
//! let time pass without a sleep, for masters and clients
//! ([`clock::advance`](super::clock::advance)) or only for the masters ([`Masters::advance`]).
//!
//! Each is a [`Master`] with a listener on 127.0.0.1, a thread for each connection and two more,
//! which sleep while nothing happens. It is not a Redis: it knows only the commands of a lock,
//! keeps everything in memory, has no password unless a test sets one, and ends when it is dropped.
//!
//! The hazard is the restart guard. These masters have just been started, so a client with the
//! guard on gets no lock from them for its `max_ttl`. Switch the guard off, or make the masters
//! seem older with [`LocalMaster::set_uptime`].
//!
//! `connect` returns once a quorum of the nodes is connected. So before a test freezes or kills a
//! master and makes a single attempt, it waits until all of the client's nodes are `Ready`. And a
//! release returns once a majority has answered, so close every client before you assert on the
//! keys that are left.
//!
//! ```
//! # #[cfg(feature = "net")]
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use redlatch::testing::tcp::Masters;
//! use redlatch::{Client, Config, RestartGuard};
//!
//! let masters = Masters::start(3)?;
//! let config = Config::new(masters.urls())?.restart_guard(RestartGuard::Off);
//! let client = Client::connect(config)?;
//!
//! masters[0].freeze();
//! let guard = client.lock("invoice:42", Duration::from_secs(10))?; // two of three are enough
//! assert!(masters[1].get(b"invoice:42").is_some());
//!
//! masters[1].kill();
//! assert!(client.try_lock("invoice:43", Duration::from_secs(10)).is_err());
//! # Ok(())
//! # }
//! # #[cfg(feature = "net")]
//! # example().unwrap();
//! ```

mod threads;

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Index;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(feature = "net")]
use super::clock::answerers;
use super::master::{Master, Restart, Trouble};
use crate::proto::settings::NODE_MARKER;
use crate::proto::time::Instant;
use threads::{Shared, WRITE_TIMEOUT, named};

/// The ports to choose from. They are not among those that a system gives to outgoing connections:
/// a client that connects to a killed master could get the master's port as its own, and so connect
/// to itself.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// The longest delay. Without a limit the moment of a reply could not be expressed.
const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Several masters. Dropping them ends them.
#[derive(Debug)]
pub struct Masters {
    all: Vec<LocalMaster>,
}

impl Masters {
    /// Starts this many masters, each on a free port.
    ///
    /// # Errors
    /// No free port, no more descriptors, no more threads.
    pub fn start(count: usize) -> io::Result<Masters> {
        let all = (0..count).map(|_| LocalMaster::start()).collect::<io::Result<_>>()?;
        Ok(Masters { all })
    }

    /// The URL of each: `redis://127.0.0.1:PORT`.
    pub fn urls(&self) -> Vec<String> {
        self.all.iter().map(LocalMaster::url).collect()
    }

    /// Lets this much time pass on all masters, as [`LocalMaster::advance`] does, but not for their
    /// clients. So a test of a holder that does not notice that its lock ended need not sleep.
    /// [`clock::advance`](crate::testing::clock::advance) moves clients and masters together.
    ///
    /// ```
    /// # #[cfg(feature = "net")]
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use redlatch::testing::tcp::Masters;
    /// use redlatch::{Client, Config, Error, LostReason, RestartGuard};
    ///
    /// let masters = Masters::start(3)?;
    /// let config = Config::new(masters.urls())?.restart_guard(RestartGuard::Off);
    /// let (first, second) = (Client::connect(config.clone())?, Client::connect(config)?);
    /// let ttl = Duration::from_secs(30);
    ///
    /// let mut slow = first.lock("invoice:42", ttl)?;
    /// masters.advance(ttl); // as if the first holder's process had not run for so long
    /// let _next = second.try_lock("invoice:42", ttl)?;
    /// let lost = slow.extend(ttl).unwrap_err();
    /// assert!(matches!(lost, Error::Lost { reason: LostReason::Gone, .. }));
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "net")]
    /// # example().unwrap();
    /// ```
    pub fn advance(&self, by: Duration) {
        self.all.iter().for_each(|master| master.advance(by));
    }

    /// Iterates over the masters.
    pub fn iter(&self) -> std::slice::Iter<'_, LocalMaster> {
        self.all.iter()
    }
}

impl Index<usize> for Masters {
    type Output = LocalMaster;

    fn index(&self, index: usize) -> &LocalMaster {
        &self.all[index]
    }
}

impl<'a> IntoIterator for &'a Masters {
    type Item = &'a LocalMaster;
    type IntoIter = std::slice::Iter<'a, LocalMaster>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One master. It keeps its port until it is dropped.
#[derive(Debug)]
pub struct LocalMaster {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The thread that accepts connections; `None` while the master is killed. The mutex is locked
    /// during a kill or restart.
    acceptor: Mutex<Option<JoinHandle<()>>>,
    courier: Option<JoinHandle<()>>,
}

impl LocalMaster {
    fn start() -> io::Result<LocalMaster> {
        let listener = listen()?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(address.port()));
        #[cfg(feature = "net")]
        answerers::note(&shared);
        let courier = {
            let shared = Arc::clone(&shared);
            named("courier", address).spawn(move || shared.deliver_delayed_output())?
        };
        let master = LocalMaster {
            shared,
            address,
            acceptor: Mutex::new(None),
            // If a later step fails, the drop of this master ends the thread.
            courier: Some(courier),
        };
        *master.acceptor() = Some(master.accept_on(listener)?);
        Ok(master)
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The address on which the master listens, unless it is killed.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Freezes the master, as SIGSTOP does: connections are opened and bytes are received, but
    /// nothing is executed or answered before [`thaw`](LocalMaster::thaw). Replies in flight still
    /// arrive.
    pub fn freeze(&self) {
        self.shared.lock().frozen = true;
    }

    /// Ends the freeze. The master executes everything that arrived meanwhile, also from
    /// connections that were closed since.
    pub fn thaw(&self) {
        self.shared.lock().frozen = false;
        self.shared.changed.notify_all();
    }

    /// Kills the master, as SIGKILL does: its connections close without further output, and its
    /// port refuses connections until [`restart`](LocalMaster::restart). A second kill does
    /// nothing.
    pub fn kill(&self) {
        self.end(&mut self.acceptor());
    }

    /// Starts the master again on its port; kills it before if it runs. The `run_id` is new, the
    /// uptime zero, and the master is not frozen. Its delay and its troubles stay.
    ///
    /// # Errors
    /// Another process took the port meanwhile.
    pub fn restart(&self, memory: Restart) -> io::Result<()> {
        let mut acceptor = self.acceptor();
        self.end(&mut acceptor);
        let listener = TcpListener::bind(self.address)?;
        {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            state.master.restart(now, memory);
            while state.master.poll_output().is_some() {}
            state.frozen = false;
        }
        *acceptor = Some(self.accept_on(listener)?);
        Ok(())
    }

    /// Delays every reply and push from now on, by one day at most. Commands are still executed
    /// when they arrive. The delay is zero at first.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay.min(DELAY_MAX);
    }

    /// Answers every command with this error line: `LOADING Redis is loading the dataset in
    /// memory`.
    pub fn refuse_with(&self, error: &str) {
        self.with(|master, _| master.refuse_with(error));
    }

    /// Adds a trouble, from now on.
    pub fn suffer(&self, trouble: Trouble) {
        self.with(|master, _| master.suffer(trouble));
    }

    /// Ends all troubles, and [`refuse_with`](LocalMaster::refuse_with).
    pub fn serve(&self) {
        self.with(|master, _| master.serve());
    }

    /// The string at a key of database 0; `None` if there is none.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.with(|master, now| master.get(now, 0, key.as_ref()).map(<[u8]>::to_vec))
    }

    /// As the command `PTTL` in database 0: the milliseconds that a key has left, -1 without a ttl,
    /// -2 if absent.
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        self.with(|master, now| master.pttl(now, 0, key.as_ref()))
    }

    /// The keys of database 0, sorted, without the node marker that clients write there.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = self.with(|master, now| master.keys(now, 0));
        keys.retain(|key| key != NODE_MARKER.as_bytes());
        keys
    }

    /// Makes the master seem older, by its uptime and its node marker. A restart ends this.
    pub fn set_uptime(&self, seconds: u32) {
        self.with(|master, now| master.set_uptime(now, seconds));
    }

    /// Lets this much time pass for the master's keys and its uptime, but not for clients. A holder
    /// notices that its key is gone only when it extends or renews the lock. A client that waits
    /// for the key notices that in one of its next attempts, after less than half a second. To move
    /// the clients' clock as well, use [`clock::advance`](crate::testing::clock::advance).
    pub fn advance(&self, by: Duration) {
        self.with(|master, _| master.advance(by));
    }

    /// Calls `act` with the [`Master`] between two commands, also if the master is killed: for
    /// example to set a password, to step its clock, or to imitate another server. `act` must not
    /// call other methods of this master, because they wait until `act` has returned.
    pub fn with<R>(&self, act: impl FnOnce(&mut Master, Instant) -> R) -> R {
        let mut state = self.shared.lock();
        let result = act(&mut state.master, self.shared.now());
        self.shared.deliver(&mut state);
        result
    }

    fn acceptor(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.acceptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_on(&self, listener: TcpListener) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        #[cfg(feature = "net")]
        {
            listener.set_nonblocking(true)?;
            shared.lock().listener = Some(listener.try_clone()?);
        }
        let generation = shared.lock().generation;
        named("listener", self.address).spawn(move || shared.accept(&listener, generation))
    }

    /// Ends the listener and all connections, and waits until their threads have ended.
    fn end(&self, acceptor: &mut Option<JoinHandle<()>>) {
        let Some(acceptor) = acceptor.take() else { return };
        let readers = {
            let mut state = self.shared.lock();
            state.generation += 1;
            state.late.clear();
            #[cfg(feature = "net")]
            drop(state.listener.take());
            for (_, wire) in std::mem::take(&mut state.wires) {
                // The peer may have closed the connection. Its reader wakes and drops it.
                let _ = wire.stream.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut state.readers)
        };
        self.shared.changed.notify_all();
        // Connects, because the listener sleeps until a connection comes. If the listener has
        // already ended, the connection fails, which is ignored.
        let _ = TcpStream::connect_timeout(&self.address, WRITE_TIMEOUT);
        for thread in readers.into_iter().chain([acceptor]) {
            // If the thread panicked, it has printed that itself.
            let _ = thread.join();
        }
    }
}

impl Drop for LocalMaster {
    fn drop(&mut self) {
        self.kill();
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
        if let Some(courier) = self.courier.take() {
            let _ = courier.join();
        }
    }
}

/// Listens on a free port, which is none of those that the system gives to outgoing connections.
fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that start at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(97) % u32::from(count);
    let mut last_error = None;
    for _ in 0..count {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u32::from(PORTS.start) + (first + step) % u32::from(count);
        let port = u16::try_from(port).unwrap_or(PORTS.start);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last_error = Some(error),
        }
    }
    Err(last_error.unwrap_or_else(|| ErrorKind::AddrInUse.into()))
}
