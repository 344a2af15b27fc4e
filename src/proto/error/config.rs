//! What cannot work as it was configured or requested.

use std::fmt;
use std::time::Duration;

use super::node::NodeReply;
use super::report::Report;
use crate::proto::key_set::MOST_KEYS;
use crate::proto::node_set::MAX_NODES;
use crate::proto::own_keys::NAMESPACE;
use crate::proto::time::InvalidTtl;

/// What cannot work as it was configured or requested. `Debug` prints the same line as `Display`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The list of nodes is empty.
    NoNodes,
    /// More nodes than a client can have.
    TooManyNodes {
        /// How many were given.
        given: usize,
    },
    /// The same address is in the list twice: it would vote twice.
    DuplicateNode {
        /// The address.
        label: Box<str>,
    },
    /// An invalid address. Credentials are left out.
    Address {
        /// What was given, without its credentials.
        given: Box<str>,
        /// What is wrong with it.
        problem: Box<str>,
    },
    /// A name for the client's connections that no node accepts.
    ClientName {
        /// The name.
        given: Box<str>,
    },
    /// An owner that tokens cannot name.
    Owner {
        /// The owner.
        given: Box<str>,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A variable of the environment, or a file, that cannot be used. Its content is not quoted,
    /// because it may be a password.
    Source {
        /// Its name.
        name: Box<str>,
        /// What is wrong with it.
        problem: Box<str>,
    },
    /// Something that encryption needs is missing or invalid.
    Tls {
        /// What is wrong.
        problem: Box<str>,
    },
    /// A ttl that is too short to leave any time after drift, or is too long.
    Ttl(InvalidTtl),
    /// A key that is longer than the limit.
    KeyTooLong {
        /// Its length in bytes.
        given: usize,
        /// The most bytes it may have.
        most: usize,
    },
    /// No key, or more different keys than one lock can have.
    Keys {
        /// How many different keys were given.
        given: usize,
    },
    /// A key that cannot be locked: it is the key of the node marker.
    KeyOfMarker {
        /// The key.
        key: Box<[u8]>,
    },
    /// A key, or a prefix of keys, whose name begins with `redlatch:`: such names are those of the
    /// library's own keys.
    ReservedKey {
        /// The key as it would be sent, with the prefix of the settings; or that prefix.
        sent: Box<[u8]>,
    },
    /// A setting that cannot work.
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        given: Duration,
        /// What the setting must be.
        must: &'static str,
    },
    /// The operating system refused something that the client needs to start.
    System {
        /// What was tried, and what came of it.
        problem: Box<str>,
    },
    /// A fencing number that the settings, or the request, do not allow.
    Fence {
        /// Why.
        problem: &'static str,
    },
    /// Replicas are to confirm each grant, and the restart guard, which sees a promotion, is not
    /// [`On`](crate::RestartGuard::On) or has no node marker.
    Replicas,
    /// So many nodes have a lasting failure that the others are no quorum.
    Nodes(Box<Report>),
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_to(&mut OneLine(f))
    }
}

/// Escapes control characters (`\n`, `\u{1b}`): an error quotes text from outside, and has to stay
/// one line.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(char::is_control) {
            let plain = part.trim_end_matches(char::is_control);
            self.0.write_str(plain)?;
            write!(self.0, "{}", part[plain.len()..].escape_default())?;
        }
        Ok(())
    }
}

impl ConfigError {
    fn write_to(&self, f: &mut impl fmt::Write) -> fmt::Result {
        match self {
            ConfigError::NoNodes => f.write_str("nodes: the list is empty; name at least one"),
            ConfigError::TooManyNodes { given } => {
                write!(f, "nodes: {given} are given; a client can have {} at most", MAX_NODES)
            }
            ConfigError::DuplicateNode { label } => {
                write!(f, "node {label}: it is in the list twice; each node has one vote")
            }
            ConfigError::Address { given, problem } => write!(f, "address {given}: {problem}"),
            ConfigError::ClientName { given } => {
                write!(
                    f,
                    "client_name {given:?}: no node accepts it; use printable ASCII without spaces"
                )
            }
            ConfigError::Owner { given, problem } => write!(f, "owner is {given:?}: {problem}"),
            ConfigError::Source { name, problem } => write!(f, "{name}: {problem}"),
            ConfigError::Tls { problem } => write!(f, "TLS: {problem}"),
            ConfigError::Ttl(bad) => write!(f, "{bad}"),
            ConfigError::KeyTooLong { given, most } => {
                write!(f, "key of {given} bytes: it is too long; the limit is {most} bytes")
            }
            ConfigError::Keys { given: 0 } => {
                f.write_str("keys: the list is empty; name at least one")
            }
            ConfigError::Keys { given } => {
                let most = MOST_KEYS;
                write!(f, "keys: {given} different keys are given; a lock can have {most} at most")
            }
            ConfigError::KeyOfMarker { key } => {
                let key = key.escape_ascii();
                write!(f, "key \"{key}\": it is the key of the node marker; lock another key")
            }
            ConfigError::ReservedKey { sent } => {
                let sent = sent.escape_ascii();
                write!(
                    f,
                    "key \"{sent}\": names that begin with {NAMESPACE:?} are reserved for \
                     redlatch's own keys; choose another key or key_prefix"
                )
            }
            ConfigError::Setting { name, given, must } => {
                write!(f, "{name}: {given:?} cannot work; it must be {must}")
            }
            ConfigError::System { problem } => f.write_str(problem),
            ConfigError::Fence { problem } => write!(f, "fencing number: {problem}"),
            ConfigError::Replicas => f.write_str(
                "replicas: after a failover only the restart guard keeps the promoted replica from \
                 granting too early; leave the restart guard on, with its node marker",
            ),
            ConfigError::Nodes(report) if report.names_one_server_twice() => {
                f.write_str("two addresses lead to one server, which would vote twice: ")?;
                report.write_nodes(f, |node| node.reply != NodeReply::Nothing)?;
                f.write_str("; give every server once")
            }
            ConfigError::Nodes(report) => {
                write!(f, "configuration: too few usable nodes; fix these: {report}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
