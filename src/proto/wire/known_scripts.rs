//! Which scripts the node at the other end of a connection knows by their SHA1.
//!
//! A script is sent by its SHA1 if the node knows it, and else by its source, after which the node
//! knows it. So a client loads only what it uses.
//!
//! The hazard is a node that forgets its scripts. It answers `-NOSCRIPT`, so a client that sends a
//! SHA1 has to read the answer. A caller that may not read the answer sends the source, even if the
//! node knows the script.

use crate::proto::error::NodeError;
use crate::proto::wire::ask::{Kind, Names};
use crate::proto::wire::command::{EXTEND, Form, RELEASE, Script};
use crate::proto::wire::line::{HAND_OVER, JOIN};
use crate::proto::wire::sets::{ACQUIRE, EXTEND_SET, RELEASE_SET};

/// A script that is sent by its SHA1. The others are rare, and always sent by their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptName {
    /// [`RELEASE`].
    Release,
    /// [`EXTEND`].
    Extend,
    /// [`ACQUIRE`].
    Acquire,
    /// [`EXTEND_SET`].
    ExtendSet,
    /// [`RELEASE_SET`].
    ReleaseSet,
    /// [`JOIN`].
    Join,
    /// [`HAND_OVER`].
    HandOver,
}

/// How many such scripts there are.
const SCRIPTS: usize = ScriptName::HandOver as usize + 1;

impl ScriptName {
    /// The script by which this verb is asked about these keys; `None` if it is not one of these
    /// scripts.
    #[inline]
    pub const fn of(kind: Kind, names: Names) -> Option<ScriptName> {
        Some(match (kind, names) {
            (Kind::Acquire | Kind::Heal, Names::AllKeys | Names::AllKeysAndCounters) => {
                ScriptName::Acquire
            }
            (Kind::Extend | Kind::Claim, Names::Key) => ScriptName::Extend,
            (Kind::Extend, Names::AllKeys) => ScriptName::ExtendSet,
            (Kind::Extend | Kind::Claim | Kind::WriteBack, Names::AllKeysAndCounters) => {
                ScriptName::ExtendSet
            }
            (Kind::Release, Names::Key) => ScriptName::Release,
            (Kind::Release, Names::KeyAndLine | Names::AllKeysAndLines) => ScriptName::HandOver,
            (Kind::Release, Names::AllKeys) => ScriptName::ReleaseSet,
            (Kind::Join, Names::KeyAndLine) => ScriptName::Join,
            _ => return None,
        })
    }

    /// The script.
    pub const fn script(self) -> &'static Script {
        match self {
            ScriptName::Release => &RELEASE,
            ScriptName::Extend => &EXTEND,
            ScriptName::Acquire => &ACQUIRE,
            ScriptName::ExtendSet => &EXTEND_SET,
            ScriptName::ReleaseSet => &RELEASE_SET,
            ScriptName::Join => &JOIN,
            ScriptName::HandOver => &HAND_OVER,
        }
    }
}

/// What is known of one script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Knowledge {
    /// The source of the script was not sent yet, or the node forgot it.
    #[default]
    Unsent,
    /// The node knows it, or will once it has executed what is in flight.
    Known,
    /// The node does not run scripts by their SHA1 for this user.
    ShaRefused,
}

/// Which scripts the node knows. Each connection has its own list, because the next one may lead to
/// another node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct KnownScripts {
    scripts: [Knowledge; SCRIPTS],
    /// The node runs no script for this user.
    refuses_all: bool,
    /// The node refuses the [`transaction`](crate::proto::wire::transaction) that takes the place
    /// of a script.
    refuses_transactions: bool,
}

impl KnownScripts {
    /// How the script is sent next if its answer is read.
    #[inline]
    pub fn form_of(&self, name: ScriptName) -> Form {
        match self.scripts[name as usize] {
            Knowledge::Known => Form::Sha,
            Knowledge::Unsent | Knowledge::ShaRefused => Form::Source,
        }
    }

    /// Whether the node refused a transaction, and probably refuses every one.
    #[inline]
    pub fn refuses_transactions(&self) -> bool {
        self.refuses_transactions
    }

    /// Whether the node runs no script for this user.
    pub fn refuses_all(&self) -> bool {
        self.refuses_all
    }

    /// Takes note of an error line that may say that the node runs no script for this user.
    /// `of_trial`: it answers the script of the handshake, which touches no key. The answer to any
    /// other request may be about a key, or about a command inside the script.
    pub fn note_refusal(&mut self, line: &[u8], of_trial: bool) {
        // Redis 6.0 to 8.6 and Valkey 9.1 name the command so.
        const NAME: &[u8] = b"'eval'";
        let refuses = match NodeError::of_error(line) {
            NodeError::NoLua => true,
            NodeError::UnknownCommand => of_trial,
            NodeError::NoPermission => {
                of_trial || line.windows(NAME.len()).any(|part| part == NAME)
            }
            _ => false,
        };
        if refuses {
            *self = KnownScripts { refuses_all: true, ..KnownScripts::default() };
        }
    }

    /// Takes note that the node answered a command of a transaction by this error line.
    pub fn note_transaction_error(&mut self, line: &[u8]) {
        use NodeError::{NoPermission, Other, UnknownCommand};
        // `EXECABORT` repeats the error of `EXEC`, or says that there was an earlier error.
        const ABORT: &[u8] = b"EXECABORT Transaction discarded because of";
        let of_exec = line.strip_prefix(ABORT).map(|rest| rest.strip_prefix(b": "));
        if let Some(line) = of_exec.unwrap_or(Some(line)) {
            let cause = NodeError::of_error(line);
            self.refuses_transactions |= matches!(cause, NoPermission | UnknownCommand | Other);
        }
    }

    /// Takes note that the source was sent, to be run or to be loaded.
    pub fn note_source_sent(&mut self, name: ScriptName) {
        let known = &mut self.scripts[name as usize];
        if *known == Knowledge::Unsent {
            *known = Knowledge::Known;
        }
    }

    /// Takes note that the node answered the script by an error.
    pub fn note_error(&mut self, name: ScriptName, form: Form, cause: NodeError) {
        let known = &mut self.scripts[name as usize];
        match (form, cause) {
            (Form::Sha, NodeError::NoScript) => *known = Knowledge::Unsent,
            (Form::Sha, NodeError::NoPermission | NodeError::UnknownCommand) => {
                *known = Knowledge::ShaRefused;
            }
            // The script ran, and found a key with a value of another program.
            (Form::Source, NodeError::WrongType) => {}
            // The node may have refused the request before it looked for the script.
            (Form::Source, _) if *known == Knowledge::Known => *known = Knowledge::Unsent,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to a script on a connection.
    enum Step {
        Sent,
        Error(Form, NodeError),
    }

    #[test]
    fn script_is_sent_by_its_sha1_while_the_node_is_known_to_know_it() {
        use Form::{Sha, Source};
        use NodeError::{Loading, NoPermission, NoScript, OutOfMemory, UnknownCommand, WrongType};
        use Step::{Error, Sent};
        let cases: [(&str, &[Step], Form); 13] = [
            ("nothing was sent", &[], Source),
            ("by its source, or loaded", &[Sent], Sha),
            ("forgotten", &[Sent, Error(Sha, NoScript)], Source),
            ("forgotten, and sent again", &[Sent, Error(Sha, NoScript), Sent], Sha),
            ("no right to EVALSHA", &[Sent, Error(Sha, NoPermission)], Source),
            ("no right, for all of the connection", &[Error(Sha, NoPermission), Sent], Source),
            ("no EVALSHA", &[Sent, Error(Sha, UnknownCommand), Sent], Source),
            ("the script failed", &[Sent, Error(Sha, OutOfMemory)], Sha),
            ("no right to load it", &[Sent, Error(Source, NoPermission)], Source),
            ("the node was not ready for it", &[Sent, Error(Source, Loading)], Source),
            ("sent again since", &[Sent, Error(Source, Loading), Sent], Sha),
            ("another program's key", &[Sent, Error(Source, WrongType)], Sha),
            (
                "no right to EVALSHA, and an error of the source",
                &[Error(Sha, NoPermission), Sent, Error(Source, Loading), Sent],
                Source,
            ),
        ];
        for (what, steps, form) in cases {
            let mut known = KnownScripts::default();
            for step in steps {
                match *step {
                    Sent => known.note_source_sent(ScriptName::Join),
                    Error(form, cause) => known.note_error(ScriptName::Join, form, cause),
                }
            }
            assert_eq!(known.form_of(ScriptName::Join), form, "{what}");
            assert_eq!(known.form_of(ScriptName::HandOver), Source, "{what}: another script");
        }
    }

    #[test]
    fn no_script_is_sent_to_a_node_that_says_that_it_runs_none() {
        for (line, in_trial, elsewhere) in [
            ("ERR Could not find scripting engine 'lua'", true, true),
            ("NOPERM User w has no permissions to run the 'eval' command", true, true),
            (
                "NOPERM this user has no permissions to run the 'eval' command or its sub",
                true,
                true,
            ),
            ("NOPERM no", true, false),
            ("NOPERM No permissions to access a key", true, false),
            ("ERR unknown command 'EVAL', with args", true, false),
            ("ERR Lua redis lib command arguments must be strings or integers", false, false),
            ("BUSY Redis is busy running a script.", false, false),
            ("NOSCRIPT No matching script.", false, false),
        ] {
            for (of_trial, refuses) in [(true, in_trial), (false, elsewhere)] {
                let mut known = KnownScripts::default();
                known.note_source_sent(ScriptName::Extend);
                known.note_refusal(line.as_bytes(), of_trial);
                assert_eq!(known.refuses_all(), refuses, "{line}, {of_trial}");
                let form = if refuses { Form::Source } else { Form::Sha };
                assert_eq!(known.form_of(ScriptName::Extend), form, "{line}, {of_trial}");
            }
        }
    }

    #[test]
    fn transactions_are_not_sent_to_a_node_that_refuses_their_commands() {
        for (line, refuses) in [
            ("NOPERM this user has no permissions to run the 'multi' command", true),
            ("ERR unknown command 'MULTI'", true),
            ("ERR this proxy knows no transactions", true),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("EXECABORT Transaction discarded because of previous errors.", false),
            ("EXECABORT Transaction discarded because of: NOPERM no right to 'exec'", true),
            ("EXECABORT Transaction discarded because of: OOM command not allowed", false),
        ] {
            let mut known = KnownScripts::default();
            known.note_transaction_error(line.as_bytes());
            assert_eq!(known.refuses_transactions(), refuses, "{line}");
        }
    }

    #[test]
    fn script_names_stand_for_scripts_of_their_own() {
        use Names::{AllKeys, AllKeysAndCounters, AllKeysAndLines, Key, KeyAndLine};
        let all_names = [Key, KeyAndLine, AllKeys, AllKeysAndLines, AllKeysAndCounters];
        let kinds = [Kind::Acquire, Kind::Extend, Kind::Release, Kind::Join];
        let named = |kind| all_names.map(|names| ScriptName::of(kind, names));
        let mut found: Vec<&str> =
            kinds.into_iter().flat_map(named).flatten().map(|it| it.script().sha1).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), SCRIPTS);
    }
}
