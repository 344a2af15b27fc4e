//! What can go wrong, as closed sets; and the report of what every node said.
//!
//! A node's failure is data in a [`Report`], never an error of the event loop.

use std::fmt;
use std::time::Duration;

use crate::proto::time::InvalidTtl;

/// Why a node gave no vote that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeError {
    /// There was no connection to the node when it was to be asked.
    Unreachable,
    /// The node was asked and did not answer in time; or it had been silent for so long that it was
    /// not asked.
    Silent,
    /// The connection was lost before the node answered.
    Lost,
    /// The node sent an answer that the command cannot have; the connection was closed.
    Garbage,
    /// The limit on what waits to be sent to the node is reached.
    Full,
    /// `-LOADING`: the node is reading its data set.
    Loading,
    /// `-BUSY`: a script runs without end.
    Busy,
    /// `-MISCONF`: the node cannot save, and refuses writes.
    Misconf,
    /// `-NOREPLICAS`: the node has fewer replicas than it requires.
    NoReplicas,
    /// `-OOM`: the node's memory is full.
    OutOfMemory,
    /// `-READONLY` or `-MASTERDOWN`, or its role: the node is a replica.
    Replica,
    /// `max number of clients reached`.
    TooManyClients,
    /// `-NOAUTH`: the node requires a password.
    NoAuth,
    /// `-WRONGPASS`: the password is wrong, or the node has none.
    WrongPassword,
    /// `-NOPERM`, or a script that may not be run: the user lacks a permission that a lock needs.
    NoPermission,
    /// `-DENIED`: the node is in protected mode.
    Protected,
    /// The node is in cluster mode: a key lives on one node there, so it is no independent master.
    Cluster,
    /// The node may evict keys: `maxmemory` is set and the policy is not `noeviction`.
    Evicts,
    /// The node may have forgotten a live lock: it started or was promoted lately, was flushed, or
    /// its clock jumped. Its denials count, its grants do not count yet.
    Quarantined,
    /// The address leads to the same server as another address of the list.
    SameServer,
    /// The node has no database of that number.
    NoDatabase,
    /// The client belongs to the process that this one was forked from.
    Forked,
    /// `-WRONGTYPE`: the key is not a string, so another program uses it.
    WrongType,
    /// `-NOSCRIPT`: the node does not know the script. A caller never sees this: the client then
    /// sends the script.
    NoScript,
    /// `-ERR unknown command`.
    UnknownCommand,
    /// Any other error: its text is in the report.
    Other,
}

impl NodeError {
    /// All causes, in the order of their declaration.
    pub const ALL: [NodeError; 26] = [
        NodeError::Unreachable,
        NodeError::Silent,
        NodeError::Lost,
        NodeError::Garbage,
        NodeError::Full,
        NodeError::Loading,
        NodeError::Busy,
        NodeError::Misconf,
        NodeError::NoReplicas,
        NodeError::OutOfMemory,
        NodeError::Replica,
        NodeError::TooManyClients,
        NodeError::NoAuth,
        NodeError::WrongPassword,
        NodeError::NoPermission,
        NodeError::Protected,
        NodeError::Cluster,
        NodeError::Evicts,
        NodeError::Quarantined,
        NodeError::SameServer,
        NodeError::NoDatabase,
        NodeError::Forked,
        NodeError::WrongType,
        NodeError::NoScript,
        NodeError::UnknownCommand,
        NodeError::Other,
    ];

    /// The cause of an error reply, by its first word: the rest of the line differs between
    /// servers.
    pub fn of_error(line: &[u8]) -> NodeError {
        let (word, rest) = match line.iter().position(|&b| b == b' ') {
            Some(end) => (&line[..end], &line[end + 1..]),
            None => (line, &[][..]),
        };
        match word {
            b"LOADING" => NodeError::Loading,
            b"BUSY" => NodeError::Busy,
            b"MISCONF" => NodeError::Misconf,
            b"NOREPLICAS" => NodeError::NoReplicas,
            b"OOM" => NodeError::OutOfMemory,
            b"READONLY" | b"MASTERDOWN" => NodeError::Replica,
            b"NOAUTH" => NodeError::NoAuth,
            b"WRONGPASS" => NodeError::WrongPassword,
            b"NOPERM" => NodeError::NoPermission,
            b"DENIED" => NodeError::Protected,
            b"MOVED" | b"ASK" | b"CROSSSLOT" | b"CLUSTERDOWN" | b"TRYAGAIN" => NodeError::Cluster,
            b"WRONGTYPE" => NodeError::WrongType,
            b"NOSCRIPT" => NodeError::NoScript,
            b"ERR" => NodeError::of_plain_error(rest),
            _ => NodeError::Other,
        }
    }

    /// The cause of an error whose first word is only `ERR`.
    fn of_plain_error(text: &[u8]) -> NodeError {
        const TEXTS: [(&[u8], NodeError); 9] = [
            (b"max number of clients", NodeError::TooManyClients),
            (b"unknown command", NodeError::UnknownCommand),
            (b"AUTH <password> called without", NodeError::WrongPassword),
            (b"invalid password", NodeError::WrongPassword),
            (b"The user executing the script", NodeError::NoPermission),
            (b"ACL failure in script", NodeError::NoPermission),
            (b"DB index is out of range", NodeError::NoDatabase),
            (b"invalid DB index", NodeError::NoDatabase),
            (b"Client sent AUTH, but no password", NodeError::WrongPassword),
        ];
        // Up to Redis 6 an error from inside a script comes wrapped.
        const WRAPPED: [(&[u8], NodeError); 5] = [
            (b"The user executing the script can't run this command", NodeError::NoPermission),
            (b" -MISCONF ", NodeError::Misconf),
            (b" -OOM ", NodeError::OutOfMemory),
            (b" -NOREPLICAS ", NodeError::NoReplicas),
            (b" -READONLY ", NodeError::Replica),
        ];
        if text.starts_with(b"Error running script") {
            let within = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
            let found = WRAPPED.iter().find(|(part, _)| within(part));
            return found.map_or(NodeError::Other, |(_, cause)| *cause);
        }
        TEXTS.iter().find(|(start, _)| text.starts_with(start)).map_or(NodeError::Other, |t| t.1)
    }

    /// Whether the cause stays until an operator changes a configuration. Such a node is not asked
    /// again soon; every other cause passes by itself.
    pub const fn is_permanent(self) -> bool {
        matches!(
            self,
            NodeError::NoAuth
                | NodeError::WrongPassword
                | NodeError::NoPermission
                | NodeError::Protected
                | NodeError::Cluster
                | NodeError::Evicts
                | NodeError::SameServer
                | NodeError::NoDatabase
                | NodeError::Forked
                | NodeError::UnknownCommand
        )
    }

    /// Whether this answer proves that a plain `SET` was not executed: the node refuses the command
    /// for these causes before it looks at the key. An unknown error (a proxy's, say) proves
    /// nothing.
    pub const fn proves_nothing_was_set(self) -> bool {
        matches!(
            self,
            NodeError::Loading
                | NodeError::Busy
                | NodeError::Misconf
                | NodeError::NoReplicas
                | NodeError::OutOfMemory
                | NodeError::Replica
                | NodeError::NoAuth
                | NodeError::NoPermission
        )
    }

    const fn text(self) -> &'static str {
        match self {
            NodeError::Unreachable => "not connected",
            NodeError::Silent => "no answer in time",
            NodeError::Lost => "connection lost",
            NodeError::Garbage => "answered garbage",
            NodeError::Full => "too much waits for it",
            NodeError::Loading => "loading its data",
            NodeError::Busy => "busy with a script",
            NodeError::Misconf => "refuses writes (MISCONF)",
            NodeError::NoReplicas => "refuses writes (too few replicas)",
            NodeError::OutOfMemory => "out of memory",
            NodeError::Replica => "is a replica",
            NodeError::TooManyClients => "has too many clients",
            NodeError::NoAuth => "wants a password",
            NodeError::WrongPassword => "refuses the password",
            NodeError::NoPermission => "refuses permission",
            NodeError::Protected => "is in protected mode",
            NodeError::Cluster => "is in cluster mode",
            NodeError::Evicts => "may evict keys (maxmemory-policy)",
            NodeError::Quarantined => "granted, which does not count yet",
            NodeError::SameServer => "is the server of another address",
            NodeError::NoDatabase => "has no such database",
            NodeError::Forked => "is the client of the process before the fork",
            NodeError::WrongType => "holds something that is no lock",
            NodeError::NoScript => "does not know the script",
            NodeError::UnknownCommand => "does not know the command",
            NodeError::Other => "answered an error",
        }
    }

    /// The cause as one word for programs, such as `out_of_memory`: it does not change.
    pub const fn word(self) -> &'static str {
        match self {
            NodeError::Unreachable => "unreachable",
            NodeError::Silent => "silent",
            NodeError::Lost => "connection_lost",
            NodeError::Garbage => "garbage",
            NodeError::Full => "full",
            NodeError::Loading => "loading",
            NodeError::Busy => "busy",
            NodeError::Misconf => "misconf",
            NodeError::NoReplicas => "no_replicas",
            NodeError::OutOfMemory => "out_of_memory",
            NodeError::Replica => "replica",
            NodeError::TooManyClients => "too_many_clients",
            NodeError::NoAuth => "no_auth",
            NodeError::WrongPassword => "wrong_password",
            NodeError::NoPermission => "no_permission",
            NodeError::Protected => "protected",
            NodeError::Cluster => "cluster",
            NodeError::Evicts => "evicts",
            NodeError::Quarantined => "quarantined",
            NodeError::SameServer => "same_server",
            NodeError::NoDatabase => "no_database",
            NodeError::Forked => "forked",
            NodeError::WrongType => "wrong_type",
            NodeError::NoScript => "no_script",
            NodeError::UnknownCommand => "unknown_command",
            NodeError::Other => "other",
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What one node said to one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NodeReply {
    /// No answer yet: the question was decided before the node answered, or the node was not asked.
    #[default]
    Nothing,
    /// Yes: our token holds the key there; after a release, the key is gone.
    Granted,
    /// Another token holds the key there.
    Held,
    /// The key is not there.
    Absent,
    /// The node gave no vote that counts.
    Failed(NodeError),
}

impl NodeReply {
    /// Whether the node may answer otherwise if the script is sent by its source instead of its
    /// SHA1: the node forgot the script, or the user may not run `EVALSHA`.
    pub(crate) const fn asks_for_the_source(self) -> bool {
        let NodeReply::Failed(cause) = self else { return false };
        matches!(cause, NodeError::NoScript | NodeError::NoPermission | NodeError::UnknownCommand)
    }
}

impl fmt::Display for NodeReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeReply::Nothing => f.write_str("undecided"),
            NodeReply::Granted => f.write_str("granted"),
            NodeReply::Held => f.write_str("held"),
            NodeReply::Absent => f.write_str("absent"),
            NodeReply::Failed(cause) => cause.fmt(f),
        }
    }
}

/// One line of a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The node's label: its address, without credentials.
    pub label: Box<str>,
    /// What the node said.
    pub said: NodeReply,
    /// The node's own words if they say more: an error line, a connect error.
    pub detail: Option<Box<str>>,
}

/// What every node said to the question that failed. `Debug` is the line of `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Report {
    /// The key that was asked for.
    pub key: Box<[u8]>,
    /// How many nodes had to say yes.
    pub needed: usize,
    /// Every node, in the order of the list.
    pub nodes: Vec<NodeReport>,
}

/// The hint in an error that the restart guard causes: what the caller can do.
const GUARD_HINT: &str = "; restart guard: a node that may have forgotten a live lock does not \
    grant for max_ttl; on new nodes run `redlatch init` or call Client::vouch; \
    Config::restart_guard or --no-restart-guard turns the guard off";

impl Report {
    /// Whether a majority would be possible if the grants of quarantined nodes counted.
    pub fn is_for_the_restart_guard(&self) -> bool {
        let quarantined = NodeReply::Failed(NodeError::Quarantined);
        let count = |said| self.nodes.iter().filter(|node| node.said == said).count();
        let most = count(quarantined) + count(NodeReply::Granted) + count(NodeReply::Nothing);
        count(quarantined) > 0 && most >= self.needed
    }

    /// Writes what some of the nodes said.
    fn write_nodes(
        &self,
        f: &mut fmt::Formatter<'_>,
        wanted: impl Fn(&NodeReport) -> bool,
    ) -> fmt::Result {
        for (index, node) in self.nodes.iter().filter(|node| wanted(node)).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", node.label, node.said)?;
            if let Some(detail) = &node.detail {
                write!(f, " ({detail})")?;
            }
        }
        Ok(())
    }

    /// Whether a node of the list is a server that another address leads to as well.
    fn names_one_server_twice(&self) -> bool {
        let twice = NodeReply::Failed(NodeError::SameServer);
        self.nodes.iter().any(|node| node.said == twice)
    }

    fn hint(&self) -> &'static str {
        if self.is_for_the_restart_guard() { GUARD_HINT } else { "" }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, nodes) = (self.needed, self.nodes.len());
        write!(f, "needed {needed} of {nodes}")?;
        // A report about the nodes alone is about no key.
        if !self.key.is_empty() {
            write!(f, " for \"{}\"", self.key.escape_ascii())?;
        }
        f.write_str(": ")?;
        self.write_nodes(f, |_| true)
    }
}

/// Why a lock is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// The deadline came, and too few nodes had agreed to a later one.
    Expired,
    /// So many nodes say that the key is gone, or holds another token, that no majority can hold
    /// it.
    Gone,
    /// The lock was held for as long as it may be:
    /// [`AutoExtend::at_most`](crate::proto::locks::auto_extend::AutoExtend::at_most).
    MaxHold,
    /// The lock was extended as often as it may be:
    /// [`AutoExtend::extensions`](crate::proto::locks::auto_extend::AutoExtend::extensions).
    Extensions,
    /// The lock was over before: released, given away or lost.
    Over,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its deadline came",
            LostReason::Gone => "its key is gone on too many nodes",
            LostReason::MaxHold => "it was held for as long as it may be",
            LostReason::Extensions => "it was extended as often as it may be",
            LostReason::Over => "it was over before",
        })
    }
}

/// Why there is no lock, or no longer one. `Debug` is the line of `Display`, because Rust prints
/// the `Debug` form of an error that `main` returns.
#[derive(Clone, PartialEq, Eq)]
pub enum Error {
    /// Enough nodes answered, and other clients hold the key.
    Contended(Box<Report>),
    /// Not enough nodes gave a vote that counts.
    NoQuorum(Box<Report>),
    /// A majority granted, but the ttl had run out when the client knew it.
    Expired(Box<Report>),
    /// The lock is not held any more.
    Lost {
        /// Why.
        reason: LostReason,
        /// What every node said to the last question about it.
        report: Box<Report>,
    },
    /// A limit of the client is reached: nothing was sent.
    Busy(Busy),
    /// The request, or the configuration of the client, cannot work. Retrying does not help.
    Config(ConfigError),
    /// The client has ended: nothing was sent, or what the request may have left is released.
    Closed(ClosedReason),
}

impl Error {
    /// What every node said; `None` if no node was asked.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Error::Contended(report)
            | Error::NoQuorum(report)
            | Error::Expired(report)
            | Error::Lost { report, .. }
            | Error::Config(ConfigError::Nodes(report)) => Some(report),
            Error::Busy(_) | Error::Config(_) | Error::Closed(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Contended(report) => write!(f, "held by another: {report}{}", report.hint()),
            Error::NoQuorum(report) => write!(f, "no quorum: {report}{}", report.hint()),
            Error::Expired(report) => write!(f, "granted too late to be of use: {report}"),
            Error::Lost { reason, report } => write!(f, "the lock is lost ({reason}): {report}"),
            Error::Busy(busy) => busy.fmt(f),
            Error::Config(error) => error.fmt(f),
            Error::Closed(closed) => closed.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// No `source()`: `Display` already contains the text of a [`ConfigError`] inside, so a chain would
/// repeat it.
impl std::error::Error for Error {}

impl From<InvalidTtl> for Error {
    fn from(bad: InvalidTtl) -> Error {
        Error::Config(ConfigError::Ttl(bad))
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

/// Which limit of the client was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Busy {
    /// As many records are open as `limits.records` allows.
    Records,
    /// So much waits to be sent that fewer than a quorum of the nodes can be asked.
    Nodes,
    /// An extend or a release of the lock is in flight already.
    Lock,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Busy::Records => "busy: as many locks are open as the limit allows",
            Busy::Nodes => "busy: too much waits for the nodes to ask a quorum of them",
            Busy::Lock => "busy: this lock is already being extended or released",
        })
    }
}

/// Why a client has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClosedReason {
    /// The program closed the client.
    Asked,
    /// The driver of the client is gone: its thread panicked, or the runtime of its task ended.
    DriverGone,
    /// The client belongs to the process that this one was forked from.
    Forked,
}

impl fmt::Display for ClosedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClosedReason::Asked => "the client was closed",
            ClosedReason::DriverGone => {
                "the client is not driven any more: its thread or runtime ended"
            }
            ClosedReason::Forked => "the client belongs to the process before the fork",
        })
    }
}

/// What cannot work as it was configured or requested. `Debug` is the line of `Display`.
#[derive(Clone, PartialEq, Eq)]
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
    /// A key that cannot be locked: it is the key of the node marker.
    KeyOfMarker {
        /// The key.
        key: Box<[u8]>,
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
        match self {
            ConfigError::NoNodes => f.write_str("the list of nodes is empty"),
            ConfigError::TooManyNodes { given } => {
                write!(f, "{given} nodes: a client can have {}", crate::proto::node_set::MAX_NODES)
            }
            ConfigError::DuplicateNode { label } => {
                write!(f, "the node {label} is in the list twice: it would vote twice")
            }
            ConfigError::Address { given, problem } => write!(f, "address {given}: {problem}"),
            ConfigError::ClientName { given } => {
                write!(f, "client_name is {given:?}: it must be printable ASCII without spaces")
            }
            ConfigError::Tls { problem } => write!(f, "TLS: {problem}"),
            ConfigError::Ttl(bad) => bad.fmt(f),
            ConfigError::KeyTooLong { given, most } => {
                write!(f, "a key of {given} bytes: the limit is {most}")
            }
            ConfigError::KeyOfMarker { key } => {
                let key = key.escape_ascii();
                write!(f, "\"{key}\" is the key of the node marker; lock another key")
            }
            ConfigError::Setting { name, given, must } => {
                write!(f, "{name} is {given:?}: it must be {must}")
            }
            ConfigError::System { problem } => f.write_str(problem),
            ConfigError::Nodes(report) if report.names_one_server_twice() => {
                f.write_str("two addresses lead to one server, which would vote twice: ")?;
                report.write_nodes(f, |node| node.said != NodeReply::Nothing)?;
                f.write_str("; give every server once")
            }
            ConfigError::Nodes(report) => {
                write!(f, "too many nodes cannot be used as they are configured: {report}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_word_of_its_own() {
        let mut words: Vec<&str> = NodeError::ALL.iter().map(|cause| cause.word()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), NodeError::ALL.len());
        let fit = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(words.iter().all(|word| fit(word)), "{words:?}");
    }

    #[test]
    fn an_error_is_known_by_its_first_word() {
        let wrapped = "ERR Error running script (call to f_0): @user_script:1: @user_script: 1: \
                       The user executing the script can't run this command or subcommand";
        let cases: [(&str, NodeError); 18] = [
            (wrapped, NodeError::NoPermission),
            ("ERR Error running script (call to f_0): x", NodeError::Other),
            ("ERR ACL failure in script: User a has no permissions", NodeError::NoPermission),
            ("ERR DB index is out of range", NodeError::NoDatabase),
            ("OOM command not allowed when used memory > 'maxmemory'.", NodeError::OutOfMemory),
            ("OOM", NodeError::OutOfMemory),
            ("OOMPH", NodeError::Other),
            ("READONLY You can't write against a read only replica.", NodeError::Replica),
            ("MISCONF Redis is configured to save RDB snapshots", NodeError::Misconf),
            ("BUSY Redis is busy running a script.", NodeError::Busy),
            ("LOADING Redis is loading the dataset in memory", NodeError::Loading),
            ("NOSCRIPT No matching script. Please use EVAL.", NodeError::NoScript),
            ("NOAUTH Authentication required.", NodeError::NoAuth),
            ("ERR max number of clients reached", NodeError::TooManyClients),
            ("ERR unknown command 'HELLO'", NodeError::UnknownCommand),
            (
                "ERR AUTH <password> called without any password configured",
                NodeError::WrongPassword,
            ),
            ("ERR The user executing the script can't run this command", NodeError::NoPermission),
            ("", NodeError::Other),
        ];
        for (line, cause) in cases {
            assert_eq!(NodeError::of_error(line.as_bytes()), cause, "{line}");
        }
    }

    #[test]
    fn a_report_is_one_line_for_an_operator() {
        let node = |label: &str, said, detail: Option<&str>| NodeReport {
            label: label.into(),
            said,
            detail: detail.map(Into::into),
        };
        let report = Report {
            key: b"invoice:\r\n42"[..].into(),
            needed: 2,
            nodes: vec![
                node("10.0.0.1:6379", NodeReply::Granted, None),
                node("10.0.0.2:6379", NodeReply::Held, None),
                node("10.0.0.3:6379", NodeReply::Failed(NodeError::Unreachable), Some("refused")),
            ],
        };
        assert_eq!(
            Error::NoQuorum(Box::new(report)).to_string(),
            "no quorum: needed 2 of 3 for \"invoice:\\r\\n42\": 10.0.0.1:6379 granted, \
             10.0.0.2:6379 held, 10.0.0.3:6379 not connected (refused)"
        );
    }

    #[test]
    fn a_failed_main_prints_one_line_and_a_chain_says_it_once() {
        let error = Error::Config(ConfigError::NoNodes);
        assert_eq!(format!("{error:?}"), error.to_string(), "main prints Debug");
        assert!(std::error::Error::source(&error).is_none(), "its text would be said twice");
        let config = ConfigError::TooManyNodes { given: 99 };
        assert_eq!(format!("{config:?}"), config.to_string());
        let report = Report { key: b"k"[..].into(), needed: 1, nodes: Vec::new() };
        assert_eq!(format!("{report:?}"), report.to_string());
        let error = Error::Contended(Box::new(report));
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
