//! The names of tokens and of identities of nodes. A token is called by its client and by how many
//! tokens that client drew after it, so that no name depends on how long a run is already.
//!
//! The identities of all nodes have the same names, because the nodes are interchangeable. A copy
//! has an identity of another node in its node marker: that a node is a copy is a word of its own
//! in the fingerprint. A second copy in a run would need to say of which node each is.

use std::collections::HashMap;
use std::sync::OnceLock;

use redlatch::proto::fingerprint::{hash_of, mix};
use redlatch::proto::{Coordinator, Instant, LockToken};
use redlatch::testing::master::{Master, Restart};

/// How many tokens each client may draw in one run.
const TOKENS: u64 = 24;
/// How many clients have names.
const CLIENTS: u64 = 3;
/// How often a node may start.
const STARTS: u64 = 3;
/// How many nodes have names.
const NODES: u64 = 5;

#[derive(Debug, Clone, Copy)]
enum Known {
    Token { client: usize, serial: u64 },
    Identity(u64),
}

/// The seed that makes a client draw this token next.
pub fn seed(client: usize, serial: u64) -> [u8; 32] {
    assert!(serial < TOKENS, "a run draws more tokens than there are names");
    let mut seed = [1; 32];
    (seed[0], seed[1]) = (client as u8, serial as u8);
    seed
}

/// The seed of the master that is this node.
pub const fn master_seed(node: usize) -> u64 {
    node as u64 + 1
}

fn known() -> &'static HashMap<Vec<u8>, Known> {
    static KNOWN: OnceLock<HashMap<Vec<u8>, Known>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let pairs = (0..CLIENTS as usize).flat_map(|c| (0..TOKENS).map(move |s| (c, s)));
        let tokens = pairs.map(|(client, serial)| {
            let token = Coordinator::first_token(seed(client, serial));
            (token.to_string().into_bytes(), Known::Token { client, serial })
        });
        tokens.chain(identities()).collect()
    })
}

fn identities() -> Vec<(Vec<u8>, Known)> {
    let mut all = Vec::new();
    for node in 0..NODES {
        let now = Instant::from_nanos(0);
        let mut master = Master::new(master_seed(node as usize), now);
        for start in 0..=STARTS {
            let texts = master.identities().into_iter().enumerate();
            all.extend(texts.map(|(kind, text)| {
                (text.into_bytes(), Known::Identity(10 * start + kind as u64))
            }));
            master.restart(now, Restart::Empty);
        }
    }
    all
}

/// The name of a text of 40 characters. `drawn`: how many tokens each client has drawn.
pub fn name(text: &[u8], drawn: &dyn Fn(usize) -> u64) -> u64 {
    match known().get(text) {
        Some(&Known::Token { client, serial }) => mix(1 + client as u64, drawn(client) - serial),
        Some(&Known::Identity(identity)) => mix(7, identity),
        None => hash_of(&text),
    }
}

/// The client that drew a token.
pub fn client_of(token: &LockToken) -> Option<usize> {
    match known().get(&token.digits()[..])? {
        Known::Token { client, .. } => Some(*client),
        Known::Identity(_) => None,
    }
}
