//! A Redis master as a plain value: its answers follow from the time and the bytes that it is
//! given. It has no socket, no clock, no thread, and no randomness but the seed.
//!
//! The master answers as `redis-server` 7.0 does, byte for byte, for the commands that a lock
//! needs; a test compares the two with random commands. Every other command is unknown to it. It
//! is not a place for data: nothing bounds what it holds.
//!
//! The hazard is time. Each call passes the time, and nothing happens between calls. A key is gone
//! at its moment, not up to 1 ms later as on a real node. The master notices that only when a
//! command reads the key, so a push about an expired key comes then or never. `now` is a moment on
//! any monotonic clock; it must not go backwards from call to call. A master's wall clock, which
//! its ttls run on, is that clock plus an offset. [`Master::step_wall_clock`] moves it as a
//! careless operator would.
//!
//! ```
//! use redlatch::proto::Instant;
//! use redlatch::testing::master::Master;
//!
//! let now = Instant::from_nanos(0);
//! let mut master = Master::new(1, now);
//! let connection = master.connect();
//! master.handle_bytes(now, connection, b"SET invoice:42 token NX PX 10000\r\n");
//! let output = master.poll_output().expect("a reply");
//! assert_eq!(output.bytes, b"+OK\r\n");
//! assert_eq!(master.get(now, 0, b"invoice:42"), Some(&b"token"[..]));
//! ```

mod about;
mod commands;
mod fingerprint;
mod keys;
mod line;
mod line_scripts;
mod reply;
mod request;
mod scripts;
mod session;
mod set_scripts;
mod tracking;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::keys::Database;
use self::reply::Reply;
use self::session::Connection;
use self::tracking::Registrations;
use crate::proto::settings::NODE_MARKER;
use crate::proto::time::Instant;

/// As many databases as a server has by default.
const DATABASES: usize = 16;
/// A server takes the first two client ids for itself.
const FIRST_CLIENT: u64 = 3;
/// The wall clock at `now` zero, in Unix nanoseconds: a day in 2023, so that no ttl is before 1970.
const WALL_CLOCK: i128 = 1_700_000_000_000_000_000;
const MILLISECOND: i128 = 1_000_000;
const SECOND: i128 = 1_000_000_000;

/// One connection to a [`Master`], from its `connect` to its end. One master never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// What a master sends on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The connection it is for.
    pub connection: ConnectionId,
    /// Replies and pushes, in order; may be empty when the connection closes.
    pub bytes: Vec<u8>,
    /// The master closes the connection after these bytes, and has forgotten it.
    pub closes: bool,
}

/// What a restarted master has in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Nothing: a node without persistence.
    Empty,
    /// Every key it had, each with what is left of its ttl by now: as with an append-only file.
    WithData,
}

/// What a master saves to its disk: all its keys, and the moment on the wall clock at which each of
/// them ends.
#[derive(Debug, Clone)]
pub struct Dump {
    databases: Vec<Database>,
    second_offset: Option<u64>,
}

/// The server that a [`Master`] imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavor {
    /// Redis 7.0.15: the version that a test compares it with.
    #[default]
    Redis70,
    /// A server as `Redis70` with `DELEX`, `CLIENT SETINFO` and the version of Redis 8.4.
    Redis84,
    /// A server as `Redis70` with `DELIFEQ`, `CLIENT SETINFO` and the names and versions of Valkey
    /// 9.0.
    Valkey90,
}

/// A state in which a master answers some commands with an error.
///
/// The texts are those of a real server, and so are the commands that fail, also inside a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// `-LOADING`: it reads its data after a start. `HELLO` and `INFO` work.
    Loading,
    /// `-BUSY`: a script runs for too long. `HELLO` and `AUTH` work.
    Busy,
    /// `-MISCONF`: it cannot save its data, and refuses writes.
    Misconf,
    /// `-NOREPLICAS`: it has fewer replicas than its configuration requires, and refuses writes.
    NoReplicas,
    /// `-OOM`: its memory is full, and it refuses commands that may need more.
    OutOfMemory,
    /// `-OOM` in the middle of a script: after so many writes of one run it refuses the next that
    /// may need more. No server of today does so.
    OutOfMemoryInside {
        /// How many writes it executes first.
        after: usize,
    },
    /// `-READONLY`: it is a replica, and says so in `HELLO` and `INFO`.
    Replica,
    /// `-MASTERDOWN`: it is a replica without its master, configured not to answer from old data.
    MasterDown,
    /// New connections get this error line, without a request, and are closed. Without the leading
    /// `-`.
    TurnsAway(String),
    /// Calls of these commands, or of every command if the list is empty, get these bytes and have
    /// no effect. This imitates a proxy in between, a missing permission, or a lie. Inside a script
    /// only an error counts, and only of commands that are named.
    Answers {
        /// Names as in `COMMAND INFO`: `set`, `client|kill`.
        commands: Vec<String>,
        /// A whole reply with its end of line, or none at all.
        reply: Vec<u8>,
    },
}

/// A Redis master: its keys, its connections and its troubles. See the [module](self).
#[derive(Debug, Clone)]
pub struct Master {
    seed: u64,
    starts: u64,
    wall_offset: i128,
    /// The wall clock at the start, for the uptime.
    started: i128,
    databases: Vec<Database>,
    /// The scripts it has loaded, by SHA1.
    scripts: BTreeSet<&'static str>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: u64,
    /// What to subtract from a connection's number for its `CLIENT ID`, which starts over at a
    /// restart.
    before_start: u64,
    registrations: Registrations,
    /// Connections with output, in the order in which they first had it.
    speakers: VecDeque<ConnectionId>,
    flavor: Flavor,
    password: Option<Vec<u8>>,
    troubles: Vec<Trouble>,
    info: BTreeMap<String, String>,
    /// How often it was promoted from replica to master.
    promotions: u64,
    /// The offset of the last promotion that it knows of.
    second_offset: Option<u64>,
    /// Whether it counts the ends of keys in whole milliseconds.
    whole_milliseconds: bool,
}

impl Master {
    /// A healthy, empty master that starts at `now`. The seed determines its `run_id`: give
    /// different masters different seeds.
    pub fn new(seed: u64, now: Instant) -> Master {
        let mut master = Master {
            seed,
            starts: 0,
            wall_offset: WALL_CLOCK,
            started: 0,
            databases: vec![Database::default(); DATABASES],
            scripts: BTreeSet::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            before_start: 0,
            registrations: Registrations::default(),
            speakers: VecDeque::new(),
            flavor: Flavor::default(),
            password: None,
            troubles: Vec::new(),
            info: BTreeMap::new(),
            promotions: 0,
            second_offset: None,
            whole_milliseconds: false,
        };
        master.started = master.wall(now);
        master
    }

    /// Opens a connection. A master that [turns it away](Trouble::TurnsAway) sends the error at
    /// once.
    pub fn connect(&mut self) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        self.connections.insert(id, Connection::new(self.password.is_none()));
        let refusal = self.troubles.iter().find_map(|trouble| match trouble {
            Trouble::TurnsAway(line) => Some(Reply::error(line.as_str())),
            _ => None,
        });
        if let Some(refusal) = refusal {
            self.say(id, &refusal);
            self.close(id);
        }
        id
    }

    /// The peer closed the connection: output that it has not read is lost.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// Takes bytes that arrived on a connection, in pieces of any size, and executes every request
    /// that is complete. Bytes on a closed connection are ignored.
    pub fn handle_bytes(&mut self, now: Instant, connection: ConnectionId, bytes: &[u8]) {
        let mut input = match self.connections.get_mut(&connection) {
            Some(state) => std::mem::take(&mut state.input),
            None => return,
        };
        input.extend_from_slice(bytes);
        while self.open(connection).is_some() {
            match request::next(&mut input, self.trusts(connection)) {
                Ok(Some(words)) => self.execute(now, connection, &words),
                Ok(None) => {
                    if let Some(state) = self.open(connection) {
                        state.input = input;
                    }
                    return;
                }
                Err(reason) => {
                    let line = [b"ERR Protocol error: ", &reason[..]].concat();
                    self.say(connection, &Reply::Error(line));
                    self.close(connection);
                }
            }
        }
    }

    /// The next output, one connection at a time, or `None` when all is sent.
    pub fn poll_output(&mut self) -> Option<Output> {
        while let Some(id) = self.speakers.pop_front() {
            // The peer may have disconnected since.
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.speaks = false;
            let output = Output {
                connection: id,
                bytes: std::mem::take(&mut connection.output),
                closes: connection.closing,
            };
            if output.closes {
                self.connections.remove(&id);
            } else if output.bytes.is_empty() {
                continue;
            }
            return Some(output);
        }
        None
    }

    /// Ends the process and starts a new one: every connection closes without further output,
    /// scripts and tracking are forgotten, the `run_id` is new and the uptime zero. The
    /// configuration (flavor, password, troubles) stays. If it keeps its data, it also keeps the
    /// `second_repl_offset` of a promotion, as does a server that loads it from its file.
    pub fn restart(&mut self, now: Instant, memory: Restart) {
        for connection in self.connections.keys().copied().collect::<Vec<_>>() {
            self.hang_up(connection);
        }
        self.starts += 1;
        self.started = self.wall(now);
        self.before_start = self.last_connection;
        self.scripts.clear();
        self.registrations = Registrations::default();
        if memory == Restart::Empty {
            self.databases.fill(Database::default());
            self.second_offset = None;
        }
    }

    /// The data that the server would save to its disk now.
    pub fn dump(&self) -> Dump {
        Dump { databases: self.databases.clone(), second_offset: self.second_offset }
    }

    /// As [`restart`](Master::restart), with what this or another master saved: its keys, each up
    /// to the same moment on this master's wall clock, and its node marker.
    pub fn restart_from(&mut self, now: Instant, dump: Dump) {
        self.restart(now, Restart::Empty);
        Dump { databases: self.databases, second_offset: self.second_offset } = dump;
    }

    /// The master was a replica for a while and is a master again. The process and its `run_id`
    /// are the same, its `master_replid` is new, and every connection closes. Its memory is what
    /// the other master had.
    pub fn promote(&mut self, memory: Restart) {
        for connection in self.connections.keys().copied().collect::<Vec<_>>() {
            self.hang_up(connection);
        }
        self.promotions += 1;
        self.second_offset = Some(1000 * self.promotions + 1);
        self.registrations = Registrations::default();
        if memory == Restart::Empty {
            self.databases.fill(Database::default());
        }
    }

    /// From now on it counts the ends of keys in whole milliseconds, as a server does: a key ends
    /// with the first millisecond after its ttl, so it exists up to 1 ms longer.
    pub fn count_whole_milliseconds(&mut self) {
        self.whole_milliseconds = true;
    }

    /// Makes it older than it is: `INFO` gives this uptime now. Clients have known it since then,
    /// so it has its node marker. A restart ends that.
    pub fn set_uptime(&mut self, now: Instant, seconds: u32) {
        self.started = self.wall(now) - i128::from(seconds) * SECOND;
        let marker = self.marker(self.started);
        for database in &mut self.databases {
            database.write(NODE_MARKER.as_bytes(), marker.as_bytes());
        }
    }

    /// Lets this much time pass at once for its keys and its uptime: a key whose ttl is over by
    /// then is gone. The clock that `TIME` shows stays, so that no client takes this for a jump.
    pub fn advance(&mut self, by: Duration) {
        let by = i128::try_from(by.as_nanos()).unwrap_or(i128::MAX / 2);
        self.started -= by;
        for database in &mut self.databases {
            database.postpone(-by);
        }
    }

    /// Sets the wall clock to this Unix time at `now`; ttls and uptime keep what is left of them.
    pub fn set_wall_clock(&mut self, now: Instant, unix_nanoseconds: u64) {
        let by = i128::from(unix_nanoseconds) - self.wall(now);
        self.wall_offset += by;
        self.started += by;
        for database in &mut self.databases {
            database.postpone(by);
        }
    }

    /// Steps the wall clock by this many milliseconds, as an operator or a bad NTP server does:
    /// a step forward ends ttls early and a step back prolongs them. The uptime goes with it.
    pub fn step_wall_clock(&mut self, milliseconds: i64) {
        self.wall_offset += i128::from(milliseconds) * MILLISECOND;
    }

    /// Imitates another server from now on.
    pub fn set_flavor(&mut self, flavor: Flavor) {
        self.flavor = flavor;
    }

    /// Sets the password of the user `default`. Connections that are authenticated stay so.
    pub fn set_password(&mut self, password: Option<&str>) {
        self.password = password.map(|password| password.as_bytes().to_vec());
    }

    /// Sets what `INFO` gives for a field, whatever the truth is: `("cluster_enabled", "1")`. A
    /// field that it does not have is not added. `HELLO` follows `role` and `redis_mode`.
    pub fn set_info(&mut self, field: &str, text: &str) {
        self.info.insert(field.into(), text.into());
    }

    /// Adds a trouble, from now on; the first trouble that concerns a command answers it.
    pub fn suffer(&mut self, trouble: Trouble) {
        self.troubles.push(trouble);
    }

    /// Answers every command with this error line: `LOADING Redis is loading the dataset in
    /// memory`.
    pub fn refuse_with(&mut self, error: &str) {
        let reply = format!("-{error}\r\n").into_bytes();
        self.suffer(Trouble::Answers { commands: Vec::new(), reply });
    }

    /// Ends all troubles.
    pub fn serve(&mut self) {
        self.troubles.clear();
    }

    /// The string at a key, if there is one by now.
    pub fn get(&self, now: Instant, database: usize, key: &[u8]) -> Option<&[u8]> {
        self.databases.get(database)?.text(key, self.wall(now))
    }

    /// As the command `PTTL`: the milliseconds a key has left, -1 without a ttl, -2 when absent.
    pub fn pttl(&self, now: Instant, database: usize, key: &[u8]) -> i64 {
        let wall = self.wall(now);
        self.databases.get(database).map_or(-2, |database| database.pttl(key, wall))
    }

    /// The keys that are there by now, in order.
    pub fn keys(&self, now: Instant, database: usize) -> Vec<Vec<u8>> {
        let wall = self.wall(now);
        self.databases.get(database).map(|database| database.keys(wall)).unwrap_or_default()
    }
}

/// One command that is being executed: its connection, its words and its time.
struct Call<'a> {
    /// Unix time in nanoseconds, by this master's wall clock.
    wall: i128,
    connection: ConnectionId,
    words: &'a [Vec<u8>],
}

impl Master {
    fn wall(&self, now: Instant) -> i128 {
        let wall = i128::from(now.as_nanos()) + self.wall_offset;
        if self.whole_milliseconds { wall - wall.rem_euclid(MILLISECOND) } else { wall }
    }

    /// How much longer than its ttl a key exists: if whole milliseconds are counted, it ends after
    /// its moment, and not at it.
    fn overtime(&self) -> i128 {
        i128::from(self.whole_milliseconds)
    }

    /// The connection, unless it is gone or about to close.
    fn open(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id).filter(|connection| !connection.closing)
    }

    /// The connection a command runs on.
    fn own(&mut self, call: &Call) -> &mut Connection {
        self.connections.get_mut(&call.connection).expect("commands run on live connections")
    }

    /// Whether a connection need not authenticate (any more).
    fn trusts(&self, id: ConnectionId) -> bool {
        let authenticated = self.connections.get(&id).is_some_and(|state| state.authenticated);
        authenticated || self.password.is_none()
    }

    fn is_replica(&self) -> bool {
        let replica = |trouble: &Trouble| matches!(trouble, Trouble::Replica | Trouble::MasterDown);
        self.troubles.iter().any(replica)
    }

    fn execute(&mut self, now: Instant, connection: ConnectionId, words: &[Vec<u8>]) {
        let call = Call { wall: self.wall(now), connection, words };
        let mut about_client = false;
        if !words.is_empty() {
            let (reply, command) = commands::run(self, &call);
            self.say(connection, &reply);
            about_client = command.is_some_and(|command| command.name.starts_with("client|"));
        }
        if let Some(state) = self.connections.get_mut(&connection) {
            // `CLIENT CACHING YES` is about the next command that is not itself a `CLIENT`.
            state.caching &= about_client;
            let pushes = std::mem::take(&mut state.own_pushes);
            let closing = std::mem::take(&mut state.closing_after_reply);
            for push in pushes {
                self.push(connection, push);
            }
            if closing {
                self.close(connection);
            }
        }
    }

    fn say(&mut self, id: ConnectionId, reply: &Reply) {
        if let Some(connection) = self.open(id) {
            let resp3 = connection.resp3;
            reply.encode(resp3, &mut connection.output);
            self.announce(id);
        }
    }

    /// Notifies a tracking connection that a key (or, with `None`, every key) has changed.
    fn push(&mut self, id: ConnectionId, key: Option<Vec<u8>>) {
        // RESP2 has no push.
        if self.open(id).is_some_and(|connection| connection.resp3) {
            self.say(id, &Reply::Invalidate(key));
        }
    }

    /// Closes the connection after its output.
    fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.open(id) {
            connection.closing = true;
            self.announce(id);
        }
    }

    /// Closes the connection without further output.
    fn hang_up(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.output.clear();
            connection.closing = true;
            self.announce(id);
        }
    }

    fn announce(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            if !connection.speaks {
                connection.speaks = true;
                self.speakers.push_back(id);
            }
        }
    }

    fn client_id(&self, connection: ConnectionId) -> u64 {
        connection.0 - self.before_start + FIRST_CLIENT - 1
    }

    /// The connection with this `CLIENT ID`, whether or not there is one.
    fn connection(&self, client_id: u64) -> Option<ConnectionId> {
        let since_start = client_id.checked_sub(FIRST_CLIENT - 1)?;
        self.before_start.checked_add(since_start).map(ConnectionId)
    }
}
