//! The threads of one master: they accept, read, and write the master's output, now or late.

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

/// How long a master pauses when it cannot accept a connection, for lack of descriptors perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the threads of one master share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Signals that it was thawed, killed or dropped, or that there is something to deliver later.
    pub(super) changed: Condvar,
    started: time::Instant,
    /// By how much the clock was ahead then.
    ahead: Duration,
}

/// A master runs one command at a time: the thread that has this lock is the master.
#[derive(Debug)]
pub(super) struct State {
    pub(super) master: Master,
    /// Counts the kills. A thread of a former life ends when it sees a new number.
    pub(super) generation: u64,
    pub(super) frozen: bool,
    pub(super) over: bool,
    pub(super) delay: Duration,
    pub(super) wires: BTreeMap<ConnectionId, Wire>,
    pub(super) readers: Vec<JoinHandle<()>>,
    /// Where connections wait to be accepted, while it lives.
    #[cfg(feature = "net")]
    pub(super) listener: Option<TcpListener>,
    /// Output that is to be written later, with its moment and its order.
    pub(super) late: BTreeMap<(time::Instant, u64), Late>,
    delayed: u64,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    /// How many replies are still to be written late, and when the last one is due: no later
    /// output may overtake them.
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
        // Different masters need different seeds, also in two processes that start at once.
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
        // A thread that panicked has printed that; the others may end in order.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Instant {
        let advanced = ahead().saturating_sub(self.ahead);
        Instant::from_nanos(0).saturating_add(self.started.elapsed()).saturating_add(advanced)
    }

    /// Returns the state as soon as the master may act, or `None` when this life of it is over.
    fn act(&self, generation: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while state.frozen && state.generation == generation {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(state).filter(|state| state.generation == generation)
    }

    pub(super) fn accept(self: &Arc<Shared>, listener: &TcpListener, generation: u64) {
        loop {
            // Accepted below, so that no connection is on its way where `has_answered_all` looks.
            #[cfg(feature = "net")]
            let waited = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
            #[cfg(not(feature = "net"))]
            let accepted = listener.accept();
            let Some(mut state) = self.act(generation) else { return };
            #[cfg(feature = "net")]
            let accepted = waited.map_err(io::Error::from).and_then(|_| listener.accept());
            let accepted = accepted.and_then(|(stream, peer)| {
                // Some systems take this from the listener.
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
            // Read below, so that no bytes are on their way where `has_answered_all` looks.
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

    /// Writes the master's output, now or when it is due.
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
    pub(super) fn deliver_late(&self) {
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
        // A blocking write is short only after its timeout.
        let whole = wire.stream.write(bytes).is_ok_and(|written| written == bytes.len());
        if !whole || closes {
            self.close(connection);
        }
    }

    /// Ends a connection. Its reader wakes, and the socket closes when the reader drops it.
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
