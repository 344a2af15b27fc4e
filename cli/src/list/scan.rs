//! Finds the keys on the nodes that are locks. Asks each node for its keys and their values, over a
//! separate connection that stays open from one pass to the next.
//!
//! The hazard is a node with millions of keys, because a pass walks over all of them. So it does
//! that in portions, between which the node serves others, and a pass is limited in time and in
//! locks.

use std::collections::BTreeSet;
use std::time::Duration;

use redlatch::proto::NodeSettings;
use redlatch::{Config, NodeError, Value, clock};

use crate::connection::{Answer, Connection, Patience, Tls, Trouble, tls};

/// How many keys a node walks over for one portion. With their values that takes 1.5 ms of its time
/// (Redis 7.0.15 with a million keys).
const PORTION: &str = "1000";
/// How long a pass over a node may take.
const LONGEST_PASS: Duration = Duration::from_secs(60);
/// How many locks a pass returns for each node at most: more than a person reads. A user who needs
/// others gives a pattern.
pub const MOST_LOCKS: usize = 10_000;

/// The last byte of a value that the node sends, because [`Value`] keeps no more.
const LAST_BYTE: &str = "159";

/// A node, with the connection over which its keys are listed.
pub struct Source {
    pub label: String,
    config: Config,
    /// The node's place in the configuration.
    place: usize,
    tls: Option<Tls>,
    each: Duration,
    connection: Option<Connection>,
}

/// The result of a pass over all nodes.
#[derive(Debug, Default)]
pub struct Found {
    /// The keys that have a token on any node, sorted, without `--key-prefix`.
    pub keys: BTreeSet<Vec<u8>>,
    /// The nodes whose keys could not be listed, and why.
    pub troubles: Vec<(String, Trouble)>,
    /// Whether there are more than [`MOST_LOCKS`].
    pub is_cut: bool,
}

impl Source {
    /// The nodes of this configuration; none is connected yet.
    pub fn all(config: &Config) -> Vec<Source> {
        let settings = config.get_settings();
        let nodes = settings.nodes.iter().enumerate();
        let source = |(place, node): (usize, &NodeSettings)| Source {
            label: node.label.to_string(),
            config: config.clone(),
            place,
            tls: tls(config),
            each: settings.connect_timeout.max(settings.node_timeout),
            connection: None,
        };
        nodes.map(source).collect()
    }

    /// Returns the keys that match the pattern and have a token, and whether there are more.
    fn pass(&mut self, pattern: &[u8]) -> Result<(BTreeSet<Vec<u8>>, bool), Trouble> {
        let until = clock::now().saturating_add(LONGEST_PASS);
        let mut connection = match self.connection.take() {
            Some(connection) => connection.with_patience(Patience { each: self.each, until }),
            None => {
                let patience = Patience { each: self.each, until };
                Connection::to_node(&self.config, self.place, self.tls.as_ref(), patience)?
            }
        };
        let found = pass(&mut connection, pattern)?;
        self.connection = Some(connection);
        Ok(found)
    }
}

/// Makes a pass over all nodes at the same time. `prefix` stands before every key, and `pattern`
/// selects keys by what follows it.
pub fn scan(sources: &mut [Source], prefix: &str, pattern: &str) -> Found {
    let whole = &*[&literal(prefix), pattern.as_bytes()].concat();
    let passes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = sources
            .iter_mut()
            .map(|source| (source.label.clone(), scope.spawn(move || source.pass(whole))))
            .collect();
        let end = |(label, thread): (String, std::thread::ScopedJoinHandle<'_, _>)| {
            (label, thread.join().expect("a pass does not panic"))
        };
        threads.into_iter().map(end).collect()
    });
    let mut found = Found::default();
    for (label, pass) in passes {
        match pass {
            Ok((keys, is_cut)) => {
                let without = keys.iter().filter_map(|key| key.strip_prefix(prefix.as_bytes()));
                found.keys.extend(without.filter(|key| !key.is_empty()).map(<[u8]>::to_vec));
                found.is_cut |= is_cut;
            }
            Err(trouble) => found.troubles.push((label, trouble)),
        }
    }
    found.is_cut |= found.keys.len() > MOST_LOCKS;
    found
}

fn pass(connection: &mut Connection, pattern: &[u8]) -> Result<(BTreeSet<Vec<u8>>, bool), Trouble> {
    let (mut cursor, mut locks) = (b"0".to_vec(), BTreeSet::new());
    loop {
        let words: [&[u8]; 6] = [b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", PORTION.as_bytes()];
        let portion = connection.scan(&words)?;
        let questions: Vec<[&[u8]; 4]> = portion.keys.iter().map(|key| first_bytes(key)).collect();
        let questions: Vec<&[&[u8]]> = questions.iter().map(|words| &words[..]).collect();
        let answers = connection.ask_all(&questions)?;
        for (key, answer) in portion.keys.iter().zip(&answers) {
            match answer {
                Answer::Text(text) if Value::of(text.as_bytes()).token().is_some() => {
                    locks.insert(key.clone());
                }
                _ => {}
            }
        }
        // A key that the user may not read is left out. If the command is refused, the pass fails.
        if let Some(trouble) = answers.iter().filter_map(Answer::refusal).find(is_of_a_command) {
            return Err(trouble);
        }
        if locks.len() >= MOST_LOCKS {
            return Ok((locks, true));
        }
        if portion.cursor == b"0" {
            return Ok((locks, false));
        }
        cursor = portion.cursor;
    }
}

/// The command that reads as many bytes of a value as a token can have.
fn first_bytes(key: &[u8]) -> [&[u8]; 4] {
    [b"GETRANGE", key, b"0", LAST_BYTE.as_bytes()]
}

/// Whether the node refuses the command itself, and not only this key. Redis 6.2 and 7.0 name the
/// command only in the first case: "to run the 'getrange' command".
fn is_of_a_command(trouble: &Trouble) -> bool {
    trouble.cause == NodeError::NoPermission && trouble.words.contains("getrange")
}

/// A pattern that matches only this text.
fn literal(text: &str) -> Vec<u8> {
    let mut pattern = Vec::new();
    for byte in text.bytes() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_prefix_matches_only_itself() {
        assert_eq!(literal("app:"), b"app:");
        assert_eq!(literal(r"a*b?[c]\{d}"), br"a\*b\?\[c\]\\{d}");
    }

    #[test]
    fn last_byte_is_that_of_the_longest_value() {
        let longest = Value::of(&[b'x'; 1000]).as_bytes().len();
        assert_eq!(LAST_BYTE.parse(), Ok(longest - 1));
    }
}
