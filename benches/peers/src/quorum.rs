//! Redlock as an expert would write it over any client of one server: what a production program
//! does that has a good client and no library for locks.
//!
//! The commands go to all nodes at once, over connections that many callers share. A majority
//! decides, and what the others answer later is dropped. The release is a script that the nodes
//! know already. A lost attempt is released everywhere. The hazard is what this leaves out: no
//! restart guard, no proof that a late `SET` is undone, no renewal, no report of why.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::RngExt;

use super::TTL;

/// Deletes the key if it has the token.
pub const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                           return redis.call('DEL', KEYS[1]) else return 0 end";

/// A client of one server, whose connection many callers share.
pub trait Node: Clone + Send + Sync + 'static {
    /// Sends `SET key token NX PX ttl`. Returns whether the key was free; an error counts as a
    /// refusal.
    fn set(&self, key: &str, token: &str) -> impl Future<Output = bool> + Send;

    /// Runs the script of a release. Returns whether the key had the token.
    fn release(&self, key: &str, token: &str) -> impl Future<Output = bool> + Send;
}

/// A lock on a majority of the nodes.
pub struct Held {
    pub key: String,
    pub token: String,
}

/// One attempt.
pub async fn acquire<N: Node>(nodes: &[N], key: &str) -> Option<Held> {
    let started = Instant::now();
    let token = token();
    let asked = nodes.iter().map(|node| node.set(key, &token)).collect();
    let won = majority(asked, nodes.len()).await;
    let drift = TTL / 100 + Duration::from_millis(2);
    if won && started.elapsed() < TTL - drift {
        return Some(Held { key: key.to_owned(), token });
    }
    release(nodes, key, &token).await;
    None
}

/// Releases the key everywhere; returns when a majority has confirmed it or cannot.
pub async fn release<N: Node>(nodes: &[N], key: &str, token: &str) -> bool {
    majority(nodes.iter().map(|node| node.release(key, token)).collect(), nodes.len()).await
}

/// Whether a majority of the answers is true; returns as soon as that is decided.
async fn majority(mut answers: FuturesUnordered<impl Future<Output = bool>>, nodes: usize) -> bool {
    let quorum = nodes / 2 + 1;
    let (mut yes, mut no) = (0, 0);
    while let Some(answer) = answers.next().await {
        *if answer { &mut yes } else { &mut no } += 1;
        if yes == quorum {
            return true;
        }
        if no > nodes - quorum {
            return false;
        }
    }
    false
}

fn token() -> String {
    let bytes: [u8; 20] = rand::rng().random();
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
