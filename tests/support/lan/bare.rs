//! A contender that is a bare loop, without the core of the library: it sends `SET NX` to all
//! masters, follows the majority's answer, and tries again 2.5 to 5 ms after each denial.
//!
//! For several keys it sends a script that takes all of them or none. Its scripts are the
//! library's, because the simulated masters know no others.

use std::collections::VecDeque;
use std::time::Duration;

use redlatch::majority;
use redlatch::proto::sets::ACQUIRE;
use redlatch::proto::{Action, Instant, NodeId};
use redlatch::testing::net::Endpoint;

use super::dice::Dice;
use super::program::{Program, Progress};
use super::world::{NODES, TTL};

/// In nanoseconds.
const PAUSE: (u64, u64) = (2_500_000, 5_000_000);

const RELEASE: &str = "local v = redis.call('GET', KEYS[1]) \
                       if not v then return 0 end \
                       if v ~= ARGV[1] then return -1 end \
                       redis.call('DEL', KEYS[1]) return 1";
const RELEASE_SET: &str = "local answer, failed = 1, nil \
    for i, k in ipairs(KEYS) do \
    local v = redis.pcall('GET', k) \
    if v == ARGV[1] then redis.call('DEL', k) \
    elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then \
    failed = v \
    elseif answer == 1 then \
    if v then answer = -2 * i - 1 else answer = -2 * i end end end \
    return failed or answer";

/// The state of a bare loop.
pub struct Bare {
    dice: Dice,
    token: String,
    keys: Vec<String>,
    /// For each master, the numbers of the questions that it has not answered yet.
    asked: Vec<VecDeque<u64>>,
    said: Vec<Option<bool>>,
    question: u64,
    output: Vec<Vec<u8>>,
    /// The masters to which it has not begun to connect.
    to_connect: VecDeque<usize>,
    state: State,
    /// When its pause ends and it tries again.
    due: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    Pausing,
    Holding,
    Releasing,
}

impl Bare {
    pub fn new(number: usize, dice: Dice) -> Bare {
        Bare {
            dice,
            token: format!("{number:040x}"),
            keys: Vec::new(),
            asked: vec![VecDeque::new(); NODES],
            said: vec![None; NODES],
            question: 0,
            output: vec![Vec::new(); NODES],
            to_connect: (0..NODES).collect(),
            state: State::Pausing,
            due: None,
        }
    }

    fn write(&mut self, node: usize, words: &[&str]) {
        let output = &mut self.output[node];
        output.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            output.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        self.asked[node].push_back(self.question);
        self.said[node] = None;
    }

    /// Sends a command about its keys to each master whose last answer passes `is_asked`. The
    /// command begins with `one` for one key, with `set` for several.
    fn send(&mut self, [one, set]: [&[&str]; 2], end: &[&str], is_asked: fn(Option<bool>) -> bool) {
        self.question += 1;
        let keys = std::mem::take(&mut self.keys);
        let count = keys.len().to_string();
        let words: Vec<&str> = match &keys[..] {
            [key] => [one, &[key.as_str()], end].concat(),
            _ => {
                let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                [set, &[&count], &names, end].concat()
            }
        };
        for node in 0..NODES {
            if is_asked(self.said[node]) {
                self.write(node, &words);
            }
        }
        self.keys = keys;
    }

    fn attempt(&mut self) {
        self.state = State::Asking;
        let (token, ttl) = (self.token.clone(), TTL.as_millis().to_string());
        match self.keys.len() {
            1 => self.send([&["SET"], &[]], &[&token, "NX", "PX", &ttl], |_| true),
            _ => self.send([&[], &["EVAL", ACQUIRE.source]], &[&token, &ttl], |_| true),
        }
    }

    fn undo(&mut self, is_asked: fn(Option<bool>) -> bool) {
        let token = self.token.clone();
        self.send([&["EVAL", RELEASE, "1"], &["EVAL", RELEASE_SET]], &[&token], is_asked);
    }
}

impl Program for Bare {
    fn ask(&mut self, keys: Vec<String>, _: Instant) {
        self.keys = keys;
        self.attempt();
    }

    fn release(&mut self, _: Instant) {
        self.state = State::Releasing;
        self.undo(|_| true);
    }

    fn progress(&mut self, now: Instant) -> Progress {
        let mut progress = Progress::default();
        let quorum = majority(NODES);
        let count = |what| self.said.iter().filter(|&&said| said == Some(what)).count();
        let (yes, no) = (count(true), count(false));
        match self.state {
            State::Asking if yes >= quorum => {
                self.state = State::Holding;
                progress.won = true;
            }
            State::Asking if no > NODES - quorum => {
                self.state = State::Pausing;
                self.undo(|said| said != Some(false));
                let pause = self.dice.between(PAUSE.0, PAUSE.1);
                self.due = Some(now.saturating_add(Duration::from_nanos(pause)));
            }
            State::Releasing if yes + no >= quorum => {
                self.state = State::Pausing;
                progress.released = true;
            }
            _ => {}
        }
        progress
    }
}

impl Endpoint for Bare {
    fn poll_action(&mut self) -> Option<Action> {
        self.to_connect.pop_front().map(|node| Action::Connect(NodeId::new(node)))
    }

    fn handle_connected(&mut self, _: NodeId, _: Instant) {}

    fn handle_disconnected(&mut self, _: NodeId, words: &str, _: Instant) {
        panic!("no connection ends: {words}");
    }

    fn output(&self, node: NodeId) -> &[u8] {
        &self.output[node.index()]
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, _: Instant) {
        self.output[node.index()].drain(..count);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], _: Instant) {
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let yes = match line[0] {
                b':' => line[1] != b'-',
                b'+' => true,
                b'$' | b'_' => false,
                _ => panic!("{}", String::from_utf8_lossy(bytes)),
            };
            let asked = self.asked[node.index()].pop_front().expect("an answer has its question");
            if asked == self.question {
                self.said[node.index()] = Some(yes);
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.attempt();
        }
    }

    /// Any answer may decide a round, so [`progress`](Program::progress) has to look at it.
    fn has_news(&self) -> bool {
        matches!(self.state, State::Asking | State::Releasing)
    }
}
