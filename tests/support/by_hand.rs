//! A coordinator without sockets. The test answers its requests as masters would if every key was
//! free. The clock and the seed are the test's, so every run is the same.
//!
//! The hazard: a bench measures this code together with the library's. So answering allocates
//! nothing once the buffers are large enough.

use std::time::Duration;

use redlatch::proto::Instant;
use redlatch::proto::Settings;
use redlatch::proto::{Action, Coordinator, Lock, NodeId, NodeSettings, NodeState, Outcome};
use redlatch::{AutoExtend, Keys, LockOptions};

pub const NODES: usize = 5;
const SEED: [u8; 32] = [7; 32];

/// The coordinator, and the clock of its driver.
pub struct ByHand {
    pub coordinator: Coordinator,
    replies: Vec<u8>,
    now: Duration,
    /// How many requests share one turn.
    pub in_flight: usize,
}

impl ByHand {
    /// A coordinator whose nodes are ready.
    pub fn connect(in_flight: usize) -> ByHand {
        let nodes = (0..NODES).map(|index| NodeSettings::new(index.to_string())).collect();
        ByHand::with(Settings::new(nodes), in_flight)
    }

    /// As [`connect`](ByHand::connect), with settings of the test's own.
    pub fn with(settings: Settings, in_flight: usize) -> ByHand {
        let coordinator = Coordinator::new(settings, SEED, Instant::default());
        let coordinator = coordinator.expect("these settings work");
        let replies = Vec::with_capacity(1 << 20);
        let mut by_hand = ByHand { coordinator, replies, now: Duration::ZERO, in_flight };
        while let Some(action) = by_hand.coordinator.poll_action() {
            let Action::Connect(node) = action else { panic!("{action:?}") };
            by_hand.coordinator.handle_connected(node, Instant::default());
        }
        // Three turns are enough for the handshake and for the requests that follow it.
        (0..3).for_each(|_| by_hand.turn());
        let is_ready = |node| by_hand.coordinator.node_state(NodeId::new(node)) == NodeState::Ready;
        assert!((0..NODES).all(is_ready), "the handshake was answered");
        by_hand
    }

    pub fn now(&self) -> Instant {
        Instant::default().saturating_add(self.now)
    }

    /// Acquires and releases this many free keys.
    pub fn pairs(&mut self, count: usize, ttl: Duration) {
        let mut locks = Vec::with_capacity(self.in_flight);
        self.pairs_into(count, ttl, &mut locks);
    }

    /// As [`pairs`](ByHand::pairs), with a buffer for the locks in flight.
    pub fn pairs_into(&mut self, count: usize, ttl: Duration, locks: &mut Vec<Lock>) {
        let mut done = 0;
        while done < count {
            let batch = self.in_flight.min(count - done);
            self.acquire_batch(0, batch, ttl, None, locks);
            done += batch;
            self.release_all(locks);
        }
    }

    /// Acquires and releases one lock of these keys.
    pub fn pair_of(&mut self, keys: impl Keys, ttl: Duration, locks: &mut Vec<Lock>) {
        let (now, options) = (self.now(), LockOptions::once(ttl));
        self.coordinator.acquire(keys, options, 0, now).expect("there is room");
        self.turn();
        while let Some(done) = self.coordinator.poll_completion(self.now()) {
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
            locks.push(lock);
        }
        self.release_all(locks);
    }

    /// As [`pairs_into`](ByHand::pairs_into), with replies that are built before, so that nearly
    /// all of the measured work is the coordinator's.
    pub fn canned_pairs(&mut self, count: usize, ttl: Duration, locks: &mut Vec<Lock>) {
        let [granted, released] = [&b"+OK\r\n"[..], b":1\r\n"].map(|it| it.repeat(self.in_flight));
        let keys: Vec<[u8; 10]> = (0..self.in_flight).map(key).collect();
        for _ in 0..count / self.in_flight {
            let (now, options) = (self.now(), LockOptions::once(ttl));
            for key in &keys {
                self.coordinator.acquire(key, options, 0, now).expect("there is room");
            }
            self.canned_turn(&granted);
            while let Some(done) = self.coordinator.poll_completion(self.now()) {
                let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
                locks.push(lock);
            }
            let now = self.now();
            for lock in locks.drain(..) {
                self.coordinator.release(lock, 0, now);
            }
            self.canned_turn(&released);
            while let Some(done) = self.coordinator.poll_completion(self.now()) {
                assert!(matches!(done.result, Ok(Outcome::Released(_))), "{done:?}");
            }
        }
        assert_eq!(self.coordinator.open_records(), 0);
    }

    fn canned_turn(&mut self, replies: &[u8]) {
        self.now += Duration::from_micros(100);
        let now = self.now();
        for node in (0..NODES).map(NodeId::new) {
            let count = self.coordinator.output(node).len();
            self.coordinator.handle_sent(node, count, now);
            self.coordinator.handle_bytes(node, replies, now);
        }
    }

    /// Acquires the keys with the numbers from `first` on, in one turn.
    pub fn acquire_batch(
        &mut self,
        first: usize,
        count: usize,
        ttl: Duration,
        auto_extend: Option<AutoExtend>,
        locks: &mut Vec<Lock>,
    ) {
        let (now, options) = (self.now(), LockOptions::once(ttl));
        let options = auto_extend.map_or(options, |keep| options.auto_extend(keep));
        for number in first..first + count {
            let key = key(number);
            let (coordinator, data) = (&mut self.coordinator, number as u64);
            coordinator.acquire(key, options, data, now).expect("there is room");
        }
        self.turn();
        while let Some(done) = self.coordinator.poll_completion(self.now()) {
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
            locks.push(lock);
        }
    }

    /// Releases all these locks in one turn.
    pub fn release_all(&mut self, locks: &mut Vec<Lock>) {
        let (now, count) = (self.now(), locks.len());
        while let Some(lock) = locks.pop() {
            self.coordinator.release(lock, 0, now);
        }
        self.turn();
        let mut released = 0;
        while let Some(done) = self.coordinator.poll_completion(self.now()) {
            assert!(matches!(done.result, Ok(Outcome::Released(_))), "{done:?}");
            released += 1;
        }
        assert_eq!(released, count);
    }

    /// Advances the clock by 0.1 ms, fires the timers that are due, and lets every node answer all
    /// that was sent to it.
    pub fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        let now = self.now();
        if self.coordinator.next_timeout().is_some_and(|due| due <= now) {
            self.coordinator.handle_timeout(now);
        }
        for node in (0..NODES).map(NodeId::new) {
            self.replies.clear();
            let output = self.coordinator.output(node);
            let count = output.len();
            answer_commands(output, node, &mut self.replies);
            self.coordinator.handle_sent(node, count, now);
            self.coordinator.handle_bytes(node, &self.replies, now);
        }
    }

    /// Advances the clock by `length` without new requests. The coordinator's timers fire when they
    /// are due, and the nodes answer what it then sends.
    pub fn rest(&mut self, length: Duration) {
        let end = self.now + length;
        while let Some(due) = self.coordinator.next_timeout() {
            let due = due.saturating_since(Instant::default()).max(self.now);
            if due > end {
                break;
            }
            self.now = due;
            self.turn();
        }
        self.now = end;
    }
}

/// The key with this number: ten bytes.
pub fn key(number: usize) -> [u8; 10] {
    let mut key = *b"key:000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Answers as a master on which every key is free and every release finds its token.
fn answer_commands(mut commands: &[u8], node: NodeId, replies: &mut Vec<u8>) {
    while !commands.is_empty() {
        let arguments = length(&mut commands, b'*');
        let mut name: &[u8] = b"";
        for index in 0..arguments {
            let bytes = length(&mut commands, b'$');
            let (argument, rest) = commands.split_at(bytes);
            commands = &rest[2..];
            if index == 0 {
                name = argument;
            }
        }
        match name {
            b"SET" => replies.extend_from_slice(b"+OK\r\n"),
            b"EVALSHA" => replies.extend_from_slice(b":1\r\n"),
            b"HELLO" => replies.extend_from_slice(b"%1\r\n$2\r\nid\r\n:1\r\n"),
            b"INFO" => {
                let info = format!(
                    "run_id:{:040}\r\nuptime_in_seconds:86400\r\nrole:master\r\n",
                    node.index()
                );
                replies.extend_from_slice(format!("${}\r\n{info}\r\n", info.len()).as_bytes());
            }
            // A release that carries its script's source, because the node may not know the script.
            b"EVAL" if arguments > 4 => replies.extend_from_slice(b":1\r\n"),
            b"EVAL" => replies.extend_from_slice(b"-ERR no arguments\r\n"),
            b"SCRIPT" => replies.extend_from_slice(b"$3\r\nsha\r\n"),
            _ => replies.extend_from_slice(b"-ERR unknown command\r\n"),
        }
    }
}

/// Takes one line, such as `*5` or `$3`, and returns its number.
fn length(commands: &mut &[u8], kind: u8) -> usize {
    assert_eq!(commands[0], kind);
    let digits = commands[1..].iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0, |number, digit| 10 * number + usize::from(digit - b'0'));
    let end = commands.iter().position(|&byte| byte == b'\n').expect("whole commands");
    *commands = &commands[end + 1..];
    number
}
