//! A client of another library: sends `SET NX PX` to every node, needs a majority, and releases by
//! compare-and-delete. It shares no code with redlatch.
//!
//! This client follows the protocol: it counts the ttl from before its first byte, takes off the
//! drift, and uses a new token for every attempt. It has no restart guard, so it uses only nodes
//! that keep what they acknowledged.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redlatch::clock::{self, Instant};

use super::support::{Dice, RespClient, Value, millis};

const DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";

/// How long a node may take to answer. After that its connection is closed, and a new one is opened
/// later.
const PATIENCE: Duration = millis(100);

pub struct Plain {
    addresses: Vec<SocketAddr>,
    connections: Vec<Option<RespClient>>,
    dice: Dice,
}

/// A lock of the plain client.
pub struct Held {
    key: String,
    token: String,
    pub deadline: Instant,
}

impl Plain {
    pub fn new(urls: &[String], dice: Dice) -> Plain {
        let address = |url: &String| {
            let address = url.strip_prefix("redis://").expect("a URL of the tests");
            address.parse().expect("a URL of the tests names an address")
        };
        let addresses: Vec<SocketAddr> = urls.iter().map(address).collect();
        let connections = addresses.iter().map(|_| None).collect();
        Plain { addresses, connections, dice }
    }

    /// Makes one attempt. Returns `None` if no majority granted in time.
    pub fn try_lock(&mut self, key: &str, ttl: Duration) -> Option<Held> {
        let token = format!("plain-{:016x}{:016x}", self.dice.any(), self.dice.any());
        // Connects first, so that opening a slow connection does not use up the ttl.
        self.connect();
        let start = clock::now();
        let px = ttl.as_millis().to_string();
        let replies = self.ask(&["SET", key, &token, "NX", "PX", &px]);
        let grants = replies.iter().flatten().filter(|reply| reply.is_ok()).count();
        let drift = ttl / 100 + millis(2);
        let deadline = start.saturating_add(ttl - drift);
        let held = Held { key: key.to_owned(), token, deadline };
        if grants > self.addresses.len() / 2 && clock::now() < deadline {
            return Some(held);
        }
        self.unlock(&held);
        None
    }

    /// Deletes the key on each node on which it holds this token. Returns whether a majority did
    /// so.
    pub fn unlock(&mut self, held: &Held) -> bool {
        self.connect();
        let replies = self.ask(&["EVAL", DELETE, "1", &held.key, &held.token]);
        let deleted = replies.iter().flatten().filter(|&reply| *reply == Value::Int(1)).count();
        deleted > self.addresses.len() / 2
    }

    fn connect(&mut self) {
        for (address, slot) in self.addresses.iter().zip(&mut self.connections) {
            if slot.as_ref().is_some_and(|connection| !connection.is_idle()) {
                *slot = None;
            }
            if slot.is_none() {
                *slot = connect(*address).ok();
            }
        }
    }

    /// Writes to every node, then reads from every node.
    fn ask(&mut self, command: &[&str]) -> Vec<Option<Value>> {
        for slot in &mut self.connections {
            if slot.as_mut().is_some_and(|connection| connection.send(command).is_err()) {
                *slot = None;
            }
        }
        let read = |slot: &mut Option<RespClient>| {
            let reply = slot.as_mut()?.read().ok();
            if reply.is_none() {
                *slot = None;
            }
            reply
        };
        self.connections.iter_mut().map(read).collect()
    }
}

fn connect(address: SocketAddr) -> io::Result<RespClient> {
    let connection = RespClient::connect(address)?;
    connection.socket().set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}
