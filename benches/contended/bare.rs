//! The program that people write: raw sockets, bytes that were built beforehand, the majority's
//! answer, and after each denial another try a few milliseconds later. For several keys it has one
//! script that takes all of them or none.
//!
//! Nothing of the library is in it. It knows no timeout, no reconnect and no ttl that runs out: an
//! answer that it does not expect is a panic.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use redlatch::majority;

use super::TTL;
use super::contender::{Contender, Dice, Role, now};
use super::support::{RespClient, encode};

/// Takes all keys or none, and answers as `SET NX` does.
const TAKE_ALL: &str = "for _,k in ipairs(KEYS) do \
                        if redis.call('exists',k)==1 then return false end end \
                        for _,k in ipairs(KEYS) do redis.call('set',k,ARGV[1],'px',ARGV[2]) end \
                        return redis.status_reply('OK')";

const RELEASE_ALL: &str = "for _,k in ipairs(KEYS) do if redis.call('get',k)==ARGV[1] then \
                           redis.call('del',k) end end return 1";

const RELEASE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) \
                       else return 0 end";

/// Its sockets and its state.
pub struct Bare {
    poll: Poll,
    events: Events,
    wires: Vec<Wire>,
    take: Vec<u8>,
    release: Vec<u8>,
    quorum: usize,
    /// The longest time between a denial and the next try; the shortest is half of it.
    pause: Duration,
    dice: Dice,
    /// The number of the present question, which grows with each.
    question: u64,
}

struct Wire {
    stream: TcpStream,
    /// The questions whose answers are still to come.
    asked: VecDeque<u64>,
    /// Whether this node granted the last question; `None`: it has not answered.
    said: Option<bool>,
    /// How many bytes are still to come of an answer that was already counted.
    rest: usize,
}

impl Bare {
    pub fn connect(role: &Role, pause: Duration) -> Bare {
        let poll = Poll::new().expect("a poller");
        let mut wires = Vec::new();
        let scripts =
            if role.keys.len() > 1 { [TAKE_ALL, RELEASE_ALL] } else { [TAKE_ALL, RELEASE] };
        let mut shas = [String::new(), String::new()];
        for url in &role.urls {
            let address = url.strip_prefix("redis://").and_then(|address| address.parse().ok());
            let address = address.expect("the fleet's urls are addresses");
            let mut client = RespClient::connect(address).expect("a running server");
            shas = scripts.map(|script| {
                client.command(&["SCRIPT", "LOAD", script]).expect("a running server").text()
            });
            let stream = std::net::TcpStream::connect(address).expect("a running server");
            stream.set_nodelay(true).expect("an option of every socket");
            stream.set_nonblocking(true).expect("an option of every socket");
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(wires.len()), Interest::READABLE)
                .expect("a new socket can be polled");
            wires.push(Wire { stream, asked: VecDeque::new(), said: None, rest: 0 });
        }
        let token = format!("{:032x}{:08x}", now(), std::process::id());
        let ttl = TTL.as_millis().to_string();
        let keys: Vec<&str> = role.keys.iter().map(String::as_str).collect();
        let count = keys.len().to_string();
        let script = |sha: &str, rest: &[&str]| {
            encode(&[&["EVALSHA", sha, &count], &keys[..], rest].concat())
        };
        let take = match keys[..] {
            [key] => encode(&["SET", key, &token, "NX", "PX", &ttl]),
            _ => script(&shas[0], &[&token, &ttl]),
        };
        Bare {
            poll,
            events: Events::with_capacity(64),
            quorum: majority(wires.len()),
            wires,
            take,
            release: script(&shas[1], &[&token]),
            pause,
            dice: Dice::new(role.number as u64),
            question: 0,
        }
    }

    /// Requests the keys, and returns whether a majority granted them. Without a majority it
    /// releases the grants.
    fn attempt(&mut self) -> bool {
        self.question += 1;
        for wire in &mut self.wires {
            wire.ask(&self.take, self.question);
        }
        loop {
            let said = |what| self.wires.iter().filter(|wire| wire.said == Some(what)).count();
            if said(true) >= self.quorum {
                return true;
            }
            if said(false) > self.wires.len() - self.quorum {
                break;
            }
            self.read();
        }
        self.question += 1;
        for wire in &mut self.wires {
            if wire.said != Some(false) {
                wire.ask(&self.release, self.question);
            }
        }
        false
    }

    /// Releases the keys everywhere and waits for the majority.
    fn release(&mut self) {
        self.question += 1;
        for wire in &mut self.wires {
            wire.ask(&self.release, self.question);
        }
        while self.wires.iter().filter(|wire| wire.said.is_some()).count() < self.quorum {
            self.read();
        }
    }

    /// Waits for answers.
    fn read(&mut self) {
        self.poll.poll(&mut self.events, None).expect("the poller works");
        for event in &self.events {
            self.wires[event.token().0].read(self.question);
        }
    }
}

impl Contender for Bare {
    fn hold(&mut self, wait: Duration, held: &mut dyn FnMut()) -> bool {
        let end = now() + wait.as_nanos() as u64;
        while !self.attempt() {
            let pause = self.pause.mul_f64(0.5 + 0.5 * self.dice.below_one());
            let left = Duration::from_nanos(end.saturating_sub(now()));
            if left < pause {
                std::thread::sleep(left);
                return false;
            }
            std::thread::sleep(pause);
        }
        held();
        self.release();
        true
    }
}

impl Wire {
    fn ask(&mut self, bytes: &[u8], question: u64) {
        let written = self.stream.write(bytes).expect("a server that runs takes bytes");
        assert_eq!(written, bytes.len(), "an empty socket takes a question");
        self.asked.push_back(question);
        self.said = None;
    }

    /// Reads until the socket is drained; answers to earlier questions are ignored.
    fn read(&mut self, question: u64) {
        let mut bytes = [0; 512];
        loop {
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => panic!("a server closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("a server that runs answers: {error}"),
            };
            let mut at = self.rest;
            while at < count {
                let (length, yes) = match bytes[at] {
                    b'+' => ("+OK\r\n".len(), true),
                    b'$' => ("$-1\r\n".len(), false),
                    b':' => (":1\r\n".len(), true),
                    _ => panic!("{}", String::from_utf8_lossy(&bytes[at..count])),
                };
                at += length;
                let asked = self.asked.pop_front().expect("an answer has its question");
                if asked == question {
                    self.said = Some(yes);
                }
            }
            self.rest = at - count;
            if count < bytes.len() {
                return;
            }
        }
    }
}
