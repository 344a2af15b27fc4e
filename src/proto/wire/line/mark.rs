//! The marks of joins, by which a client knows its own hand-overs.
//!
//! With a join, a client gives each node another mark. The node sends its mark back with the
//! message by which it hands the key over. Any program that may `PUBLISH` can send a message with
//! the token of a waiter, because the nodes show tokens and messages have them. But before the node
//! uses a mark, only a program that may read the line, or what clients send, sees it. After that
//! the mark makes no vote any more, because it counts for that node alone, and for one hand-over.
//!
//! A mark is made from the token, the node and a number with a secret key of the client. So the
//! client recognizes a mark of its own even when it has no record of the token any more.

use std::fmt;

use rand::rngs::ChaCha12Rng;
use rand::{CryptoRng, Rng, SeedableRng};

use crate::proto::lock::LockToken;
use crate::proto::node_set::{MAX_NODES, NodeId};

/// How long a mark is: 4 hex digits of its number, and 16 that only the client can make.
pub const MARK_BYTES: usize = 20;
const NUMBER_BYTES: usize = 4;

/// A mark as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark([u8; MARK_BYTES]);

impl Mark {
    /// The mark that these bytes spell, if they can be one.
    pub fn read(text: &[u8]) -> Option<Mark> {
        let mark: [u8; MARK_BYTES] = text.try_into().ok()?;
        let digits = mark.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        digits.then_some(Mark(mark))
    }

    /// The mark as it is sent.
    pub const fn as_bytes(&self) -> &[u8; MARK_BYTES] {
        &self.0
    }

    fn number(&self) -> Option<u16> {
        let digits = std::str::from_utf8(&self.0[..NUMBER_BYTES]).ok()?;
        u16::from_str_radix(digits, 16).ok()
    }
}

/// The secret by which a client makes its marks.
#[derive(Clone)]
pub struct MarkKey([u8; 32]);

/// `Debug` does not show the secret.
impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey")
    }
}

impl MarkKey {
    /// Draws a secret.
    pub fn random<R: Rng + CryptoRng>(rng: &mut R) -> MarkKey {
        let mut key = [0; 32];
        rng.fill_bytes(&mut key);
        MarkKey(key)
    }

    /// The mark of this number that the waiter with this token gives to a node.
    pub fn mark(&self, token: &LockToken, node: NodeId, number: u16) -> Mark {
        let code = self.code(token, node, number);
        let text = format!("{number:04x}{code:016x}");
        Mark::read(text.as_bytes()).expect("it has 4 and 16 hex digits")
    }

    /// The number of a mark, if this client made it for this token and this node.
    pub fn number_of(&self, mark: &Mark, token: &LockToken, node: NodeId) -> Option<u16> {
        let number = mark.number()?;
        (self.mark(token, node, number) == *mark).then_some(number)
    }

    /// A block of the cipher under the secret key. Its nonce is the first 64 bits of the token, all
    /// but the first of them random: two tokens of one client do not share them. Each node and
    /// number has its own block.
    fn code(&self, token: &LockToken, node: NodeId, number: u16) -> u64 {
        let digits = std::str::from_utf8(&token.digits()[..16]).expect("hex digits are ASCII");
        let nonce = u64::from_str_radix(digits, 16).expect("a token is hex digits");
        let block = usize::from(number) * MAX_NODES + node.index();
        let mut cipher = ChaCha12Rng::from_seed(self.0);
        cipher.set_stream(nonce);
        cipher.set_block_pos(block as u64);
        cipher.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;

    fn token(seed: u8) -> LockToken {
        LockToken::random(&mut StdRng::from_seed([seed; 32]))
    }

    #[test]
    fn mark_is_accepted_only_for_its_client_token_and_node() {
        let keys = [1, 2].map(|seed| MarkKey::random(&mut StdRng::from_seed([seed; 32])));
        let nodes = [0, 1, MAX_NODES - 1].map(NodeId::new);
        for node in nodes {
            for number in [1, 2, u16::MAX] {
                let mark = keys[0].mark(&token(3), node, number);
                assert_eq!(Mark::read(mark.as_bytes()), Some(mark));
                let number_of =
                    |key: &MarkKey, token: &LockToken, node| key.number_of(&mark, token, node);
                assert_eq!(number_of(&keys[0], &token(3), node), Some(number));
                assert_eq!(number_of(&keys[1], &token(3), node), None, "of another client");
                assert_eq!(number_of(&keys[0], &token(4), node), None, "of another token");
                for other in nodes.into_iter().filter(|&other| other != node) {
                    assert_eq!(number_of(&keys[0], &token(3), other), None, "of another node");
                }
            }
        }
    }

    #[test]
    fn no_two_marks_of_a_client_are_equal() {
        let key = MarkKey::random(&mut StdRng::from_seed([1; 32]));
        let mut codes = std::collections::BTreeSet::new();
        for node in (0..MAX_NODES).map(NodeId::new) {
            for number in 0..4 {
                assert!(codes.insert(key.code(&token(3), node, number)));
            }
        }
    }

    #[test]
    fn mark_of_another_form_is_none() {
        for text in ["", "0001", &"g".repeat(20), &"A".repeat(20), &"0".repeat(21)] {
            assert_eq!(Mark::read(text.as_bytes()), None, "{text}");
        }
    }
}
