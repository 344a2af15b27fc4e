//! The names that tokens and identities of nodes have in a fingerprint. The name of a token is its
//! client and how many tokens that client has drawn after it, so no name depends on the length of a
//! run.
//!
//! If two waiters have as many nodes, the one with the lower token gets the key. So the tokens of
//! each client are lower than those of the next client, and each is lower than the next one of the
//! same client. Then the names say which of two tokens is lower.
//!
//! The identities of all nodes have the same name, because the nodes are interchangeable. The
//! marker of a copied node has another node's identity, so the fingerprint has a word for "is a
//! copy". With two copies in a run it would also have to say of which node each is.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, OnceLock};

use redlatch::proto::fingerprint::{MixHasher, hash_of, mix};
use redlatch::proto::{Coordinator, Instant, LockToken};
use redlatch::testing::inside::Planned;
use redlatch::testing::master::{Master, Restart};

use crate::time::PAUSE;

/// How many tokens each client may draw in one run. They differ in the first byte, without its
/// highest bit.
const TOKENS: usize = 32;
/// How many clients have names.
const CLIENTS: usize = 3;
/// How often a node may start.
const STARTS: u64 = 3;
/// How many nodes have names.
const NODES: u64 = 5;
/// Other clients know a waiter by this many first digits of its token.
const BEGINNING: usize = 12;

#[derive(Debug, Clone, Copy)]
enum Known {
    /// `bit`: the first bit of the token, which says that the release hands the lock over.
    Token {
        client: usize,
        serial: u64,
        bit: bool,
    },
    Identity(u64),
}

/// What a client draws instead of random numbers.
pub fn draws_of(client: usize) -> Planned {
    let mut rest = [2; 32];
    rest[0] = client as u8;
    let tokens = Arc::clone(&seeds()[client]);
    Planned { tokens, drawn: 0, pause: PAUSE, rest }
}

/// For each client, the seeds of its tokens.
fn seeds() -> &'static [Arc<[[u8; 32]]>] {
    static SEEDS: OnceLock<Vec<Arc<[[u8; 32]]>>> = OnceLock::new();
    let seed = |client, serial| {
        (0..).map(seed_of).find(|seed| first_byte(*seed) == TOKENS * client + serial)
    };
    SEEDS.get_or_init(|| {
        let of_client =
            |client| (0..TOKENS).map(move |serial| seed(client, serial).expect("there is one"));
        (0..CLIENTS).map(|client| of_client(client).collect()).collect()
    })
}

fn seed_of(number: u64) -> [u8; 32] {
    let mut seed = [1; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    seed
}

/// The first byte, without its highest bit, of the first token that is drawn from this seed.
fn first_byte(seed: [u8; 32]) -> usize {
    let token = Coordinator::first_token(seed).to_string();
    usize::from_str_radix(&token[..2], 16).expect("a token is hex digits")
}

/// The seed of the master that is this node.
pub const fn master_seed(node: usize) -> u64 {
    node as u64 + 1
}

/// What is known of each text.
type KnownTexts = HashMap<Vec<u8>, Known, BuildHasherDefault<MixHasher>>;

fn known() -> &'static KnownTexts {
    static KNOWN: OnceLock<KnownTexts> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let pairs = (0..CLIENTS).flat_map(|c| (0..TOKENS).map(move |s| (c, s)));
        let tokens = pairs.flat_map(|(client, serial)| {
            let token = Coordinator::first_token(seeds()[client][serial]).to_string();
            let first = u32::from_str_radix(&token[..1], 16).expect("a token is hex digits");
            [false, true].into_iter().flat_map(move |bit| {
                let known = Known::Token { client, serial: serial as u64, bit };
                let text = format!("{:x}{}", first + 8 * u32::from(bit), &token[1..]).into_bytes();
                [(text[..BEGINNING].to_vec(), known), (text, known)]
            })
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

/// The name of a text of 40 characters. `drawn`: how many tokens a client has drawn so far.
pub fn name(text: &[u8], drawn: &dyn Fn(usize) -> u64) -> u64 {
    match known().get(text) {
        Some(&Known::Token { client, serial, bit }) => {
            mix(1 + client as u64, 2 * (drawn(client) - serial) + u64::from(bit))
        }
        Some(&Known::Identity(identity)) => mix(7, identity),
        None => hash_of(&text),
    }
}

/// The name of a text of several words, some of which may be tokens or the beginnings of tokens. Of
/// a mark only its number counts, because its other parts are in the fingerprint already. The name
/// of a channel is that of its client.
pub fn said(text: &[u8], drawn: &dyn Fn(usize) -> u64) -> u64 {
    let words = text.split(|byte| matches!(byte, b' ' | b'\n'));
    let word = |word: &[u8]| match word.len() {
        40 | BEGINNING => name(word, drawn),
        20 => hash_of(&&word[..4]),
        41 => hash_of(&&word[..39]),
        _ => hash_of(&word),
    };
    words.map(word).fold(0, mix)
}

/// The client that drew a token.
pub fn client_of(token: &LockToken) -> Option<usize> {
    match known().get(&token.digits()[..])? {
        Known::Token { client, .. } => Some(*client),
        Known::Identity(_) => None,
    }
}
