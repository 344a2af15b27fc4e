//! A bare loop: `SET NX` to all masters, the majority's answer, and another try after each denial.
//! Nothing of the library is in it.

use std::collections::VecDeque;

use redlatch::majority;
use redlatch::proto::sets::ACQUIRE;

use super::world::{NODES, TTL};

/// The scripts of the bare loops are those of the library: the masters of the tests know no others.
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
    /// It takes two keys.
    set: bool,
    token: String,
    /// The questions to each master whose answers are still to come.
    asked: Vec<VecDeque<u64>>,
    said: Vec<Option<bool>>,
    question: u64,
    output: Vec<Vec<u8>>,
    state: State,
    pauses: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    Pausing,
    Holding,
    Releasing,
}

impl Bare {
    pub fn new(number: usize, set: bool) -> Bare {
        Bare {
            set,
            token: format!("{number:040x}"),
            asked: vec![VecDeque::new(); NODES],
            said: vec![None; NODES],
            question: 0,
            output: vec![Vec::new(); NODES],
            state: State::Pausing,
            pauses: false,
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

    pub fn attempt(&mut self) {
        (self.state, self.question) = (State::Asking, self.question + 1);
        let token = self.token.clone();
        let ttl = TTL.as_millis().to_string();
        let words = match self.set {
            true => vec!["EVAL", ACQUIRE.source, "2", "a", "b", &token, &ttl],
            false => vec!["SET", "a", &token, "NX", "PX", &ttl],
        };
        (0..NODES).for_each(|node| self.write(node, &words));
    }

    fn release_at(&mut self, asked: impl Fn(Option<bool>) -> bool) {
        self.question += 1;
        let token = self.token.clone();
        for node in 0..NODES {
            if asked(self.said[node]) {
                let words = match self.set {
                    true => vec!["EVAL", RELEASE_SET, "2", "a", "b", &token],
                    false => vec!["EVAL", RELEASE, "1", "a", &token],
                };
                self.write(node, &words);
            }
        }
    }

    pub fn release(&mut self) {
        self.state = State::Releasing;
        self.release_at(|_| true);
    }

    pub fn hear(&mut self, node: usize, bytes: &[u8]) {
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let yes = match line[0] {
                b':' => line[1] != b'-',
                b'+' => true,
                b'$' | b'_' => false,
                _ => panic!("{}", String::from_utf8_lossy(bytes)),
            };
            let asked = self.asked[node].pop_front().expect("an answer has its question");
            if asked == self.question {
                self.said[node] = Some(yes);
            }
        }
    }

    /// What became of the last question: whether the lock is won, and whether it is released.
    pub fn judge(&mut self) -> (bool, bool) {
        let quorum = majority(NODES);
        let count = |what| self.said.iter().filter(|&&said| said == Some(what)).count();
        let (yes, no) = (count(true), count(false));
        match self.state {
            State::Asking if yes >= quorum => {
                self.state = State::Holding;
                (true, false)
            }
            State::Asking if no > NODES - quorum => {
                self.state = State::Pausing;
                self.release_at(|said| said != Some(false));
                self.pauses = true;
                (false, false)
            }
            State::Releasing if yes + no >= quorum => {
                self.state = State::Pausing;
                (false, true)
            }
            _ => (false, false),
        }
    }

    /// Whether it is to be given another try after a pause, which begins now.
    pub fn pauses(&mut self) -> bool {
        std::mem::take(&mut self.pauses)
    }

    /// What it has to send to a master.
    pub fn take_output(&mut self, node: usize) -> Vec<u8> {
        std::mem::take(&mut self.output[node])
    }
}
