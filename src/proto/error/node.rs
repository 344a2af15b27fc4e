//! Why a node gave no vote that counts, and what one node said to one question.

use std::fmt;

/// Why a node gave no vote that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// `-BUSY`: a script has been running for too long.
    Busy,
    /// `-MISCONF`: the node cannot save, and refuses writes.
    Misconf,
    /// `-NOREPLICAS`: the node has fewer replicas than it requires. Or it granted the key, and
    /// fewer replicas have it than [`Config::replicas`](crate::Config::replicas) requires, so the
    /// grant does not count.
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
    /// The node belongs to another list of masters than this client was given; or the other nodes
    /// have a list, and this node is not in it.
    OtherList,
    /// The node has no database of that number.
    NoDatabase,
    /// The client belongs to the process that this one was forked from.
    Forked,
    /// `-WRONGTYPE`: the key is not a string, so another program uses it.
    WrongType,
    /// `-ERR unknown command`.
    UnknownCommand,
    /// Any other error: its text is in the report.
    Other,
    /// The node's clock is too far from those of the other nodes, or is not known: its vote for a
    /// fencing number does not count.
    ClockSkew,
    /// The node runs no Lua scripts, for this user at least. Plain locks on one key work there;
    /// several keys, fencing numbers and lines do not.
    NoLua,
    /// `-NOSCRIPT`: the node does not know the script. A caller never sees this: the client then
    /// sends the script.
    NoScript,
}

impl NodeError {
    /// All causes, in the order of their declaration.
    pub const ALL: &'static [NodeError] = &[
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
        NodeError::OtherList,
        NodeError::NoDatabase,
        NodeError::Forked,
        NodeError::WrongType,
        NodeError::UnknownCommand,
        NodeError::Other,
        NodeError::ClockSkew,
        NodeError::NoLua,
        NodeError::NoScript,
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
        const TEXTS: [(&[u8], NodeError); 10] = [
            (b"max number of clients", NodeError::TooManyClients),
            (b"unknown command", NodeError::UnknownCommand),
            (b"AUTH <password> called without", NodeError::WrongPassword),
            (b"invalid password", NodeError::WrongPassword),
            (b"The user executing the script", NodeError::NoPermission),
            (b"ACL failure in script", NodeError::NoPermission),
            (b"DB index is out of range", NodeError::NoDatabase),
            (b"invalid DB index", NodeError::NoDatabase),
            (b"Client sent AUTH, but no password", NodeError::WrongPassword),
            // Valkey 9.1.2 without its module `lua`.
            (b"Could not find scripting engine", NodeError::NoLua),
        ];
        // Up to Redis 6 an error inside a script is wrapped in other words.
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
                | NodeError::OtherList
                | NodeError::NoDatabase
                | NodeError::Forked
                | NodeError::UnknownCommand
                | NodeError::NoLua
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
            NodeError::Garbage => "sent an invalid reply",
            NodeError::Full => "has a full outbox",
            NodeError::Loading => "is loading its data",
            NodeError::Busy => "is busy with a script",
            NodeError::Misconf => "refuses writes (MISCONF)",
            NodeError::NoReplicas => "has too few replicas",
            NodeError::OutOfMemory => "is out of memory",
            NodeError::Replica => "is a replica",
            NodeError::TooManyClients => "has too many clients",
            NodeError::NoAuth => "requires a password",
            NodeError::WrongPassword => "refuses the password",
            NodeError::NoPermission => "denies a permission (ACL)",
            NodeError::Protected => "is in protected mode",
            NodeError::Cluster => "is in cluster mode",
            NodeError::Evicts => "may evict keys (maxmemory-policy)",
            NodeError::Quarantined => "grant ignored: node is quarantined",
            NodeError::SameServer => "is the same server as another address",
            NodeError::OtherList => "has another list of masters than this client",
            NodeError::NoDatabase => "has no such database",
            NodeError::Forked => "client was inherited across fork()",
            NodeError::WrongType => "holds a value that is not a lock",
            NodeError::NoScript => "does not know the script",
            NodeError::UnknownCommand => "does not know the command",
            NodeError::Other => "returned an error",
            NodeError::ClockSkew => "has a clock too far from the others' for a fence",
            NodeError::NoLua => {
                "runs no Lua scripts, which several keys, a fencing number and an extend by token \
                 need"
            }
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
            NodeError::OtherList => "other_list",
            NodeError::NoDatabase => "no_database",
            NodeError::Forked => "forked",
            NodeError::WrongType => "wrong_type",
            NodeError::NoScript => "no_script",
            NodeError::UnknownCommand => "unknown_command",
            NodeError::Other => "other",
            NodeError::ClockSkew => "clock_skew",
            NodeError::NoLua => "no_lua",
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
#[non_exhaustive]
pub enum NodeReply {
    /// The question was decided before the node answered: nothing waited for it.
    #[default]
    Nothing,
    /// The node could have been asked, but the client had no question for it.
    NotAsked,
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
            NodeReply::Nothing => f.write_str("was not waited for"),
            NodeReply::NotAsked => f.write_str("was not asked"),
            NodeReply::Granted => f.write_str("granted"),
            NodeReply::Held => f.write_str("held"),
            NodeReply::Absent => f.write_str("absent"),
            NodeReply::Failed(cause) => cause.fmt(f),
        }
    }
}

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
        let cases = [
            ("NOREPLICAS Not enough good replicas to write.", NodeError::NoReplicas),
            ("WRONGPASS invalid username-password pair", NodeError::WrongPassword),
            ("DENIED Redis is running in protected mode", NodeError::Protected),
            ("MOVED 3999 127.0.0.1:6381", NodeError::Cluster),
            ("ASK 3999 127.0.0.1:6381", NodeError::Cluster),
            ("CROSSSLOT Keys in request don't hash to the same slot", NodeError::Cluster),
            ("CLUSTERDOWN The cluster is down", NodeError::Cluster),
            ("TRYAGAIN Multiple keys request during rehashing of slot", NodeError::Cluster),
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
            // A script that fails at an unknown command may have written before it.
            ("ERR Unknown Redis command called from script script: 6f1a", NodeError::Other),
            (
                "ERR Error running script (call to f_6f1a): @user_script:1: @user_script: 1: \
                 Unknown Redis command called from Lua script",
                NodeError::Other,
            ),
            (
                "ERR AUTH <password> called without any password configured",
                NodeError::WrongPassword,
            ),
            ("ERR The user executing the script can't run this command", NodeError::NoPermission),
            ("ERR Could not find scripting engine 'lua'", NodeError::NoLua),
            ("", NodeError::Other),
        ];
        for (line, cause) in cases {
            assert_eq!(NodeError::of_error(line.as_bytes()), cause, "{line}");
        }
    }
}
