//! The in-process masters on TCP ports: what a client sees when they are frozen, killed, restarted,
//! delayed or made to refuse.
//!
//! The tests wait for replies and not for time. Only a test that expects nothing listens for 50 ms.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlatch::testing::master::{Restart, Trouble};
use redlatch::testing::tcp::{LocalMaster, Masters};

const PATIENCE: Duration = Duration::from_secs(10);
/// If nothing comes for so long, the master counts as silent.
const A_WHILE: Duration = Duration::from_millis(50);

/// A plain connection to a master.
struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Peer {
    fn connect(master: &LocalMaster) -> Peer {
        let stream = TcpStream::connect(master.address()).expect("it listens");
        Peer { stream, input: Vec::new() }
    }

    fn send(&mut self, command: &str) {
        self.stream.write_all(format!("{command}\r\n").as_bytes()).expect("it reads");
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line().expect("a reply")
    }

    /// The next line, or `None` if the connection ended.
    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.input.drain(..end + 2).take(end).collect();
                return Some(String::from_utf8(line).expect("it is text"));
            }
            match self.read(PATIENCE) {
                Some(0) => return None,
                Some(_) => {}
                None => panic!("nothing comes after {:?}", self.input),
            }
        }
    }

    /// A field of a section of `INFO`.
    fn info(&mut self, section: &str, field: &str) -> String {
        let head = self.ask(&format!("INFO {section}"));
        let length: usize = head[1..].parse().expect("a length");
        while self.input.len() < length + 2 {
            assert!(self.read(PATIENCE).is_some_and(|length| length > 0));
        }
        let bytes = self.input.drain(..length + 2).collect();
        let text = String::from_utf8(bytes).expect("it is text");
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.expect("the field is there").to_owned()
    }

    fn sends_nothing(&mut self) -> bool {
        self.input.is_empty() && self.read(A_WHILE).is_none()
    }

    fn read(&mut self, patience: Duration) -> Option<usize> {
        super::server::read(&mut self.stream, &mut self.input, patience)
    }
}

fn one() -> Masters {
    Masters::start(1).expect("a master starts")
}

/// Waits until this happens, and yields to other threads meanwhile.
fn eventually(mut happens: impl FnMut() -> bool) {
    let start = clock();
    while !happens() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        std::thread::yield_now();
    }
}

#[expect(clippy::disallowed_methods, reason = "a delay is measured in real time")]
fn clock() -> Instant {
    Instant::now()
}

#[test]
fn each_listener_is_a_master_of_its_own() {
    let masters = Masters::start(3).expect("three masters start");
    let mut seen = Vec::new();
    for (master, url) in masters.iter().zip(masters.urls()) {
        assert_eq!(url, format!("redis://127.0.0.1:{}", master.address().port()));
        let mut peer = Peer::connect(master);
        assert_eq!(peer.ask("SET k t NX PX 10000"), "+OK");
        assert_eq!(peer.ask("SET k u NX PX 10000"), "$-1");
        assert_eq!(master.get("k"), Some(b"t".to_vec()));
        assert_eq!(master.keys(), [b"k"]);
        assert!((1..=10_000).contains(&master.pttl("k")));
        let run_id = peer.info("server", "run_id");
        assert!(!seen.contains(&run_id));
        seen.push(run_id);
    }
}

#[test]
fn frozen_master_accepts_commands_and_executes_them_when_it_continues() {
    let masters = one();
    let mut before = Peer::connect(&masters[0]);
    assert_eq!(before.ask("PING"), "+PONG");
    masters[0].freeze();
    let mut during = Peer::connect(&masters[0]);
    before.send("SET k t");
    during.send("SET l t");
    let mut gone = Peer::connect(&masters[0]);
    gone.send("SET m t");
    drop(gone);
    assert!(before.sends_nothing() && during.sends_nothing());
    assert!(masters[0].keys().is_empty(), "nothing was executed");

    masters[0].thaw();
    assert_eq!(before.line().as_deref(), Some("+OK"));
    assert_eq!(during.line().as_deref(), Some("+OK"));
    eventually(|| masters[0].get("m").is_some());
    assert_eq!(masters[0].keys(), [b"k", b"l", b"m"]);
}

#[test]
fn killed_master_is_gone_until_it_is_restarted() {
    let masters = one();
    let master = &masters[0];
    master.set_uptime(1000);
    let mut peer = Peer::connect(master);
    assert!(peer.info("server", "uptime_in_seconds").parse::<u64>().is_ok_and(|it| it >= 1000));
    assert_eq!(peer.info("server", "tcp_port"), master.address().port().to_string());
    assert_eq!(peer.ask("SET k t PX 100000"), "+OK");
    assert_eq!(peer.ask("CLIENT ID"), ":3");
    master.kill();
    assert_eq!(peer.line(), None, "its connections ended");
    let refused = TcpStream::connect(master.address()).expect_err("its port refuses");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    master.kill();

    master.restart(Restart::WithData).expect("the port is free");
    let mut peer = Peer::connect(master);
    assert_eq!(peer.ask("EXISTS k"), ":1");
    assert_eq!(peer.ask("CLIENT ID"), ":3", "a new life");
    let uptime = peer.info("server", "uptime_in_seconds");
    assert!(uptime.parse::<u64>().is_ok_and(|seconds| seconds < 100));

    // `restart` also works without `kill` before it.
    master.restart(Restart::Empty).expect("the port is free");
    while peer.line().is_some() {}
    assert_eq!(Peer::connect(master).ask("EXISTS k"), ":0");
}

#[test]
fn frozen_master_that_is_killed_executes_nothing_more() {
    let masters = one();
    let mut peer = Peer::connect(&masters[0]);
    assert_eq!(peer.ask("PING"), "+PONG");
    masters[0].freeze();
    peer.send("SET k t");
    // The frozen master has not accepted these connections.
    let waiting = [(); 3].map(|()| Peer::connect(&masters[0]));
    masters[0].kill();
    assert_eq!(peer.line(), None);
    for mut peer in waiting {
        assert_eq!(peer.line(), None);
    }
    masters[0].restart(Restart::WithData).expect("the port is free");
    assert_eq!(Peer::connect(&masters[0]).ask("DBSIZE"), ":0", "and it is not frozen");
}

#[test]
fn delay_of_a_master_delays_answers_and_keeps_requests_in_flight() {
    let masters = one();
    let delay = Duration::from_millis(80);
    let mut peer = Peer::connect(&masters[0]);
    assert_eq!(peer.ask("PING"), "+PONG");
    masters[0].delay(delay);
    let start = clock();
    let requests = 10;
    for number in 0..requests {
        peer.send(&format!("SET k{number} t"));
        // Wait until this request was executed: otherwise all of them would arrive together.
        eventually(|| masters[0].get(format!("k{number}")).is_some());
    }
    for _ in 0..requests {
        assert_eq!(peer.line().as_deref(), Some("+OK"));
        assert!(start.elapsed() >= delay);
    }
    let all = start.elapsed();
    assert!(all < delay * requests / 2, "one after the other: {all:?}");

    // The master executes the request without a delay, and delays only the answer. The next answer,
    // which has no delay, must not overtake it.
    peer.send("SET k t");
    eventually(|| masters[0].get("k").is_some());
    masters[0].delay(Duration::ZERO);
    peer.send("PING");
    assert_eq!(peer.line().as_deref(), Some("+OK"));
    assert_eq!(peer.line().as_deref(), Some("+PONG"));
    let quick = |_| {
        let start = clock();
        assert_eq!(peer.ask("PING"), "+PONG");
        start.elapsed() < delay
    };
    assert!((0..20).any(quick), "no delay any more");
}

#[test]
fn master_refuses_connections_until_it_serves() {
    let masters = one();
    let mut peer = Peer::connect(&masters[0]);
    masters[0].refuse_with("LOADING Redis is loading the dataset in memory");
    assert_eq!(peer.ask("PING"), "-LOADING Redis is loading the dataset in memory");
    masters[0].serve();
    masters[0].suffer(Trouble::OutOfMemory);
    assert!(peer.ask("SET k t").starts_with("-OOM "));
    assert_eq!(peer.ask("PING"), "+PONG");
    masters[0].serve();
    masters[0].suffer(Trouble::TurnsAway("ERR max number of clients reached".into()));
    let mut other = Peer::connect(&masters[0]);
    assert_eq!(other.line().as_deref(), Some("-ERR max number of clients reached"));
    assert_eq!(other.line(), None);
    masters[0].serve();
    assert_eq!(peer.ask("SET k t"), "+OK");
}

#[test]
fn a_push_reaches_another_connection() {
    let masters = one();
    let (mut waiter, mut holder) = (Peer::connect(&masters[0]), Peer::connect(&masters[0]));
    waiter.send("HELLO 3\r\nCLIENT TRACKING ON OPTIN NOLOOP\r\nCLIENT CACHING YES\r\nPTTL k");
    while waiter.line().as_deref() != Some(":-2") {}
    assert_eq!(holder.ask("SET k t"), "+OK");
    let push = [(); 6].map(|()| waiter.line().expect("a push"));
    assert_eq!(push, [">2", "$10", "invalidate", "*1", "$1", "k"]);
}

#[test]
fn a_connection_ends_when_either_side_ends_it() {
    let masters = one();
    let mut peer = Peer::connect(&masters[0]);
    assert_eq!(peer.ask("QUIT"), "+OK");
    assert_eq!(peer.line(), None);
    let mut peer = Peer::connect(&masters[0]);
    assert_eq!(peer.ask("*x"), "-ERR Protocol error: invalid multibulk length");
    assert_eq!(peer.line(), None);
    let (mut killer, mut victim) = (Peer::connect(&masters[0]), Peer::connect(&masters[0]));
    let id = victim.ask("CLIENT ID").replace(':', "");
    assert_eq!(killer.ask(&format!("CLIENT KILL ID {id}")), ":1");
    assert_eq!(victim.line(), None);

    drop(victim);
    let mut leaver = Peer::connect(&masters[0]);
    assert_eq!(leaver.ask("PING"), "+PONG");
    drop(leaver);
    eventually(|| killer.info("clients", "connected_clients") == "1");

    // `with` gives a test access to the master itself.
    masters[0].with(|master, now| master.restart(now, Restart::Empty));
    assert_eq!(killer.line(), None);
}

#[test]
fn a_peer_that_does_not_read_is_disconnected() {
    let masters = one();
    let mut lazy = TcpStream::connect(masters[0].address()).expect("it listens");
    let text = "x".repeat(4 << 20);
    let request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len());
    // The peer sends more than the sockets can buffer and reads nothing, so at some point the
    // master closes the connection.
    let hung_up = (0..100).any(|_| lazy.write_all(request.as_bytes()).is_err());
    assert!(hung_up);
    assert_eq!(Peer::connect(&masters[0]).ask("PING"), "+PONG");
}

#[test]
fn dropped_masters_leave_no_open_port() {
    let masters = Masters::start(2).expect("two masters start");
    let mut peer = Peer::connect(&masters[0]);
    assert_eq!(peer.ask("PING"), "+PONG");
    masters[0].freeze();
    let addresses: Vec<_> = masters.iter().map(LocalMaster::address).collect();
    drop(masters);
    assert_eq!(peer.line(), None);
    for address in addresses {
        assert!(TcpStream::connect(address).is_err());
    }
}

#[test]
fn advance_ends_keys_and_keeps_the_wall_clock() {
    let masters = Masters::start(2).expect("there are free ports");
    let mut peer = Peer::connect(&masters[0]);
    let before: u64 = {
        assert_eq!(peer.ask("TIME"), "*2");
        peer.line();
        peer.line().expect("seconds").parse().expect("a number")
    };
    peer.line();
    peer.line();
    assert_eq!(peer.ask("SET short x PX 60000"), "+OK");
    assert_eq!(peer.ask("SET long x PX 90000"), "+OK");
    masters.advance(Duration::from_secs(60));
    assert_eq!(masters[0].get("short"), None);
    let left = masters[0].pttl("long");
    assert!((29_000..=30_000).contains(&left), "{left} ms");
    let uptime: u64 = peer.info("server", "uptime_in_seconds").parse().expect("a number");
    assert!((60..90).contains(&uptime), "{uptime} s");
    assert_eq!(peer.ask("TIME"), "*2");
    peer.line();
    let after: u64 = peer.line().expect("seconds").parse().expect("a number");
    assert!(after - before < 30, "a client would take it for a jump of the clock");
}
