//! The steps of the handshake, and what the reply to each says of the node.

use crate::proto::error::NodeError;
use crate::proto::wire::command::Native;
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::marker::{Identity, MarkerState};
use crate::proto::wire::resp::{Elements, Reply};

/// A step of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// `HELLO 3`, with the credentials if there are any.
    Hello,
    /// `AUTH`: only if `HELLO` is unknown.
    Auth,
    /// `CLIENT ID`: the connection's number, only if `HELLO` is unknown. If refused, the connection
    /// has none, so no later connection can end it.
    Id,
    /// `SELECT`: only if the database is not 0.
    Select,
    /// `INFO`: the node's identity and configuration. In a probe `INFO memory`: whether the node
    /// may evict.
    Info,
    /// `TIME`: the node's clock, by which the age of its marker is known.
    Time,
    /// `GET` of the node marker. If refused, the node is judged without one.
    Marker,
    /// `GET` of the list of masters. If refused, the list is not checked.
    Members,
    /// The script that writes the node marker: only if the present marker does not match.
    Mark,
    /// A script of ours without its arguments: it fails before it does anything, by an error of its
    /// own. A user who may run no scripts gets another error, and so does a node without Lua.
    Run,
    /// `SCRIPT LOAD`. If refused, the script is sent by its source.
    Load(ScriptName),
    /// `COMMAND INFO`: whether the node has a native compare-and-delete. If refused, the script is
    /// used.
    Native,
    /// `CLIENT TRACKING`: asks the node to report flushes, and writes to registered keys. If
    /// refused, the client notices neither.
    Track,
    /// `CLIENT SETNAME`, `CLIENT SETINFO`: how an operator finds the connection in `CLIENT LIST`.
    /// If refused, it has no name there.
    Name,
}

/// The number of a connection, if a server can have given it: servers count from 1.
fn connection_number(id: i64) -> Option<i64> {
    (id > 0).then_some(id)
}

impl Step {
    /// The command that the step sends.
    pub const fn command(self) -> &'static str {
        match self {
            Step::Hello => "HELLO",
            Step::Auth => "AUTH",
            Step::Id => "CLIENT ID",
            Step::Select => "SELECT",
            Step::Info => "INFO",
            Step::Time => "TIME",
            Step::Marker | Step::Members => "GET",
            Step::Mark | Step::Run => "EVAL",
            Step::Load(_) => "SCRIPT LOAD",
            Step::Native => "COMMAND INFO",
            Step::Track => "CLIENT TRACKING",
            Step::Name => "CLIENT SETNAME",
        }
    }
}

/// What one answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fact {
    /// Done; the answer contains nothing else.
    #[default]
    Fine,
    /// The answer to `HELLO` or `CLIENT ID`: the connection's number, by which the node can end it.
    /// `None` if the node does not report it, as a proxy may not.
    ClientId(Option<i64>),
    /// The answer to `INFO`.
    Info(Info),
    /// The answer to `TIME`, in microseconds.
    Time(u64),
    /// The node marker; unavailable if the value is no marker.
    Marker(MarkerState),
    /// The list of masters was returned, or nothing: the content is in `Connection::take_members`.
    Members,
    /// The native compare-and-delete of the node, if it has one.
    Native(Option<Native>),
    /// The node refused the command.
    Refused(NodeError),
}

/// What `INFO` says of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    /// The node's identity.
    pub identity: Identity,
    /// Uptime as the node reports it: a difference of wall-clock times in whole seconds. Negative
    /// after its clock was set back.
    pub uptime_seconds: Option<i64>,
    /// The node is a replica.
    pub replica: bool,
    /// The node was a replica and became a master since it started, at an unknown time. False also
    /// once the node has dropped its backlog for replicas (`repl-backlog-ttl`, an hour).
    pub promoted: bool,
    /// The node reports whether it was promoted.
    pub reports_promotion: bool,
    /// The node is reading its data set.
    pub loading: bool,
    /// The node is in cluster mode.
    pub cluster: bool,
    /// The node may evict keys.
    pub evicts: bool,
}

impl Step {
    /// Reads the reply to this step; `None` if the command cannot have such a reply.
    pub fn read(self, reply: &Reply<'_>) -> Option<Fact> {
        match (self, *reply) {
            (_, Reply::Error(line)) => Some(Fact::Refused(NodeError::of_error(line))),
            (Step::Hello, Reply::Map(fields) | Reply::Array(fields)) => {
                let mut fields = fields.iter();
                let mut client_id = None;
                while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
                    if let (Reply::Bulk(b"id"), Reply::Integer(id)) = (name, value) {
                        client_id = connection_number(id);
                    }
                }
                Some(Fact::ClientId(client_id))
            }
            (Step::Id, Reply::Integer(id)) => Some(Fact::ClientId(connection_number(id))),
            (Step::Auth | Step::Select | Step::Track | Step::Name, Reply::Simple(b"OK")) => {
                Some(Fact::Fine)
            }
            (Step::Native, Reply::Array(commands)) => {
                // The reply has one entry for each command, null if the command is unknown.
                let known = |entry: Option<Reply<'_>>| matches!(entry, Some(Reply::Array(_)));
                let mut entries = commands.iter();
                let (delifeq, delex) = (known(entries.next()), known(entries.next()));
                Some(Fact::Native(match (delifeq, delex) {
                    (true, _) => Some(Native::Delifeq),
                    (false, true) => Some(Native::Delex),
                    (false, false) => None,
                }))
            }
            (Step::Info, Reply::Bulk(text)) => Some(Fact::Info(Info::read(text))),
            (Step::Time, Reply::Array(elements)) => time(&elements).map(Fact::Time),
            (Step::Marker | Step::Mark, Reply::Null) => Some(Fact::Marker(MarkerState::Absent)),
            (Step::Marker | Step::Mark, Reply::Bulk(value)) => {
                Some(Fact::Marker(MarkerState::read(value)))
            }
            (Step::Members, Reply::Null | Reply::Bulk(_)) => Some(Fact::Members),
            (Step::Load(_), Reply::Bulk(_)) | (Step::Run, Reply::Integer(_)) => Some(Fact::Fine),
            _ => None,
        }
    }
}

/// The answer to `TIME`, in microseconds.
fn time(elements: &Elements<'_>) -> Option<u64> {
    let mut parts = elements.iter().map(|part| match part {
        Reply::Bulk(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    });
    let (seconds, micros) = (parts.next()??, parts.next()??);
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

impl Info {
    /// Reads the lines of `INFO` that matter here.
    fn read(text: &[u8]) -> Info {
        let mut info = Info::default();
        let (mut bounded, mut keeps_all) = (false, true);
        for line in text.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
            let value = &line[colon + 1..];
            match &line[..colon] {
                b"run_id" => info.identity.run_id = value.try_into().ok(),
                b"master_replid" => info.identity.replid = value.try_into().ok(),
                b"uptime_in_seconds" => {
                    info.uptime_seconds =
                        std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
                }
                b"role" => info.replica = value != b"master",
                b"second_repl_offset" => {
                    (info.promoted, info.reports_promotion) = (value != b"-1", true);
                }
                b"loading" => info.loading = value != b"0",
                b"cluster_enabled" => info.cluster = value != b"0",
                b"maxmemory" => bounded = value != b"0",
                b"maxmemory_policy" => keeps_all = value == b"noeviction",
                _ => {}
            }
        }
        info.evicts = bounded && !keeps_all;
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_compare_and_delete_is_found_by_name() {
        let read = |reply: &[u8]| {
            let step = crate::proto::wire::resp::decode(reply, &Default::default()).unwrap();
            let crate::proto::wire::resp::Step::Complete { reply, .. } = step else {
                panic!("partial")
            };
            Step::Native.read(&reply)
        };
        let found = |native| Some(Fact::Native(native));
        assert_eq!(read(b"*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n"), found(Some(Native::Delifeq)));
        assert_eq!(read(b"*2\r\n*-1\r\n*1\r\n$5\r\ndelex\r\n"), found(Some(Native::Delex)));
        assert_eq!(read(b"*2\r\n_\r\n$-1\r\n"), found(None));
        assert_eq!(read(b"*0\r\n"), found(None));
        assert_eq!(read(b"+OK\r\n"), None);
    }
}
