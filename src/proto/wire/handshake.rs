//! The handshake: the first commands on a connection, and what their answers say of the node. The
//! result is whether the node may be asked at all.
//!
//! Everything is written together: `HELLO` with the credentials, `SELECT`, the request for notices
//! of flushes and of writes to registered keys, `INFO`, the node marker, the scripts, the question
//! for a native compare-and-delete, and the name of the connection. A second round trip follows
//! only if the node marker has to be written.
//!
//! If `HELLO` is unknown (before Redis 6), the handshake is repeated with the older commands, among
//! them `CLIENT ID` for the connection's number. A managed server may refuse each command but the
//! credentials; this file says what follows from a refusal. The hazard is a node that is taken for
//! an independent master and is none.

mod answers;

use crate::proto::error::NodeError;
use crate::proto::settings::NodeSettings;
use crate::proto::wire::command::{Native, RELEASE};
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::marker::MarkerState;
use crate::proto::wire::members::MEMBERS;

pub use answers::{Fact, Info, Step};

/// What is known of a node that may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vetted {
    /// The connection's number on the node, if `HELLO` or `CLIENT ID` reported it.
    pub client_id: Option<i64>,
    /// The answer to `INFO`; empty if the node refused it.
    pub info: Info,
    /// The node's native compare-and-delete.
    pub native: Option<Native>,
    /// The node reports writes to registered keys.
    pub tracks: bool,
    /// The connection speaks RESP3, so the node can send pushes.
    pub resp3: bool,
    /// The answer to `TIME`, in microseconds, read before the marker.
    pub micros: Option<u64>,
    /// The node's marker.
    pub marker: MarkerState,
}

/// How the handshake goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Answers are still to come.
    More,
    /// The handshake has to be repeated with the older commands: call [`Handshake::begin`] again.
    Again,
    /// The node may be asked: [`Handshake::vetted`] has what is known of it.
    Vetted,
    /// The node may not be asked.
    Rejected(NodeError),
}

/// The handshake of one connection.
#[derive(Debug, Clone, Default)]
pub struct Handshake {
    unanswered: usize,
    /// The last `HELLO` contained credentials.
    hello_had_credentials: bool,
    hello_unknown: bool,
    error: Option<NodeError>,
    vetted: Vetted,
    /// The marker as it was found, before it was written.
    found: Option<MarkerState>,
}

impl Handshake {
    /// Asks all questions together. `name` is the name of the connection, `marker` the key of the
    /// node marker if it is wanted; `say` puts one step into the outbox.
    pub fn begin(
        &mut self,
        node: &NodeSettings,
        name: &str,
        marker: Option<&str>,
        members: bool,
        mut say: impl FnMut(Step, &[&[u8]]),
    ) {
        let old_commands = self.hello_unknown;
        *self = Handshake::default();
        let mut say = |step, arguments: &[&[u8]]| {
            self.unanswered += 1;
            say(step, arguments);
        };
        let password = node.password.as_ref().map(|password| password.reveal().as_bytes());
        let user = node.user.as_deref().map(str::as_bytes);
        match (old_commands, password, user) {
            (false, Some(password), user) => {
                self.hello_had_credentials = true;
                let user = user.unwrap_or(b"default");
                say(Step::Hello, &[b"HELLO", b"3", b"AUTH", user, password]);
            }
            (false, None, _) => say(Step::Hello, &[b"HELLO", b"3"]),
            (true, Some(password), Some(user)) => say(Step::Auth, &[b"AUTH", user, password]),
            (true, Some(password), None) => say(Step::Auth, &[b"AUTH", password]),
            (true, None, _) => {}
        }
        if old_commands {
            say(Step::Id, &[b"CLIENT", b"ID"]);
        }
        if node.db != 0 {
            say(Step::Select, &[b"SELECT", node.db.to_string().as_bytes()]);
        }
        if !old_commands {
            // `OPTIN`: the node tracks only keys that the client registers, and reports flushes in
            // any case. The client asks for this before it reads the marker, so that it misses no
            // flush between the two.
            say(Step::Track, &[b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"]);
        }
        say(Step::Info, &[b"INFO"]);
        if let Some(key) = marker {
            say(Step::Time, &[b"TIME"]);
            say(Step::Marker, &[b"GET", key.as_bytes()]);
        }
        if members {
            say(Step::Members, &[b"GET", MEMBERS.as_bytes()]);
        }
        for name in [ScriptName::Release, ScriptName::Extend] {
            say(Step::Load(name), &[b"SCRIPT", b"LOAD", name.script().source.as_bytes()]);
        }
        // Before the trial of a script: a node with such a command may refuse scripts.
        say(Step::Native, &[b"COMMAND", b"INFO", b"DELIFEQ", b"DELEX"]);
        say(Step::Run, &[b"EVAL", RELEASE.source.as_bytes(), b"0"]);
        if !name.is_empty() {
            say(Step::Name, &[b"CLIENT", b"SETNAME", name.as_bytes()]);
        }
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        for (field, value) in [(&b"LIB-NAME"[..], &b"redlatch"[..]), (b"LIB-VER", version)] {
            say(Step::Name, &[b"CLIENT", b"SETINFO", field, value]);
        }
    }

    /// Takes note that the script that writes the node marker was sent: its answer ends the
    /// handshake.
    pub fn mark(&mut self) {
        self.unanswered += 1;
        self.found = Some(self.vetted.marker);
    }

    /// Takes an answer.
    pub fn handle(&mut self, step: Step, fact: Fact, allow_eviction: bool) -> Progress {
        self.unanswered = self.unanswered.saturating_sub(1);
        match (step, fact) {
            (Step::Track, Fact::Fine) => self.vetted.tracks = true,
            (_, Fact::Fine | Fact::Members) => {}
            (step, Fact::ClientId(client_id)) => {
                self.vetted.client_id = client_id;
                self.vetted.resp3 |= step == Step::Hello;
            }
            (_, Fact::Info(info)) => self.vet(info, allow_eviction),
            (_, Fact::Time(micros)) => self.vetted.micros = Some(micros),
            (_, Fact::Marker(marker)) => self.vetted.marker = marker,
            (_, Fact::Native(native)) => self.vetted.native = native,
            (Step::Hello, Fact::Refused(NodeError::UnknownCommand | NodeError::NoPermission)) => {
                self.hello_unknown = true;
            }
            // Some servers check the credentials before they look up the command.
            (Step::Hello, Fact::Refused(NodeError::NoAuth)) if self.hello_had_credentials => {
                self.hello_unknown = true;
            }
            // This error comes from inside the script, so the node ran it.
            (Step::Run, Fact::Refused(NodeError::Other)) => {}
            // The node's own commands do for a plain lock. Without them the node is rejected,
            // because every release would fail.
            (
                Step::Run,
                Fact::Refused(
                    NodeError::NoPermission | NodeError::UnknownCommand | NodeError::NoLua,
                ),
            ) if self.vetted.native.is_some() => {}
            (Step::Load(_), Fact::Refused(NodeError::NoLua)) => {}
            // The client can do without these. A node that refuses `INFO` is distrusted. Without
            // `SCRIPT LOAD` or `COMMAND INFO` a script is sent by its source first; without
            // tracking the client does not notice a flush; without the connection's number, the
            // next connection cannot end this one after it is lost.
            (
                Step::Id | Step::Info | Step::Load(_) | Step::Native | Step::Track | Step::Time,
                Fact::Refused(
                    NodeError::NoPermission | NodeError::UnknownCommand | NodeError::Other,
                ),
            ) => {}
            // The user may not use the marker's key: the node is judged without one.
            (
                Step::Marker | Step::Mark,
                Fact::Refused(
                    NodeError::NoPermission
                    | NodeError::UnknownCommand
                    | NodeError::WrongType
                    | NodeError::Other,
                ),
            ) => self.vetted.marker = MarkerState::Unavailable,
            // The list of masters is not checked at this node.
            (
                Step::Members,
                Fact::Refused(
                    NodeError::NoPermission
                    | NodeError::UnknownCommand
                    | NodeError::WrongType
                    | NodeError::Other,
                ),
            ) => {}
            // The marker cannot be written for a while: the node's memory is full, or a script
            // runs.
            (Step::Mark, Fact::Refused(_)) => self.vetted.marker = MarkerState::Absent,
            // Nothing depends on the name.
            (Step::Name, Fact::Refused(_)) => {}
            (_, Fact::Refused(cause)) => self.note_error(cause),
        }
        if self.unanswered == 0 && self.vetted.micros.is_none() {
            // Without an answer to `TIME`, the marker's age is not known, and the script that
            // writes the marker would fail, too.
            self.vetted.marker = MarkerState::Unavailable;
        }
        match (self.unanswered, self.hello_unknown, self.error) {
            (0, true, _) => Progress::Again,
            (0, false, Some(cause)) => Progress::Rejected(cause),
            (0, false, None) => Progress::Vetted,
            _ => Progress::More,
        }
    }

    /// What is known of the node.
    pub fn vetted(&self) -> &Vetted {
        &self.vetted
    }

    /// The marker as it was found, if it has been written since.
    pub fn found(&self) -> Option<MarkerState> {
        self.found
    }

    /// The first thing that was found wrong so far. If the node ends the connection during the
    /// handshake, this is why.
    pub fn error(&self) -> Option<NodeError> {
        self.error
    }

    fn vet(&mut self, info: Info, allow_eviction: bool) {
        self.vetted.info = info;
        let errors = [
            (info.cluster, NodeError::Cluster),
            (info.replica, NodeError::Replica),
            (info.evicts && !allow_eviction, NodeError::Evicts),
            (info.loading, NodeError::Loading),
        ];
        if let Some((_, cause)) = errors.iter().find(|(found, _)| *found) {
            self.note_error(*cause);
        }
    }

    /// Keeps only the first trouble: the later ones follow from it.
    fn note_error(&mut self, cause: NodeError) {
        self.error.get_or_insert(cause);
    }
}

/// Whether this error from the marker's commands is lasting: the user may not use the key, or a
/// command.
pub const fn forbids_a_marker(cause: NodeError) -> bool {
    matches!(
        cause,
        NodeError::NoPermission
            | NodeError::UnknownCommand
            | NodeError::WrongType
            | NodeError::Other
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::settings::Secret;
    use crate::proto::wire::resp::Reply;

    fn commands(handshake: &mut Handshake, node: &NodeSettings) -> Vec<(Step, String)> {
        let mut commands = Vec::new();
        handshake.begin(node, "me", None, false, |step, arguments| {
            let words: Vec<_> = arguments.iter().map(|a| String::from_utf8_lossy(a)).collect();
            commands.push((step, words.join(" ")));
        });
        commands
    }

    fn info(text: &str) -> Fact {
        Step::Info.read(&Reply::Bulk(text.as_bytes())).unwrap()
    }

    fn end(handshake: &mut Handshake, facts: &[(Step, Fact)]) -> Progress {
        let (last, first) = facts.split_last().unwrap();
        for &(step, fact) in first {
            assert_eq!(handshake.handle(step, fact, false), Progress::More);
        }
        handshake.handle(last.0, last.1, false)
    }

    const HELLO: (Step, Fact) = (Step::Hello, Fact::ClientId(Some(9)));
    const LOADED: (Step, Fact) = (Step::Load(ScriptName::Release), Fact::Fine);
    const RAN: (Step, Fact) = (Step::Run, Fact::Refused(NodeError::Other));
    const NATIVE: (Step, Fact) = (Step::Native, Fact::Native(None));
    const TRACKED: (Step, Fact) = (Step::Track, Fact::Fine);
    const NAMED: (Step, Fact) = (Step::Name, Fact::Fine);

    /// The answers after `INFO`, all of them good.
    const REST: [(Step, Fact); 8] = [LOADED, LOADED, RAN, NATIVE, TRACKED, NAMED, NAMED, NAMED];

    /// The same answers, all refused.
    fn all_refused(why: NodeError) -> [(Step, Fact); 8] {
        REST.map(|(step, _)| (step, Fact::Refused(why)))
    }

    #[test]
    fn plain_master_passes_the_handshake() {
        let mut handshake = Handshake::default();
        let steps = commands(&mut handshake, &NodeSettings::new("a"));
        assert_eq!(steps[0].1, "HELLO 3");
        let run_id = "0123456789abcdef0123456789abcdef01234567";
        let text = format!(
            "# Server\r\nrun_id:{run_id}\r\nuptime_in_seconds:-3\r\nrole:master\r\nloading:0\r\n\
             maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\ncluster_enabled:0\r\n"
        );
        assert_eq!(steps[7].1, "CLIENT SETNAME me");
        assert_eq!(steps[8].1, "CLIENT SETINFO LIB-NAME redlatch");
        let facts = [&[HELLO, (Step::Info, info(&text))], &REST[..]].concat();
        assert_eq!(end(&mut handshake, &facts), Progress::Vetted);
        let vetted = handshake.vetted();
        assert_eq!(vetted.client_id, Some(9));
        assert_eq!(vetted.info.identity.run_id.unwrap(), run_id.as_bytes());
        assert_eq!(vetted.info.uptime_seconds, Some(-3));
    }

    #[test]
    fn handshake_rejects_replicas_and_others_with_the_reason() {
        let cases = [
            ("role:slave", NodeError::Replica),
            ("loading:1", NodeError::Loading),
            ("cluster_enabled:1", NodeError::Cluster),
            ("maxmemory:1\r\nmaxmemory_policy:allkeys-lru", NodeError::Evicts),
        ];
        for (text, cause) in cases {
            let mut handshake = Handshake::default();
            commands(&mut handshake, &NodeSettings::new("a"));
            let facts = [&[HELLO, (Step::Info, info(text))], &REST[..]].concat();
            assert_eq!(end(&mut handshake, &facts), Progress::Rejected(cause), "{text}");
        }
    }

    #[test]
    fn credentials_and_database_are_sent_first() {
        let mut node = NodeSettings::new("a");
        node.password = Some(Secret::new("pw"));
        node.db = 3;
        let mut handshake = Handshake::default();
        let steps = commands(&mut handshake, &node);
        assert_eq!(steps[0], (Step::Hello, "HELLO 3 AUTH default pw".into()));
        assert_eq!(steps[1], (Step::Select, "SELECT 3".into()));
        let refused = (Step::Hello, Fact::Refused(NodeError::WrongPassword));
        let rest = Fact::Refused(NodeError::NoAuth);
        let facts = [refused, (Step::Select, rest), (Step::Info, rest)];
        let facts = [&facts[..], &all_refused(NodeError::NoAuth)].concat();
        assert_eq!(end(&mut handshake, &facts), Progress::Rejected(NodeError::WrongPassword));
    }

    #[test]
    fn handshake_without_hello_uses_auth() {
        let mut node = NodeSettings::new("a");
        node.password = Some(Secret::new("pw"));
        let mut handshake = Handshake::default();
        commands(&mut handshake, &node);
        let rest = Fact::Refused(NodeError::NoAuth);
        for why in [NodeError::UnknownCommand, NodeError::NoAuth] {
            handshake = Handshake::default();
            commands(&mut handshake, &node);
            let unknown = (Step::Hello, Fact::Refused(why));
            let facts =
                [&[unknown, (Step::Info, rest)], &all_refused(NodeError::NoAuth)[..]].concat();
            assert_eq!(end(&mut handshake, &facts), Progress::Again);
        }
        let steps = commands(&mut handshake, &node);
        assert_eq!(steps[0], (Step::Auth, "AUTH pw".into()));
        assert_eq!(steps[1], (Step::Id, "CLIENT ID".into()));
        let id = Step::Id.read(&Reply::Integer(7)).unwrap();
        let facts = [(Step::Auth, Fact::Fine), (Step::Id, id), (Step::Info, info("role:master"))];
        let facts = [&facts[..], &[LOADED, LOADED, RAN, NATIVE, NAMED, NAMED, NAMED]].concat();
        assert_eq!(end(&mut handshake, &facts), Progress::Vetted);
        assert_eq!(handshake.vetted().client_id, Some(7));
    }

    #[test]
    fn handshake_needs_scripts_and_no_optional_commands() {
        for why in [NodeError::NoPermission, NodeError::UnknownCommand] {
            let refused = Fact::Refused(why);
            let vetted = |run| {
                let mut handshake = Handshake::default();
                commands(&mut handshake, &NodeSettings::new("a"));
                let mut rest = all_refused(why);
                rest[2].1 = run;
                let facts = [&[HELLO, (Step::Info, refused)], &rest[..]].concat();
                end(&mut handshake, &facts)
            };
            assert_eq!(vetted(Fact::Fine), Progress::Vetted);
            assert_eq!(vetted(Fact::Refused(NodeError::Other)), Progress::Vetted);
            assert_eq!(vetted(refused), Progress::Rejected(why));
        }
    }

    #[test]
    fn node_without_scripts_is_accepted_if_it_has_a_command_of_its_own() {
        for why in [NodeError::NoPermission, NodeError::UnknownCommand, NodeError::NoLua] {
            for native in [Some(Native::Delifeq), Some(Native::Delex), None] {
                let mut handshake = Handshake::default();
                let steps = commands(&mut handshake, &NodeSettings::new("a"));
                let place = |step| steps.iter().position(|&(it, _)| it == step).unwrap();
                assert!(place(Step::Native) < place(Step::Run));
                let refused = Fact::Refused(why);
                let load = (LOADED.0, refused);
                let trial =
                    [load, load, (Step::Native, Fact::Native(native)), (Step::Run, refused)];
                let facts = [&[HELLO, (Step::Info, info("role:master"))], &trial[..], &REST[4..]];
                let expected = match native {
                    Some(_) => Progress::Vetted,
                    None => Progress::Rejected(why),
                };
                assert_eq!(end(&mut handshake, &facts.concat()), expected, "{why:?} {native:?}");
            }
        }
    }

    #[test]
    fn a_user_that_may_run_no_scripts_is_rejected() {
        let mut handshake = Handshake::default();
        commands(&mut handshake, &NodeSettings::new("a"));
        let refused = Fact::Refused(NodeError::NoPermission);
        let info = (Step::Info, info("role:master"));
        let facts = [HELLO, info, (LOADED.0, refused), (LOADED.0, refused)];
        let facts = [&facts[..], &[(Step::Run, refused)], &REST[3..]].concat();
        assert_eq!(end(&mut handshake, &facts), Progress::Rejected(NodeError::NoPermission));
    }
}
