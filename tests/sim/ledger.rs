//! What each node remembers, in the simulation's own books: which token is at which key, whether it
//! may stand in the place of another token, and what the node forgot. This tells on how many nodes
//! a belief rests. The ledger knows no coordinator: the simulation reports when a node forgets, and
//! looks at the masters after each piece of bytes that they execute.
//!
//! # Why two callers cannot believe in a key at once
//!
//! A node *supports* a token up to a moment `until` if one of these is true:
//!
//! 1. The token is there, its key lives up to `until`, and it is not in doubt. A token is in doubt
//!    if it was created, or came with another node's keys, within `max_ttl` after its node forgot
//!    something. The doubt ends with these `max_ttl`: until then the owner of another token that
//!    stood there may believe in that. Exception: when the node forgot this token, it supported the
//!    token up to the same `until` or a later one.
//! 2. The token was there without a doubt, its key would have lived up to `until`, and the node
//!    forgot it. A client may learn of that too late, but does not need to know, as the next lines
//!    show.
//!
//! The rule: at the moment when a caller begins to believe in a token, when it is given a later
//! deadline, and from then on, a majority of the nodes supports the token up to the deadline.
//!
//! Assume that two tokens A and B of one key follow the rule at one moment. Two majorities share a
//! node, so one node supports both. It cannot hold both at once, so it forgot one of them, say A,
//! at a moment `f`, and B was created there later. The deadline of A comes from a request before
//! `f`, and is at most `max_ttl` after that request, so it is before `f + max_ttl`. Until then B is
//! in doubt and has no support from this node; afterwards no owner believes in A. If the node
//! forgot B as well, B was in doubt when it was forgotten. If the node had supported B before, then
//! A was in doubt when it was forgotten, or B was over.
//!
//! A node loses support for a token only when it forgets. So a belief that follows the rule when it
//! begins follows it up to its end, unless its key expires too early or is deleted by a client that
//! does not own it. The check at the last moment of the belief finds both.
//!
//! # Why the ledger finds no fault in a correct coordinator
//!
//! A coordinator sees the loss of data after it happened: by a push that comes before the next
//! answer, or by the handshake after the restart. From then its quarantine lasts `max_ttl` and the
//! drift. So it ends later than the doubt, which lasts `max_ttl` from the loss itself, even if the
//! coordinator's clock runs a hundredth too fast. It may leave out votes that count here: a restart
//! with all data puts nothing in doubt. An answer that was in flight at the loss is about a key
//! that was forgotten without a doubt (2.), or about one that was created after the loss; then the
//! push or the new connection comes before the answer.
//!
//! That holds as long as coordinators can see each loss. If they cannot (a flush while no client is
//! connected and no marker is kept, a clock that jumps between two probes), no Redlock client can
//! keep its promise, and the plan turns this check off.

/// A token at a key of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    token: Vec<u8>,
    /// The token is in doubt before this moment.
    doubtful_until: u64,
}

/// A token that a node forgot while it was not in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Forgotten {
    token: Vec<u8>,
    /// When the key would have expired.
    expires: u64,
}

/// A key of one node.
#[derive(Debug, Clone, Default)]
struct Place {
    entry: Option<Entry>,
    forgotten: Vec<Forgotten>,
}

/// The keys that all nodes remember.
#[derive(Debug)]
pub struct Ledger {
    /// For how long after a loss another token may be believed in: `max_ttl`.
    memory: u64,
    /// By node: a token that is created before this moment is in doubt.
    doubtful_until: Vec<u64>,
    /// The keys of each node.
    places: Vec<Vec<Place>>,
}

impl Ledger {
    /// The ledger of nodes that hold nothing and have forgotten nothing.
    pub fn new(nodes: usize, keys: usize, memory: u64) -> Ledger {
        let places = vec![vec![Place::default(); keys]; nodes];
        Ledger { memory, doubtful_until: vec![0; nodes], places }
    }

    /// Notes that this key is absent when a node is about to execute something.
    pub fn clear_key(&mut self, node: usize, key: usize) {
        self.places[node][key].entry = None;
    }

    /// Notes which token a key has after a node executed something.
    pub fn set_key(&mut self, now: u64, node: usize, key: usize, token: Option<&[u8]>) {
        let doubtful_until = self.doubtful_until[node];
        let place = &mut self.places[node][key];
        if place.entry.as_ref().map(|entry| &entry.token[..]) == token {
            return;
        }
        place.entry = token.map(|token| {
            let promised = place.forgotten.iter().any(|it| it.token == token && it.expires > now);
            let doubtful = now < doubtful_until && !promised;
            let doubtful_until = if doubtful { doubtful_until } else { 0 };
            Entry { token: token.to_vec(), doubtful_until }
        });
    }

    /// A node forgets this token, whose key would have lived up to `expires`. `after` is the token
    /// at the key now, if the node got another node's keys. If it is the same token, no other token
    /// stood there in between; only its key may expire earlier.
    pub fn forget(
        &mut self,
        now: u64,
        (node, key): (usize, usize),
        token: &[u8],
        expires: u64,
        after: Option<&[u8]>,
    ) {
        if self.is_certain(now, node, key, token) {
            let forgotten = &mut self.places[node][key].forgotten;
            // A token that has expired supports no belief.
            forgotten.retain(|it| it.expires > now);
            forgotten.push(Forgotten { token: token.to_vec(), expires });
        }
        if after != Some(token) {
            self.places[node][key].entry = None;
        }
    }

    /// A node lost its memory at the moment `at`, which may be past: tokens of that time may be
    /// believed in for a while.
    pub fn lose_memory(&mut self, at: u64, node: usize) {
        let until = &mut self.doubtful_until[node];
        *until = (*until).max(at + self.memory);
    }

    /// A node was started so long before the simulation. Tokens that it held before its start may
    /// still be believed in.
    pub fn set_uptime(&mut self, node: usize, uptime: u64) {
        self.doubtful_until[node] = self.memory.saturating_sub(uptime);
    }

    /// Whether this token is at the key, and is not in doubt.
    pub fn is_certain(&self, now: u64, node: usize, key: usize, token: &[u8]) -> bool {
        let entry = self.places[node][key].entry.as_ref();
        entry.is_some_and(|entry| entry.token == token && entry.doubtful_until <= now)
    }

    /// Whether the node forgot this token, whose key would have lived up to `until`.
    pub fn has_forgotten(&self, node: usize, key: usize, token: &[u8], until: u64) -> bool {
        let forgotten = &self.places[node][key].forgotten;
        forgotten.iter().any(|it| it.token == token && it.expires >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that holds the first token at its key, without a doubt.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(1, 1, 100);
        ledger.set_key(5, 0, 0, Some(b"first"));
        ledger
    }

    #[test]
    fn a_token_is_in_doubt_where_its_node_forgot_a_short_while_before() {
        let mut ledger = ledger();
        assert!(ledger.is_certain(6, 0, 0, b"first"));
        ledger.forget(10, (0, 0), b"first", 60, None);
        ledger.lose_memory(10, 0);
        ledger.set_key(20, 0, 0, Some(b"second"));
        assert!(!ledger.is_certain(109, 0, 0, b"second"));
        assert!(ledger.is_certain(110, 0, 0, b"second"), "nobody believes in the first any more");
        ledger.set_key(120, 0, 0, Some(b"third"));
        assert!(ledger.is_certain(120, 0, 0, b"third"));
        assert!(!ledger.is_certain(120, 0, 0, b"second"));
    }

    #[test]
    fn a_node_supports_what_it_forgot_as_long_as_it_would_have_held_it() {
        let mut ledger = ledger();
        ledger.forget(10, (0, 0), b"first", 60, None);
        ledger.lose_memory(10, 0);
        assert!(ledger.has_forgotten(0, 0, b"first", 60));
        assert!(!ledger.has_forgotten(0, 0, b"first", 61), "it was never asked for so long");
        ledger.set_key(20, 0, 0, Some(b"second"));
        ledger.forget(30, (0, 0), b"second", 90, None);
        assert!(!ledger.has_forgotten(0, 0, b"second", 40), "it never stood there for certain");
    }

    #[test]
    fn a_token_that_comes_with_the_keys_of_another_node_is_in_doubt_unless_it_stood_there() {
        let mut ledger = ledger();
        ledger.forget(10, (0, 0), b"first", 60, Some(b"other"));
        ledger.lose_memory(10, 0);
        ledger.set_key(10, 0, 0, Some(b"other"));
        assert!(!ledger.is_certain(109, 0, 0, b"other"));
        assert!(ledger.is_certain(110, 0, 0, b"other"));
        ledger.forget(120, (0, 0), b"other", 160, Some(b"other"));
        ledger.lose_memory(120, 0);
        ledger.set_key(120, 0, 0, Some(b"other"));
        assert!(ledger.is_certain(120, 0, 0, b"other"));
        assert!(ledger.has_forgotten(0, 0, b"other", 160), "its key ends earlier now");
    }

    #[test]
    fn token_that_comes_back_in_time_replaces_no_other_token() {
        for (at, certain) in [(59, true), (60, false)] {
            let mut ledger = ledger();
            ledger.forget(10, (0, 0), b"first", 60, None);
            ledger.lose_memory(10, 0);
            ledger.set_key(20, 0, 0, Some(b"second"));
            ledger.forget(30, (0, 0), b"second", 90, None);
            ledger.set_key(at, 0, 0, Some(b"first"));
            assert_eq!(ledger.is_certain(at, 0, 0, b"first"), certain, "at {at}");
        }
    }

    #[test]
    fn token_that_is_set_again_after_a_loss_is_in_doubt() {
        let mut ledger = ledger();
        ledger.lose_memory(10, 0);
        ledger.set_key(20, 0, 0, Some(b"first"));
        assert!(ledger.is_certain(20, 0, 0, b"first"), "it was kept, and is the same");
        ledger.clear_key(0, 0);
        ledger.set_key(30, 0, 0, Some(b"first"));
        assert!(!ledger.is_certain(30, 0, 0, b"first"));
    }
}
