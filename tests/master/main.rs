//! The in-process master against a real `redis-server` 7.0: both get the same random commands on
//! two connections, and every reply and push is compared byte for byte.
//!
//! Replies that cannot be equal are compared by what they mean (`alike.rs`): ttls that run down,
//! the time, and fields of `INFO` and `COMMAND INFO` that the master does not have. Client ids are
//! equal, because both sides count the same connections.
#![cfg(feature = "testing")]

mod alike;
mod all_keys;
mod alone;
#[path = "../support/lock.rs"]
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
mod lock;
#[path = "../support/resp_client.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod resp_client;
mod sequence;
mod server;
mod tcp;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{self, Duration, SystemTime};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use alike::alike;
use lock::ServerLock;
use redlatch::proto::Instant;
use redlatch::testing::master::{ConnectionId, Master, Trouble};
use resp_client::encode;
use sequence::{Request, SOON, Step, Word};
use server::{Answer, Server, Wire, frame_length, show};

/// The time of the master's clock at its start.
const START: Instant = Instant::from_nanos(0);
const PASSWORD: &str = "secret";
/// At least so many replies have to be compared in a run.
const ENOUGH: u64 = 10_000;
/// At least so many pushes have to be compared in a run.
const ENOUGH_PUSHES: u64 = 300;

/// A difference between a reply of the server and one of the master.
struct Difference {
    what: String,
    /// The steps took so long that the cause may be a ttl that ran out early.
    unsure: bool,
}

/// A connection to the server, and its counterpart to the master.
struct Line {
    wire: Wire,
    connection: ConnectionId,
    client_id: u64,
}

/// The server, the master, and the state of the comparison.
struct Bench {
    server: Server,
    master: Master,
    started: time::Instant,
    next_id: u64,
    /// The connection of the test itself, whose replies are not compared.
    admin: Line,
    lines: [Option<Line>; 2],
    trouble: Option<Trouble>,
    /// The connection that runs an endless script while the trouble is `Busy`.
    runner: Option<Line>,
    password: bool,
    /// When the first `SOON` since the last wait was sent.
    soon_since: Option<time::Instant>,
    /// Whether a `SOON` may have run out before the step that waits for it.
    late: bool,
    /// How long the slowest `send` of a sequence took. So long the moments may differ at which the
    /// two sides executed a command.
    slack: Duration,
    /// How many `LATER` words of the sequence were sent.
    later: u64,
    /// A difference was found, so the state of the server and of `admin` is unknown.
    broken: bool,
    /// How many replies were compared.
    compared: u64,
    /// How many pushes were compared.
    pushes: u64,
    /// How many sequences were given up because this machine was too slow.
    unsure: u64,
}

#[expect(clippy::disallowed_methods, reason = "a test beside a real server lives in real time")]
fn instant() -> time::Instant {
    time::Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "TIME of the server is compared with this")]
fn unix_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is past 1970");
    u64::try_from(since.as_nanos()).expect("it is before 2554")
}

impl Bench {
    fn new() -> Bench {
        let server = Server::start();
        let mut master = Master::new(1, START);
        let started = instant();
        master.set_wall_clock(START, unix_nanoseconds());
        // `Server::start` made one connection to the server already, so the master gets one, too.
        let first = master.connect();
        master.disconnect(first);
        let connection = master.connect();
        let mut admin = Line { wire: server.connect(), connection, client_id: 4 };
        // Without background expiry the server notices that a key has expired only at the next
        // access, as the master does.
        assert_eq!(admin.wire.ask(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]), b"+OK\r\n");
        Bench {
            server,
            master,
            started,
            next_id: 5,
            admin,
            lines: [None, None],
            trouble: None,
            runner: None,
            password: false,
            soon_since: None,
            late: false,
            slack: Duration::ZERO,
            later: 0,
            broken: false,
            compared: 0,
            pushes: 0,
            unsure: 0,
        }
    }

    fn now(&self) -> Instant {
        START.saturating_add(self.started.elapsed())
    }

    fn open(&mut self) -> Line {
        let client_id = self.next_id;
        self.next_id += 1;
        let mut wire = self.server.connect();
        // Wait until the server has accepted the connection. Otherwise it might accept another one
        // first, which gets this id, or ask for a password that a later step sets.
        wire.ask(&[b"PING"]);
        Line { wire, connection: self.master.connect(), client_id }
    }

    /// Resets the server and the master, except for `run_id` and client ids.
    fn reset(&mut self) {
        if std::mem::take(&mut self.broken) {
            self.master.disconnect(self.admin.connection);
            self.reopen_admin();
        }
        self.set_trouble(None);
        self.set_password(false);
        for line in self.lines.iter_mut().filter_map(Option::take) {
            self.master.disconnect(line.connection);
        }
        self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        for both in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"]] {
            self.command(both);
            let now = self.now();
            self.master.handle_bytes(now, self.admin.connection, &encode(both));
        }
        while self.master.poll_output().is_some() {}
        self.lines = [Some(self.open()), Some(self.open())];
        self.soon_since = None;
        self.late = false;
        self.slack = Duration::ZERO;
        self.later = 0;
    }

    /// Sends a command to the server alone, which must not refuse it.
    fn command(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = self.admin.wire.ask(&words);
        assert!(!reply.starts_with(b"-"), "{}: {}", show(&words.join(&b' ')), show(&reply));
        String::from_utf8_lossy(&reply).into_owned()
    }

    fn set_password(&mut self, password: bool) {
        self.command(&["CONFIG", "SET", "requirepass", if password { PASSWORD } else { "" }]);
        self.master.set_password(password.then_some(PASSWORD));
        self.password = password;
    }

    fn set_trouble(&mut self, trouble: Option<Trouble>) {
        match self.trouble.take() {
            None => {}
            Some(Trouble::Busy) => {
                self.command(&["SCRIPT", "KILL"]);
                let mut runner = self.runner.take().expect("it runs while there is trouble");
                runner.wire.frame();
                self.command(&["CLIENT", "KILL", "ID", &runner.client_id.to_string()]);
                self.master.disconnect(runner.connection);
            }
            Some(Trouble::Misconf) => {
                self.command(&["CONFIG", "SET", "dbfilename", "dump.rdb"]);
                self.save("ok");
                self.command(&["CONFIG", "SET", "save", ""]);
            }
            Some(_) => {
                self.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
                self.command(&["CONFIG", "SET", "maxmemory", "0"]);
                self.command(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
                self.command(&["REPLICAOF", "NO", "ONE"]);
            }
        }
        self.master.serve();
        match &trouble {
            None => {}
            Some(Trouble::Busy) => self.keep_busy(),
            Some(Trouble::Misconf) => {
                // A directory at the path of the snapshot makes BGSAVE fail.
                let in_the_way = self.server.directory.join("taken");
                std::fs::create_dir_all(in_the_way).expect("a directory");
                self.command(&["CONFIG", "SET", "save", "3600 1000000"]);
                self.command(&["CONFIG", "SET", "dbfilename", "taken"]);
                self.save("err");
            }
            Some(Trouble::NoReplicas) => {
                self.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
            }
            Some(Trouble::OutOfMemory) => drop(self.command(&["CONFIG", "SET", "maxmemory", "1"])),
            Some(kind) => {
                let stale = if *kind == Trouble::MasterDown { "no" } else { "yes" };
                self.command(&["CONFIG", "SET", "replica-serve-stale-data", stale]);
                // Nothing listens on port 1, so the replica has no master.
                self.command(&["REPLICAOF", "127.0.0.1", "1"]);
                // As a replica the server makes an internal client, which takes a client id. So the
                // master takes one, too.
                let itself = self.master.connect();
                self.master.disconnect(itself);
                self.next_id += 1;
            }
        }
        if let Some(trouble) = trouble.clone() {
            self.master.suffer(trouble);
        }
        self.trouble = trouble;
    }

    fn keep_busy(&mut self) {
        self.command(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
        let mut runner = self.open();
        if self.password {
            runner.wire.ask(&[b"AUTH", PASSWORD.as_bytes()]);
        }
        runner.wire.send(&encode(&["EVAL", "while true do end", "0"]));
        self.runner = Some(runner);
        while self.admin.wire.ask(&[b"PING"]).starts_with(b"+PONG") {}
    }

    /// Saves in the background, and waits until that ended with this status.
    fn save(&mut self, status: &str) {
        self.command(&["BGSAVE"]);
        loop {
            let info = self.command(&["INFO", "persistence"]);
            if info.contains("rdb_bgsave_in_progress:0\r\n")
                && info.contains(&format!("rdb_last_bgsave_status:{status}\r\n"))
            {
                return;
            }
            self.admin.wire.silence(Duration::from_millis(1));
        }
    }
}

/// What the master sent on each connection, and whether it closed it.
type NodeReply = BTreeMap<ConnectionId, (Vec<u8>, bool)>;

impl Bench {
    fn play(&mut self, steps: &[Step]) -> Result<(), Difference> {
        self.reset();
        steps.iter().try_for_each(|step| self.step(step))?;
        // A push of the server that the master did not send would come before the next reply.
        (0..2).try_for_each(|on| self.send(on, &[words(&["ECHO", "the end"])], 1))
    }

    /// Plays the sequence until its result is sure, at most 20 times. A difference is not sure if a
    /// ttl may have run out early, and it counts only the third time, because a real one shows each
    /// time. A sequence for which this machine is always too slow is given up.
    fn play_until_sure(&mut self, steps: &[Step]) -> Result<(), String> {
        let mut differed = 0;
        for _ in 0..20 {
            match self.play(steps) {
                Ok(()) => return Ok(()),
                Err(Difference { unsure: true, .. }) => {}
                Err(_) if differed < 2 => differed += 1,
                Err(Difference { what, .. }) => return Err(what),
            }
        }
        self.unsure += 1;
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        match step {
            Step::Send { on, requests, piece } => return self.send(*on, requests, *piece),
            Step::Wait => {
                self.late = self.is_late();
                self.admin.wire.silence(Duration::from_millis(SOON + 15));
                self.soon_since = None;
            }
            // A busy server refuses the commands of these steps, so they are left out.
            Step::Reconnect { .. } | Step::Password(_) if self.trouble == Some(Trouble::Busy) => {}
            Step::Reconnect { on } => {
                if let Some(line) = self.lines[*on].take() {
                    self.command(&["CLIENT", "KILL", "ID", &line.client_id.to_string()]);
                    self.master.disconnect(line.connection);
                }
                self.lines[*on] = Some(self.open());
            }
            Step::Password(password) => self.set_password(*password),
            Step::Trouble(trouble) => self.set_trouble(trouble.clone()),
        }
        Ok(())
    }

    fn send(&mut self, on: usize, requests: &[Request], piece: usize) -> Result<(), Difference> {
        let ids = [0, 1].map(|on| self.lines[on].as_ref().map_or(0, |line| line.client_id));
        let mut line = match self.lines[on].take() {
            Some(line) => line,
            None => self.open(),
        };
        let requests: Vec<Vec<u8>> = requests
            .iter()
            .map(|request| self.render(request, line.client_id, ids[1 - on]))
            .collect();
        let bytes = requests.concat();
        let start = instant();
        line.wire.send(&bytes);
        let now = self.now();
        for piece in bytes.chunks(piece) {
            self.master.handle_bytes(now, line.connection, piece);
        }
        self.lines[on] = Some(line);
        let mut said = NodeReply::new();
        while let Some(output) = self.master.poll_output() {
            let (bytes, closes) = said.entry(output.connection).or_default();
            bytes.extend_from_slice(&output.bytes);
            *closes |= output.closes;
        }
        let compared = self.compare(on, &requests, &said, start);
        self.slack = self.slack.max(start.elapsed());
        compared.map_err(|what| {
            self.broken = true;
            Difference { what, unsure: self.is_late() }
        })
    }

    /// Whether a `SOON` may have run out before its wait: it was sent nearly so long ago.
    fn is_late(&self) -> bool {
        let late = |since: time::Instant| since.elapsed() > Duration::from_millis(SOON - 2);
        self.late || self.soon_since.is_some_and(late)
    }

    /// The bytes of a request, with its blanks filled in.
    fn render(&mut self, request: &Request, own: u64, other: u64) -> Vec<u8> {
        let words = match request {
            Request::Raw(bytes) => return bytes.as_bytes().to_vec(),
            Request::Words(words) => words,
        };
        let render = |word: &Word| match word {
            Word::Bytes(bytes) => bytes.clone(),
            Word::Own => own.to_string().into_bytes(),
            Word::Other => other.to_string().into_bytes(),
            Word::Soon => {
                self.soon_since.get_or_insert_with(instant);
                SOON.to_string().into_bytes()
            }
            Word::Later => {
                self.later += 1;
                (20_000 + 100 * self.later).to_string().into_bytes()
            }
        };
        encode(&words.iter().map(render).collect::<Vec<_>>())
    }

    /// Reads from the server as many replies and pushes as the master sent, and compares each.
    fn compare(
        &mut self,
        on: usize,
        requests: &[Vec<u8>],
        said: &NodeReply,
        start: time::Instant,
    ) -> Result<(), String> {
        let asked = self.lines[on].as_ref().map(|line| line.connection);
        let mut admin_closed = false;
        for (connection, (bytes, closes)) in said {
            let is_admin = *connection == self.admin.connection;
            let slot = self
                .lines
                .iter_mut()
                .find(|line| line.as_ref().is_some_and(|line| line.connection == *connection));
            let line = match slot {
                Some(slot) => slot,
                None if is_admin => &mut None,
                None => continue,
            };
            let wire = match line {
                Some(line) => &mut line.wire,
                None => &mut self.admin.wire,
            };
            let answered = |request: &&Vec<u8>| {
                let empty = [&b"\r\n"[..], b"*0\r\n", b"*-1\r\n"].contains(&request.as_slice());
                Some(*connection) == asked && !empty
            };
            let mut replies = requests.iter().filter(answered);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let length = frame_length(rest).ok_or("the master's reply is not whole")?;
                let (frame, after) = rest.split_at(length);
                let request = if frame[0] == b'>' { None } else { replies.next() };
                rest = after;
                let real = wire.frame();
                self.compared += u64::from(request.is_some());
                self.pushes += u64::from(request.is_none());
                if !alike(request, frame, &real, self.slack + start.elapsed()) {
                    let request = request.map_or("a push".into(), |request| show(request));
                    let master = show(frame);
                    let real = match real {
                        Answer::Frame(frame) => show(&frame),
                        other => format!("{other:?}"),
                    };
                    return Err(format!("{request}\n  master {master}\n  server {real}"));
                }
            }
            if *closes {
                let real = wire.frame();
                if real != Answer::ClosedReason {
                    return Err(format!("the master closes, the server says {real:?}"));
                }
                *line = None;
                admin_closed |= is_admin;
            }
        }
        if admin_closed {
            self.reopen_admin();
        }
        Ok(())
    }

    fn reopen_admin(&mut self) {
        self.admin = self.open();
        if self.password {
            let auth = ["AUTH", PASSWORD];
            self.command(&auth);
            let now = self.now();
            self.master.handle_bytes(now, self.admin.connection, &encode(&auth));
            while self.master.poll_output().is_some() {}
        }
    }
}

fn words(words: &[&str]) -> Request {
    Request::Words(words.iter().map(|word| Word::Bytes(word.as_bytes().to_vec())).collect())
}

/// The seed of the random commands: 1, or that of `REDLATCH_SEED`.
fn seed() -> u64 {
    std::env::var("REDLATCH_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}

#[test]
fn random_commands_get_the_same_replies() {
    let _place = ServerLock::take();
    let bench = RefCell::new(Bench::new());
    // Shrinking is limited to 10 s: a failed case may wait seconds for a reply, while other tests
    // wait for the lock of this one.
    let config = Config {
        cases: 320,
        failure_persistence: None,
        max_shrink_time: 10_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&sequence::steps(), |steps| {
        bench.borrow_mut().play_until_sure(&steps).map_err(TestCaseError::fail)
    });
    if let Err(failure) = result {
        panic!("{failure}\n(seed {}, server 7.0 expected)", seed());
    }
    let Bench { compared, pushes, unsure, .. } = bench.into_inner();
    eprintln!("{compared} replies and {pushes} pushes compared, seed {}", seed());
    assert!(compared >= ENOUGH && pushes >= ENOUGH_PUSHES, "{compared} replies, {pushes} pushes");
    assert!(unsure <= 4, "{unsure} sequences given up: this machine is too slow for them");
}

#[test]
fn rare_sequences_get_the_same_replies() {
    let _place = ServerLock::take();
    let mut bench = Bench::new();
    for sequence in sequence::RARE.iter().chain(all_keys::ALL_KEYS) {
        if let Err(what) = bench.play_until_sure(&sequence::parse(sequence)) {
            panic!("{sequence}\n{what}");
        }
    }
    assert_eq!(bench.unsure, 0, "this machine is too slow for some of them");
}

#[test]
fn table_of_commands_agrees_with_the_real_server() {
    let _place = ServerLock::take();
    let mut bench = Bench::new();
    bench.reset();
    let all = "auth client client|caching client|getname client|id client|kill client|setname \
               client|tracking command command|count command|info dbsize del echo eval evalsha \
               exists flushall flushdb get hello info lpush pexpire ping pttl quit reset script \
               script|exists script|flush script|load select set time ttl type unlink";
    for name in all.split(' ') {
        let request = words(&["COMMAND", "INFO", name]);
        if let Err(Difference { what, .. }) = bench.send(0, &[request], 7) {
            panic!("{what}");
        }
    }
}
