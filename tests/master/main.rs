//! The pure master against a real `redis-server` 7.0: the same random commands on two connections
//! each, every reply and push compared byte for byte.
//!
//! What cannot be equal is compared by what it means: a ttl that runs down, the time, and the
//! fields of `INFO` and `COMMAND INFO` that the master does not have. Client ids are equal, since
//! both sides count the same connections.
#![cfg(feature = "testing")]

mod alike;
mod all_keys;
mod alone;
#[path = "../support/lock.rs"]
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
mod lock;
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
use sequence::{Request, SOON, Step, Word};
use server::{Answer, Server, Wire, frame_length, request, show};

/// When the master was started, on its clock.
const START: Instant = Instant::from_nanos(0);
const PASSWORD: &str = "secret";
/// What a run compares, at least.
const ENOUGH: u64 = 10_000;
const ENOUGH_PUSHES: u64 = 300;

/// A difference, and whether things took so long that it may be about a ttl that ran out.
struct Difference {
    what: String,
    unsure: bool,
}

/// A connection to the server and the same one to the master.
struct Line {
    wire: Wire,
    connection: ConnectionId,
    client_id: u64,
}

/// The server and the master, for comparison.
struct Bench {
    server: Server,
    master: Master,
    started: time::Instant,
    next_id: u64,
    /// The connection of the test itself, whose replies are not compared.
    admin: Line,
    lines: [Option<Line>; 2],
    trouble: Option<Trouble>,
    /// Runs an endless script while the trouble is `Busy`.
    runner: Option<Line>,
    password: bool,
    /// When the first `SOON` since the last wait was sent.
    soon_since: Option<time::Instant>,
    /// Whether a `SOON` may have been over before its wait.
    late: bool,
    /// How long the slowest `send` of a sequence took: both sides executed it within that.
    slack: Duration,
    later: u64,
    /// A difference was found, and it is not known how it left the server.
    broken: bool,
    compared: u64,
    pushes: u64,
    /// Sequences given up.
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
        // The first connection to the server was the one that checked whether the server is this
        // process's child.
        let first = master.connect();
        master.disconnect(first);
        let connection = master.connect();
        let mut admin = Line { wire: server.connect(), connection, client_id: 4 };
        // Without its background expiry the server, like the master, notices an expiry only at the
        // next access.
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
        // The server has accepted the connection when it answers. Before that it might give another
        // id, and ask for a password that a later step sets.
        wire.ask(&[b"PING"]);
        Line { wire, connection: self.master.connect(), client_id }
    }

    /// Makes both servers as new, except for `run_id` and client ids.
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
        self.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
        for both in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"]] {
            self.tell(both);
            let now = self.now();
            self.master.handle_bytes(now, self.admin.connection, &request(both));
        }
        while self.master.poll_output().is_some() {}
        self.lines = [Some(self.open()), Some(self.open())];
        self.soon_since = None;
        self.late = false;
        self.slack = Duration::ZERO;
        self.later = 0;
    }

    /// Sends it to the server alone.
    fn tell(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = self.admin.wire.ask(&words);
        assert!(!reply.starts_with(b"-"), "{}: {}", show(&words.join(&b' ')), show(&reply));
        String::from_utf8_lossy(&reply).into_owned()
    }

    fn set_password(&mut self, password: bool) {
        self.tell(&["CONFIG", "SET", "requirepass", if password { PASSWORD } else { "" }]);
        self.master.set_password(password.then_some(PASSWORD));
        self.password = password;
    }

    fn set_trouble(&mut self, trouble: Option<Trouble>) {
        match self.trouble.take() {
            None => {}
            Some(Trouble::Busy) => {
                self.tell(&["SCRIPT", "KILL"]);
                let mut runner = self.runner.take().expect("it runs while there is trouble");
                runner.wire.frame();
                self.tell(&["CLIENT", "KILL", "ID", &runner.client_id.to_string()]);
                self.master.disconnect(runner.connection);
            }
            Some(Trouble::Misconf) => {
                self.tell(&["CONFIG", "SET", "dbfilename", "dump.rdb"]);
                self.save("ok");
                self.tell(&["CONFIG", "SET", "save", ""]);
            }
            Some(_) => {
                self.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
                self.tell(&["CONFIG", "SET", "maxmemory", "0"]);
                self.tell(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
                self.tell(&["REPLICAOF", "NO", "ONE"]);
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
                self.tell(&["CONFIG", "SET", "save", "3600 1000000"]);
                self.tell(&["CONFIG", "SET", "dbfilename", "taken"]);
                self.save("err");
            }
            Some(Trouble::NoReplicas) => {
                self.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
            }
            Some(Trouble::OutOfMemory) => drop(self.tell(&["CONFIG", "SET", "maxmemory", "1"])),
            Some(kind) => {
                let stale = if *kind == Trouble::MasterDown { "no" } else { "yes" };
                self.tell(&["CONFIG", "SET", "replica-serve-stale-data", stale]);
                // Nothing listens on port 1, so the replica has no master.
                self.tell(&["REPLICAOF", "127.0.0.1", "1"]);
                // As a replica the server makes a client of itself, which takes an id: the model
                // takes one, too.
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
        self.tell(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
        let mut runner = self.open();
        if self.password {
            runner.wire.ask(&[b"AUTH", PASSWORD.as_bytes()]);
        }
        runner.wire.send(&request(&["EVAL", "while true do end", "0"]));
        self.runner = Some(runner);
        while self.admin.wire.ask(&[b"PING"]).starts_with(b"+PONG") {}
    }

    /// Saves, and waits for how that ends.
    fn save(&mut self, status: &str) {
        self.tell(&["BGSAVE"]);
        loop {
            let info = self.tell(&["INFO", "persistence"]);
            if info.contains("rdb_bgsave_in_progress:0\r\n")
                && info.contains(&format!("rdb_last_bgsave_status:{status}\r\n"))
            {
                return;
            }
            self.admin.wire.silence(Duration::from_millis(1));
        }
    }
}

/// What the master sent on one connection.
type NodeReply = BTreeMap<ConnectionId, (Vec<u8>, bool)>;

impl Bench {
    fn play(&mut self, steps: &[Step]) -> Result<(), Difference> {
        self.reset();
        steps.iter().try_for_each(|step| self.step(step))?;
        // If the server sent a push that the master did not send, it stands before the next reply.
        (0..2).try_for_each(|on| self.send(on, &[words(&["ECHO", "the end"])], 1))
    }

    /// Plays again if a ttl may have run out when the sequence did not mean it to. On a machine
    /// that is always too slow for a sequence, it proves nothing. And a real difference shows each
    /// time: one that does not was a matter of milliseconds, here or in the server.
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
            // These steps need commands that a busy server refuses.
            Step::Reconnect { .. } | Step::Password(_) if self.trouble == Some(Trouble::Busy) => {}
            Step::Reconnect { on } => {
                if let Some(line) = self.lines[*on].take() {
                    self.tell(&["CLIENT", "KILL", "ID", &line.client_id.to_string()]);
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

    /// Whether a `SOON` may have been over before its time: it was sent that long ago.
    fn is_late(&self) -> bool {
        let late = |since: time::Instant| since.elapsed() > Duration::from_millis(SOON - 2);
        self.late || self.soon_since.is_some_and(late)
    }

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
        server::request(&words.iter().map(render).collect::<Vec<_>>())
    }

    /// Reads from the server as many replies and pushes as the master gave, and no less.
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
            self.tell(&auth);
            let now = self.now();
            self.master.handle_bytes(now, self.admin.connection, &request(&auth));
            while self.master.poll_output().is_some() {}
        }
    }
}

fn words(words: &[&str]) -> Request {
    Request::Words(words.iter().map(|word| Word::Bytes(word.as_bytes().to_vec())).collect())
}

/// The seed of the random commands, so that a run can be repeated and another one tried.
fn seed() -> u64 {
    std::env::var("REDLATCH_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}

#[test]
fn random_commands_get_the_same_replies() {
    let _place = ServerLock::take();
    let bench = RefCell::new(Bench::new());
    // A failed case may wait for seconds for a reply, and other tests wait for the server's lock.
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
fn the_table_of_commands_is_the_servers() {
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
