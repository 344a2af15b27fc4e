//! Masters on TCP ports of this machine, inside this process: for your own tests, and for a demo.
//! They can be frozen, killed, restarted, delayed and made to refuse. Time can pass without a
//! sleep, for them and their clients ([`clock::advance`](super::clock::advance)) or for them alone
//! ([`Masters::advance`]).
//!
//! Each is a [`Master`] with a listener on 127.0.0.1, a thread for each connection and two more;
//! all of them sleep while nothing happens. It is not a Redis. It knows the commands of a lock,
//! keeps everything in memory, has no password unless a test sets one, and ends when it is
//! dropped.
//!
//! The hazard is the restart guard. These masters were started a moment ago, and a client with the
//! guard on gets no lock from them for its `max_ttl`. Switch the guard off, or make the masters
//! old with [`LocalMaster::set_uptime`].
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

/// Where to look for a free port. Not among those that a system gives to outgoing connections: a
/// client that connects to a dead master's port could be given that very port, and connect to
/// itself.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// The longest delay, so that every reply has a moment to be sent at.
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

    /// Lets this much time pass at once on all of them, as [`LocalMaster::advance`] does, and not
    /// for their clients: so a test of a holder that notices nothing need not sleep.
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
    /// masters.advance(ttl); // the first holder was away for too long
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

/// One master on its port, which it keeps for life.
#[derive(Debug)]
pub struct LocalMaster {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The thread that accepts while it runs. Locked while the master is killed or restarted.
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
            named("courier", address).spawn(move || shared.deliver_late())?
        };
        let master = LocalMaster {
            shared,
            address,
            acceptor: Mutex::new(None),
            // From here on dropping it ends the thread, if a later step fails.
            courier: Some(courier),
        };
        *master.acceptor() = Some(master.accept_on(listener)?);
        Ok(master)
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Its address, on which it listens while it lives.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it, as SIGSTOP does: connections are made and bytes are taken, but nothing is
    /// executed or answered before [`thaw`](LocalMaster::thaw). Replies in flight still arrive.
    pub fn freeze(&self) {
        self.shared.lock().frozen = true;
    }

    /// Ends the freeze: everything that arrived meanwhile is executed now, also from connections
    /// that were closed since.
    pub fn thaw(&self) {
        self.shared.lock().frozen = false;
        self.shared.changed.notify_all();
    }

    /// Ends it, as SIGKILL does: its connections close without further output, and its port
    /// refuses connections until [`restart`](LocalMaster::restart). A killed master stays dead.
    pub fn kill(&self) {
        self.end(&mut self.acceptor());
    }

    /// Starts it again on its port, after a kill if it runs. The `run_id` is new, the uptime zero,
    /// and it is not frozen; its delay and its troubles stay.
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

    /// Delays every reply and push from now on, as a long wire does. Commands are executed when
    /// they arrive. Zero, as at the start: no delay. One day at most.
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

    /// The string at a key of database 0, if there is one.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.with(|master, now| master.get(now, 0, key.as_ref()).map(<[u8]>::to_vec))
    }

    /// As the command `PTTL` in database 0: the milliseconds a key has left, -1 without a ttl, -2
    /// when absent.
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        self.with(|master, now| master.pttl(now, 0, key.as_ref()))
    }

    /// The keys of database 0, in order, without the node marker that clients leave there.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = self.with(|master, now| master.keys(now, 0));
        keys.retain(|key| key != NODE_MARKER.as_bytes());
        keys
    }

    /// Makes it older than it is, in its uptime and in its node marker. A restart ends that.
    pub fn set_uptime(&self, seconds: u32) {
        self.with(|master, now| master.set_uptime(now, seconds));
    }

    /// Lets this much time pass at once for its keys and its uptime: a key whose ttl is over by
    /// then is gone. The clocks of the clients do not move: a holder believes in its lock until it
    /// extends it or renews it, and a client that waits for the key notices the expiry with one of
    /// its next attempts, after less than half a second. To move them, too:
    /// [`clock::advance`](crate::testing::clock::advance).
    pub fn advance(&self, by: Duration) {
        self.with(|master, _| master.advance(by));
    }

    /// Does anything else with its [`Master`], between two commands, dead or alive: sets a
    /// password, steps its clock, makes it imitate another server. Every other method of this
    /// master waits until `act` is done, so `act` must not call them.
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

    /// Ends the listener and all connections, and waits until their threads are gone.
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
        // The listener sleeps until a connection comes, so this thread connects. A listener that is
        // awake may refuse.
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

/// A listener on a free port that the system does not give to outgoing connections.
fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that start together begin at different ports.
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
