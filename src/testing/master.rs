//! A Redis master as a plain value: its answers depend only on the time and the bytes that it is
//! given. It has no socket, no clock, no thread, and no randomness but the seed.
//!
//! The master answers as `redis-server` 7.0 does, byte for byte, for the commands that a lock
//! needs; a test compares the two with random commands. It knows no other command. It is not made
//! to store data: nothing limits how much it holds.
//!
//! The hazard is time. The caller passes the time to each call, and nothing happens between calls.
//! A key ends exactly when its ttl is over, and not up to 1 ms later as on a real node. The master
//! notices that only when a command reads the key, so only then does it push that the key expired.
//! `now` is a moment on any monotonic clock, and must not go backwards from call to call. The ttls
//! of a master run on its wall clock, which is that clock plus an offset.
//! [`Master::step_wall_clock`] changes the offset, as a careless operator would.
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
mod transactions;

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
/// The id of the first client: a server uses the first two ids for itself.
const FIRST_CLIENT: u64 = 3;
/// The wall clock at `now` zero, in Unix nanoseconds: a day in 2023, so that the wall clock can be
/// set back without getting before 1970.
const WALL_CLOCK: i128 = 1_700_000_000_000_000_000;
const MILLISECOND: i128 = 1_000_000;
const SECOND: i128 = 1_000_000_000;

/// The id of one connection to a [`Master`]. A master never uses the same id again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// What a master sends on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The connection to which the bytes go.
    pub connection: ConnectionId,
    /// Replies and pushes, in order. May be empty if the connection closes.
    pub bytes: Vec<u8>,
    /// The master closes the connection after these bytes, and has forgotten it.
    pub closes: bool,
}

/// What a restarted master has in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Nothing, as a node without persistence.
    Empty,
    /// Every key that it had, each with what is left of its ttl, as with an append-only file.
    WithData,
}

/// What a master saves to its disk: all its keys, each with the moment on the wall clock at which
/// the key ends.
#[derive(Debug, Clone)]
pub struct Dump {
    databases: Vec<Database>,
    second_offset: Option<u64>,
}

/// The server that a [`Master`] imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavor {
    /// Redis 7.0.15, with which a test compares the master.
    #[default]
    Redis70,
    /// A server as `Redis70` with `DELEX`, `SET` with `IFEQ`, `CLIENT SETINFO` and the version of
    /// Redis 8.4.
    Redis84,
    /// A server as `Redis70` with `DELIFEQ`, `SET` with `IFEQ`, `CLIENT SETINFO` and the names and
    /// versions of Valkey 9.0.
    Valkey90,
}

/// A state in which a master answers some commands with an error.
///
/// The error texts are those of a real server. The same commands fail as on a real server, also
/// inside a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// `-LOADING`: the server is reading its data after a start. `HELLO` and `INFO` work.
    Loading,
    /// `-BUSY`: a script runs for too long. `HELLO` and `AUTH` work.
    Busy,
    /// `-MISCONF`: the server cannot save its data, and refuses writes.
    Misconf,
    /// `-NOREPLICAS`: the server has fewer replicas than its configuration requires, and refuses
    /// writes.
    NoReplicas,
    /// `-OOM`: the server's memory is full, and it refuses commands that may need more.
    OutOfMemory,
    /// `-OOM` in the middle of a script: after a number of writes in one run, the server refuses
    /// the next write that may need more memory. No present server does that.
    OutOfMemoryInside {
        /// How many writes of a run it executes before it refuses one.
        after: usize,
    },
    /// `-READONLY`: the server is a replica, as `HELLO` and `INFO` report.
    Replica,
    /// The server has no Lua, as Valkey 9.1 after `MODULE UNLOAD lua`: `EVAL` and `SCRIPT LOAD`
    /// answer `-ERR Could not find scripting engine 'lua'`, and `EVALSHA` answers `-NOSCRIPT`.
    NoLua,
    /// `-MASTERDOWN`: the server is a replica without a connection to its master, and is configured
    /// not to answer from old data.
    MasterDown,
    /// A new connection gets this error line without having asked, and is closed. Give the line
    /// without the leading `-`.
    TurnsAway(String),
    /// These commands, or every command if the list is empty, get these bytes as their reply and
    /// have no effect. This imitates a proxy, a missing permission, or a lie. Inside a script only
    /// commands that are named fail, and only if the reply is an error.
    Answers {
        /// Names as in `COMMAND INFO`: `set`, `client|kill`.
        commands: Vec<String>,
        /// A whole reply with its line end, or nothing, for no reply.
        reply: Vec<u8>,
    },
}

/// A Redis master: its keys, its connections and its troubles. See the [module](self).
#[derive(Debug, Clone)]
pub struct Master {
    seed: u64,
    starts: u64,
    wall_offset: i128,
    /// The wall clock when the process started, for the uptime.
    started: i128,
    databases: Vec<Database>,
    /// The SHA1 of each loaded script.
    scripts: BTreeSet<&'static str>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: u64,
    /// The number of the last connection before the restart. `CLIENT ID` counts connections from
    /// there.
    before_start: u64,
    registrations: Registrations,
    /// Connections with output, in the order in which each got its first.
    speakers: VecDeque<ConnectionId>,
    flavor: Flavor,
    password: Option<Vec<u8>>,
    troubles: Vec<Trouble>,
    info: BTreeMap<String, String>,
    /// How often this server was promoted from replica to master.
    promotions: u64,
    /// The `second_repl_offset` of the last promotion that the server remembers.
    second_offset: Option<u64>,
    /// Whether keys end at whole milliseconds.
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

    /// Opens a connection. A master that [turns it away](Trouble::TurnsAway) sends the error
    /// immediately.
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

    /// Closes a connection for the peer. Output that was not taken out is lost.
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

    /// Takes out the next output, which is that of one connection; `None` if there is no more.
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

    /// Ends the process and starts a new one. Every connection closes without further output,
    /// scripts and tracking are forgotten, the `run_id` is new and the uptime zero. The
    /// configuration (flavor, password, troubles) stays. A master that keeps its data also keeps
    /// the `second_repl_offset` of a promotion, which a real server loads from its file.
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

    /// As [`restart`](Master::restart), but loads the keys that this or another master saved,
    /// including its node marker. Each key ends at the saved moment on this master's wall clock.
    pub fn restart_from(&mut self, now: Instant, dump: Dump) {
        self.restart(now, Restart::Empty);
        Dump { databases: self.databases, second_offset: self.second_offset } = dump;
    }

    /// Makes this server a replica, and promotes it to a master again. The process and its `run_id`
    /// stay the same, its `master_replid` is new, and every connection closes. `memory` says
    /// whether the other master, whose data it took over, had the same keys or none.
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

    /// Lets keys end at whole milliseconds from now on, as a real server does: a key ends with the
    /// first whole millisecond after its ttl, so it exists up to 1 ms longer.
    pub fn count_whole_milliseconds(&mut self) {
        self.whole_milliseconds = true;
    }

    /// Makes the master seem older: `INFO` reports this uptime now. Also writes the node marker
    /// that a client would have written at that start. A restart ends this.
    pub fn set_uptime(&mut self, now: Instant, seconds: u32) {
        self.started = self.wall(now) - i128::from(seconds) * SECOND;
        let marker = self.marker(self.started);
        for database in &mut self.databases {
            database.write(NODE_MARKER.as_bytes(), marker.as_bytes());
        }
    }

    /// Lets this much time pass for the keys and the uptime. The clock that `TIME` shows stays, so
    /// that no client takes this for a clock jump.
    pub fn advance(&mut self, by: Duration) {
        let by = i128::try_from(by.as_nanos()).unwrap_or(i128::MAX / 2);
        self.started -= by;
        for database in &mut self.databases {
            database.postpone(-by);
        }
    }

    /// Sets the wall clock to this Unix time at `now`. What is left of each ttl, and the uptime,
    /// stay the same.
    pub fn set_wall_clock(&mut self, now: Instant, unix_nanoseconds: u64) {
        let by = i128::from(unix_nanoseconds) - self.wall(now);
        self.wall_offset += by;
        self.started += by;
        for database in &mut self.databases {
            database.postpone(by);
        }
    }

    /// Steps the wall clock by this many milliseconds, as an operator or a bad NTP server does. A
    /// step forward ends ttls early, and a step back makes them longer. The uptime changes, too.
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

    /// Sets what `INFO` reports in a field, whatever the truth is: `("cluster_enabled", "1")`. A
    /// field that `INFO` does not have is not added. `HELLO` reports the same `role` and
    /// `redis_mode`.
    pub fn set_info(&mut self, field: &str, text: &str) {
        self.info.insert(field.into(), text.into());
    }

    /// Adds a trouble. If several concern a command, the one that was added first answers.
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

    /// The string at a key, if the key exists at `now`.
    pub fn get(&self, now: Instant, database: usize, key: &[u8]) -> Option<&[u8]> {
        self.databases.get(database)?.text(key, self.wall(now))
    }

    /// As the command `PTTL`: the milliseconds that a key has left, -1 without a ttl, -2 if absent.
    pub fn pttl(&self, now: Instant, database: usize, key: &[u8]) -> i64 {
        let wall = self.wall(now);
        self.databases.get(database).map_or(-2, |database| database.pttl(key, wall))
    }

    /// The keys that exist at `now`, sorted.
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

    /// What to add to the end of a key, in nanoseconds. If keys end at whole milliseconds, a key
    /// still exists in the millisecond of its end; one nanosecond achieves that.
    fn overtime(&self) -> i128 {
        i128::from(self.whole_milliseconds)
    }

    /// The connection, unless it is closed or is to be closed.
    fn open(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id).filter(|connection| !connection.closing)
    }

    /// The connection on which a command runs.
    fn own(&mut self, call: &Call) -> &mut Connection {
        self.connections.get_mut(&call.connection).expect("commands run on live connections")
    }

    /// Whether a connection has authenticated, or need not.
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
            // `CLIENT CACHING YES` applies to the next command that is not a `CLIENT` command.
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

    /// Closes the connection when its output was sent.
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
