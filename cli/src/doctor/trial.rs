//! Trials: tries every command that the library uses on a key of doctor's own. So doctor finds what
//! an ACL, a managed server or a full disk refuses before a lock needs it.
//!
//! All commands go in one write that ends with the deletion of the key, so nothing is left on the
//! node if doctor or the connection ends half-way. The key has a short ttl in case the node refuses
//! the deletion. The hazard is to take a refusal of the key for a refusal of the command.

use redlatch::proto::command::{EXTEND, RELEASE};
use redlatch::proto::sets::{ACQUIRE, ADOPT};
use redlatch::proto::{counter_key, line_key};
use redlatch::{LockToken, NodeError};

use crate::connection::{Answer, Connection, Trouble};

/// The ttl of a key that cannot be deleted, in milliseconds.
const TTL: &[u8] = b"5000";

/// A channel like those that waiters in line listen to, and one that no client listens to.
const CHANNEL: &[u8] = b"redlatch:doctor";
const OTHER_CHANNEL: &[u8] = b"redlatch:nobody";

/// The name of all trials that touch the counter of a fencing number.
pub const FENCING: &str = "fencing";

/// The name of the trials that touch the key of a line with commands that locks also need.
pub const LINE: &str = "line";

/// The name of the trial of `SET` with `IFEQ`, which takes the place of scripts.
pub const REPLACE: &str = "SET IFEQ";

/// The key that is tried, and the two tokens that are written to it.
#[derive(Debug, Clone)]
pub struct Keys {
    pub key: String,
    pub token: LockToken,
    pub other: LockToken,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    pub command: &'static str,
    pub outcome: Outcome,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The answer was not the expected one.
    Odd,
    /// The node refused the command; its error line.
    Refused(NodeError, String),
}

impl Trial {
    /// Whether the user may not use the command, or the server does not have it: an operator has to
    /// change something.
    pub fn is_forbidden(&self) -> bool {
        let Outcome::Refused(cause, _) = &self.outcome else { return false };
        use NodeError::{NoDatabase, NoLua, NoPermission, UnknownCommand};
        matches!(cause, NoPermission | UnknownCommand | NoDatabase | NoLua)
    }
}

type Question<'a> = (&'static str, Vec<&'a [u8]>);

/// Tries all commands. `notified` says that the connection speaks RESP3, so that it can send other
/// commands after SUBSCRIBE, and `waits` that grants need WAIT.
pub fn run(
    connection: &mut Connection,
    db: u32,
    keys: &Keys,
    (notified, waits): (bool, bool),
) -> Result<Vec<Trial>, Trouble> {
    if db != 0 {
        let answer = connection.ask(&[b"SELECT", db.to_string().as_bytes()])?;
        if let Answer::Error(_) = answer {
            // Without the database of the URL, the keys would be written to database 0, which may
            // belong to another program.
            return Ok(judged([("SELECT", answer)].into_iter()));
        }
    }
    let counter = counter_key(keys.key.as_bytes());
    let mut questions = about_the_connection();
    if notified {
        questions.push(("SUBSCRIBE", vec![b"SUBSCRIBE", CHANNEL]));
    }
    if waits {
        questions.push(("WAIT", vec![b"WAIT", b"0", b"1"]));
    }
    questions.push(("PUBLISH", vec![b"PUBLISH", OTHER_CHANNEL, b""]));
    questions.push(("PUBSUB NUMSUB", vec![b"PUBSUB", b"NUMSUB", OTHER_CHANNEL]));
    questions.extend(about_the_counter(keys, &counter));
    let line = line_key(keys.key.as_bytes());
    questions.extend(about_the_key(keys, &line));
    let words: Vec<&[&[u8]]> = questions.iter().map(|(_, words)| words.as_slice()).collect();
    let answers = connection.ask_all(&words)?;
    let commands = questions.iter().map(|(command, _)| *command);
    Ok(judged(commands.zip(answers)))
}

fn about_the_connection<'a>() -> Vec<Question<'a>> {
    vec![
        ("INFO", vec![b"INFO", b"server"]),
        ("TIME", vec![b"TIME"]),
        ("SCRIPT LOAD", vec![b"SCRIPT", b"LOAD", RELEASE.source.as_bytes()]),
        ("SCRIPT LOAD", vec![b"SCRIPT", b"LOAD", EXTEND.source.as_bytes()]),
        ("COMMAND INFO", vec![b"COMMAND", b"INFO", b"DELIFEQ", b"DELEX"]),
        ("CLIENT TRACKING", vec![b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"]),
        ("CLIENT SETNAME", vec![b"CLIENT", b"SETNAME", b"redlatch-doctor"]),
        ("CLIENT SETINFO", vec![b"CLIENT", b"SETINFO", b"LIB-NAME", b"redlatch"]),
        // No connection has this id, because ids count up from 1.
        ("CLIENT KILL", vec![b"CLIENT", b"KILL", b"ID", b"9223372036854775807"]),
    ]
}

/// Acquires a fenced lock and deletes its counter. If the node refuses the deletion, the counter
/// expires with its ttl.
fn about_the_counter<'a>(keys: &'a Keys, counter: &'a [u8]) -> Vec<Question<'a>> {
    let (script, key) = (ACQUIRE.source.as_bytes(), keys.key.as_bytes());
    let token = &keys.token.digits()[..];
    let acquire = [&b"EVAL"[..], script, b"2", key, counter, token, TTL, TTL, b"1000", b"1"];
    vec![
        (FENCING, acquire.to_vec()),
        (FENCING, vec![b"DEL", counter]),
        (FENCING, vec![b"EVAL", RELEASE.source.as_bytes(), b"1", key, token]),
    ]
}

fn about_the_key<'a>(keys: &'a Keys, line: &'a [u8]) -> Vec<Question<'a>> {
    let key = keys.key.as_bytes();
    let (token, other) = (&keys.token.digits()[..], &keys.other.digits()[..]);
    let (release, extend) = (RELEASE.source.as_bytes(), EXTEND.source.as_bytes());
    let set = || ("SET", vec![b"SET", key, token, b"NX", b"PX", TTL]);
    vec![
        set(),
        ("GET", vec![b"GET", key]),
        ("PTTL", vec![b"PTTL", key]),
        ("PEXPIRE", vec![b"PEXPIRE", key, TTL]),
        ("EXISTS", vec![b"EXISTS", key]),
        ("GETRANGE", vec![b"GETRANGE", key, b"0", b"55"]),
        (REPLACE, vec![b"SET", key, token, b"IFEQ", token, b"GET", b"PX", TTL]),
        ("CLIENT CACHING", vec![b"CLIENT", b"CACHING", b"YES"]),
        ("PTTL", vec![b"PTTL", key]),
        ("EVAL", vec![b"EVAL", extend, b"1", key, token, TTL]),
        ("EVALSHA", vec![b"EVALSHA", EXTEND.sha1.as_bytes(), b"1", key, token, TTL]),
        ("EVAL", vec![b"EVAL", ADOPT.as_bytes(), b"1", key, token, other, TTL]),
        ("EVALSHA", vec![b"EVALSHA", RELEASE.sha1.as_bytes(), b"1", key, other]),
        ("DEL", vec![b"DEL", key]),
        set(),
        ("EVAL", vec![b"EVAL", release, b"1", key, token]),
        set(),
        ("DELIFEQ", vec![b"DELIFEQ", key, token]),
        set(),
        ("DELEX", vec![b"DELEX", key, b"IFEQ", token]),
        ("ZADD", vec![b"ZADD", line, b"1", b"doctor"]),
        (LINE, vec![b"PEXPIRE", line, TTL]),
        ("ZRANK", vec![b"ZRANK", line, b"doctor"]),
        ("ZSCORE", vec![b"ZSCORE", line, b"doctor"]),
        ("ZRANGE", vec![b"ZRANGE", line, b"0", b"0"]),
        ("ZREM", vec![b"ZREM", line, b"doctor"]),
        (LINE, vec![b"DEL", line]),
        ("DEL", vec![b"DEL", key]),
    ]
}

/// One outcome for each command: the first that is not `Done`, or else `Done`.
fn judged(answers: impl Iterator<Item = (&'static str, Answer)>) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    for (command, answer) in answers {
        let outcome = outcome(command, answer);
        match trials.iter_mut().find(|trial| trial.command == command) {
            Some(trial) if trial.outcome == Outcome::Done => trial.outcome = outcome,
            Some(_) => {}
            None => trials.push(Trial { command, outcome }),
        }
    }
    trials
}

fn outcome(command: &str, answer: Answer) -> Outcome {
    match answer {
        Answer::Error(line) => Outcome::Refused(NodeError::of_error(line.as_bytes()), line),
        // A 1 from a script says that it found the key with the expected token.
        Answer::Number(1) | Answer::Text(_) | Answer::Many(_) => Outcome::Done,
        Answer::Number(_) | Answer::Nothing if !matches!(command, "EVAL" | "EVALSHA") => {
            Outcome::Done
        }
        Answer::Number(_) | Answer::Nothing => Outcome::Odd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_answer_to_a_command_counts() {
        let ok = || Answer::Text("OK".into());
        let error = |line: &str| Answer::Error(line.into());
        let trials = judged(
            [
                ("SET", ok()),
                ("EVAL", Answer::Number(1)),
                ("EVAL", error("NOPERM no")),
                ("EVAL", Answer::Number(1)),
                ("SET", Answer::Nothing),
                ("EVALSHA", Answer::Number(0)),
            ]
            .into_iter(),
        );
        let forbidden: Vec<&str> =
            trials.iter().filter(|trial| trial.is_forbidden()).map(|trial| trial.command).collect();
        assert_eq!(forbidden, ["EVAL"]);
        assert_eq!(trials[0].outcome, Outcome::Done, "the key was there: that is an answer");
        assert_eq!(trials[2].outcome, Outcome::Odd);
    }

    #[test]
    fn trials_end_with_the_deletion_of_their_key() {
        use rand::{SeedableRng, rngs::StdRng};
        let token = LockToken::random(&mut StdRng::from_seed([3; 32]));
        let keys = Keys { key: "redlatch-doctor:1".into(), token: token.clone(), other: token };
        let questions = about_the_key(&keys, b"line");
        assert_eq!(questions.last().map(|question| question.0), Some("DEL"));
    }
}
