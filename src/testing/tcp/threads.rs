//! The threads of one master, which accept connections, read, and write the master's output,
//! delayed if a test wants that.

use std::collections::BTreeMap;
#[cfg(feature = "net")]
use std::io;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{self, Duration, SystemTime};

#[cfg(feature = "net")]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(feature = "net")]
use rustix::io::ioctl_fionread;

use crate::proto::time::Instant;
use crate::testing::clock::ahead;
#[cfg(feature = "net")]
use crate::testing::clock::answerers::Answerer;
use crate::testing::master::{ConnectionId, Master};

/// How long a peer that does not read may block a master before it is disconnected.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a master pauses if it cannot accept a connection, perhaps because the process has no
/// descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the threads of one master share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Notified when the master is thawed, killed or dropped, and when there is output to write
    /// later.
    pub(super) changed: Condvar,
    started: time::Instant,
    /// By how much tests had advanced the clock at `started`.
    ahead: Duration,
}

/// The state of a master behind a mutex: the thread that has locked it runs commands, so the master
/// runs one command at a time.
#[derive(Debug)]
pub(super) struct State {
    pub(super) master: Master,
    /// The number of kills. A thread that was started before a kill sees that by this number, and
    /// ends.
    pub(super) generation: u64,
    pub(super) frozen: bool,
    pub(super) over: bool,
    pub(super) delay: Duration,
    pub(super) wires: BTreeMap<ConnectionId, Wire>,
    pub(super) readers: Vec<JoinHandle<()>>,
    /// The listener; `None` while the master is killed. Shows whether a connection waits to be
    /// accepted.
    #[cfg(feature = "net")]
    pub(super) listener: Option<TcpListener>,
    /// Delayed output, by the moment at which it has to be written and by its order.
    pub(super) late: BTreeMap<(time::Instant, u64), Late>,
    delayed: u64,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    /// How many delayed replies are not written yet, and when the last one is due. Later output
    /// must not overtake them.
    late: usize,
    due: time::Instant,
}

#[derive(Debug)]
pub(super) struct Late {
    connection: ConnectionId,
    bytes: Vec<u8>,
    closes: bool,
}

impl Shared {
    pub(super) fn new(port: u16) -> Shared {
        let unix = unix_nanoseconds();
        let start = Instant::from_nanos(0);
        // Different masters need different seeds, also in two processes that start at the same
        // time.
        let seed = unix ^ u64::from(port) << 48 ^ u64::from(std::process::id()) << 16;
        let mut master = Master::new(seed, start);
        master.set_wall_clock(start, unix);
        master.set_info("tcp_port", &port.to_string());
        let state = State {
            master,
            generation: 0,
            frozen: false,
            over: false,
            delay: Duration::ZERO,
            wires: BTreeMap::new(),
            readers: Vec::new(),
            #[cfg(feature = "net")]
            listener: None,
            late: BTreeMap::new(),
            delayed: 0,
        };
        Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            started: clock(),
            ahead: ahead(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has printed that. The other threads can still go on and end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Instant {
        let advanced = ahead().saturating_sub(self.ahead);
        Instant::from_nanos(0).saturating_add(self.started.elapsed()).saturating_add(advanced)
    }

    /// Waits while the master is frozen, and returns its state; `None` if it was killed since
    /// `generation`.
    fn act(&self, generation: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while state.frozen && state.generation == generation {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(state).filter(|state| state.generation == generation)
    }

    pub(super) fn accept(self: &Arc<Shared>, listener: &TcpListener, generation: u64) {
        loop {
            // Only waits here. The connection is accepted below under the mutex: so
            // `has_answered_all` sees it either in the listener or in `wires`.
            #[cfg(feature = "net")]
            let waited = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
            #[cfg(not(feature = "net"))]
            let accepted = listener.accept();
            let Some(mut state) = self.act(generation) else { return };
            #[cfg(feature = "net")]
            let accepted = waited.map_err(io::Error::from).and_then(|_| listener.accept());
            let accepted = accepted.and_then(|(stream, peer)| {
                // On some systems a connection inherits non-blocking mode from the listener.
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok((stream.try_clone()?, stream, peer))
            });
            let Ok((input, stream, peer)) = accepted else {
                let waited = self.changed.wait_timeout(state, ACCEPT_PAUSE);
                drop(waited);
                continue;
            };
            let connection = state.master.connect();
            state.wires.insert(connection, Wire { stream, late: 0, due: clock() });
            self.deliver(&mut state);
            let shared = Arc::clone(self);
            let read = move || shared.read(input, connection, generation);
            state.readers.retain(|reader| !reader.is_finished());
            match named("connection", peer).spawn(read) {
                Ok(reader) => state.readers.push(reader),
                Err(_) => state.close(connection),
            }
        }
    }

    fn read(&self, mut input: TcpStream, connection: ConnectionId, generation: u64) {
        let mut chunk = [0; 16 * 1024];
        loop {
            // Only waits here. The bytes are read below under the mutex: so `has_answered_all` sees
            // them in the socket until they are executed.
            let arrived = input.peek(&mut [0]);
            if arrived.is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                continue;
            }
            let Some(mut state) = self.act(generation) else { return };
            let length = match input.read(&mut chunk) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            if length == 0 {
                state.close(connection);
                return;
            }
            let now = self.now();
            state.master.handle_bytes(now, connection, &chunk[..length]);
            self.deliver(&mut state);
        }
    }

    /// Writes the master's output, or queues it if replies are delayed.
    pub(super) fn deliver(&self, state: &mut State) {
        let now = clock();
        while let Some(output) = state.master.poll_output() {
            let (connection, bytes) = (output.connection, output.bytes);
            let Some(wire) = state.wires.get_mut(&connection) else { continue };
            if wire.late == 0 && state.delay.is_zero() {
                state.write(connection, &bytes, output.closes);
                continue;
            }
            wire.late += 1;
            wire.due = wire.due.max(now + state.delay);
            state.delayed += 1;
            let late = Late { connection, bytes, closes: output.closes };
            state.late.insert((wire.due, state.delayed), late);
            self.changed.notify_all();
        }
    }

    /// The loop of the courier thread: writes all delayed output when it is due.
    pub(super) fn deliver_delayed_output(&self) {
        let mut state = self.lock();
        while !state.over {
            let now = clock();
            let next = state.late.first_key_value().map(|((due, _), _)| *due);
            state = match next {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now => {
                    let waited = self.changed.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    if let Some((_, late)) = state.late.pop_first() {
                        if let Some(wire) = state.wires.get_mut(&late.connection) {
                            wire.late -= 1;
                        }
                        state.write(late.connection, &late.bytes, late.closes);
                    }
                    state
                }
            };
        }
    }
}

#[cfg(feature = "net")]
impl Answerer for Shared {
    fn has_answered_all(&self) -> bool {
        let state = self.lock();
        let is_empty = |wire: &Wire| ioctl_fionread(&wire.stream).map_or(true, |bytes| bytes == 0);
        let none_waits = state.listener.as_ref().is_none_or(|listener| {
            poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&Timespec::default())) != Ok(1)
        });
        state.frozen || none_waits && state.wires.values().all(is_empty)
    }
}

impl State {
    fn write(&mut self, connection: ConnectionId, bytes: &[u8], closes: bool) {
        let Some(wire) = self.wires.get_mut(&connection) else { return };
        // A blocking write is incomplete only if it timed out.
        let whole = wire.stream.write(bytes).is_ok_and(|written| written == bytes.len());
        if !whole || closes {
            self.close(connection);
        }
    }

    /// Ends a connection. Its reader thread wakes and drops the socket, which closes it.
    fn close(&mut self, connection: ConnectionId) {
        self.master.disconnect(connection);
        if let Some(wire) = self.wires.remove(&connection) {
            // The peer may have closed the connection first.
            let _ = wire.stream.shutdown(Shutdown::Both);
        }
    }
}

pub(super) fn named(what: &str, address: SocketAddr) -> thread::Builder {
    thread::Builder::new().name(format!("redlatch {what} {}", address.port()))
}

#[expect(clippy::disallowed_methods, reason = "the clock of the library needs the feature net")]
fn clock() -> time::Instant {
    time::Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a server's TIME is the wall clock")]
fn unix_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
