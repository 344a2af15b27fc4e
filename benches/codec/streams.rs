//! What a node sends to a client of locks, as streams of 64 KiB.
//!
//! The replies of a stream come in a fixed order. Streams whose replies vary draw them from a
//! generator with a fixed seed, because a processor's branch predictor learns a short pattern.

/// As much as the library reads from a socket at once.
const BYTES: usize = 64 * 1024;

/// The notification that a key of this client changed.
const PUSH: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$10\r\ninvoice:42\r\n";

const ERROR: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// Replies, whole, one after another.
pub struct Stream {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub replies: usize,
}

/// All streams of the benchmark.
pub fn all() -> Vec<Stream> {
    let same = |name, reply: &'static str| stream(name, |_| reply);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut drawn = |name, choices: &[&'static str]| stream(name, |_| choices[dice.below(choices)]);
    vec![
        same("`+OK`", "+OK\r\n"),
        same("`:1`", ":1\r\n"),
        same("`:0`", ":0\r\n"),
        same("`_`", "_\r\n"),
        same("`$-1`", "$-1\r\n"),
        // For each pair a connection reads one reply of each kind.
        stream("pairs", |number| ["+OK\r\n", ":1\r\n"][number % 2]),
        // With many keys in flight the replies to releases are mixed with those to grants.
        drawn("pairs of many keys", &["+OK\r\n", ":1\r\n"]),
        // Others hold the key: one attempt in three wins.
        drawn("contended", &["+OK\r\n", ":1\r\n", "_\r\n", "_\r\n", ":0\r\n", ":0\r\n"]),
        same("notifications", PUSH),
        drawn("mixed", &MIXED),
    ]
}

/// Two notifications and an error among 32 replies.
const MIXED: [&str; 32] = {
    let mut mixed = ["+OK\r\n"; 32];
    let mut at = 0;
    while at < 32 {
        mixed[at] = match at {
            0..12 => "+OK\r\n",
            12..24 => ":1\r\n",
            24..27 => "_\r\n",
            27..29 => ":0\r\n",
            29..31 => PUSH,
            _ => ERROR,
        };
        at += 1;
    }
    mixed
};

fn stream(name: &'static str, mut reply: impl FnMut(usize) -> &'static str) -> Stream {
    let (mut bytes, mut replies) = (Vec::with_capacity(BYTES), 0);
    loop {
        let next = reply(replies);
        if bytes.len() + next.len() > BYTES {
            return Stream { name, bytes, replies };
        }
        bytes.extend_from_slice(next.as_bytes());
        replies += 1;
    }
}

/// Xorshift, with a fixed seed.
struct Dice(u64);

impl Dice {
    fn below<T>(&mut self, choices: &[T]) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % choices.len()
    }
}
