//! The examination of one node over doctor's own connection: a plain value with the node's answers,
//! which `checks` judges.
//!
//! Only one key of ours is written, in one write with its deletion. The hazard is a node that falls
//! silent half-way: what was learned until then is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::Address;
use redlatch::proto::NodeSettings;
use redlatch::{clock, clock::Instant};

use super::marker;
use super::name::{self, Place};
use super::trial::{self, Keys, Trial};
use crate::connection::{Answer, Connection, Greeting, Patience, Tls, Trouble, addresses};

/// How long the clock is observed: long enough to see a hundredth beyond the network's variation.
pub const WATCHED: Duration = Duration::from_secs(1);

/// How often the node is asked for its time at the beginning and at the end of that, if it is fast.
const READINGS: usize = 12;

/// How often in any case: the fastest answer of so many is fast even if one was delayed.
const READINGS_OF_A_SLOW_ONE: usize = 3;

/// From which round trip on a node counts as slow.
const SLOW: Duration = Duration::from_millis(400);

/// How often the node is asked for its `run_id`, on one connection.
const IDENTITIES: usize = 6;

/// The settings that say something about locks. All may be refused.
const SETTINGS: [&str; 3] = ["appendfsync", "timeout", "maxclients"];

/// What an examination needs to know.
#[derive(Debug, Clone)]
pub struct Manner {
    pub tls: Option<Tls>,
    pub patience: Patience,
    pub keys: Keys,
    /// The key of the node marker, if the restart guard needs one.
    pub marker: Option<String>,
}

/// What one node answered.
#[derive(Debug, Default)]
pub struct Examination {
    /// The node answered anything at all.
    pub answered: bool,
    /// The node let us in.
    pub handshake_answered: bool,
    /// The node speaks RESP3, which pushes need.
    pub hello: Option<Answer>,
    /// The fields of `INFO`; empty if it was refused.
    pub info: BTreeMap<String, String>,
    /// The settings that the node did not refuse to return.
    pub settings: BTreeMap<&'static str, String>,
    /// The servers that answered on one connection, by `run_id`, in order.
    pub identities: Vec<String>,
    /// The server at the other end of another connection.
    pub elsewhere: Option<String>,
    /// The servers at the addresses of its name, if that has several.
    pub places: Vec<Place>,
    /// A trial of each command of the library.
    pub trials: Vec<Trial>,
    /// Its node marker, after the library's client had time to write it.
    pub marker: marker::Seen,
    /// Readings of the node's clock.
    pub readings: Vec<Reading>,
    /// How long the node's answers took.
    pub round_trips: Vec<Duration>,
    /// Why the examination ended early.
    pub trouble: Option<Trouble>,
}

/// A reading of a node's clock, taken at some moment between `asked_at` and `read_at`.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Microseconds on the node's clock.
    pub micros: u64,
    /// When the reading was asked for.
    pub asked_at: Instant,
    /// When the answer was read.
    pub read_at: Instant,
}

impl Examination {
    /// A field of `INFO`.
    pub fn info(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    /// A field of `INFO` that is a number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.info(name)?.parse().ok()
    }

    /// Whether commands about keys were tried, so that the database of the URL is chosen.
    fn is_in_its_database(&self) -> bool {
        let chosen = |trial: &Trial| trial.command != "SELECT";
        !self.trials.is_empty() && self.trials.iter().all(chosen)
    }

    /// Whether such a server could grant locks at all.
    pub fn is_master(&self) -> bool {
        let is = |name, value| self.info(name).is_none_or(|reported| reported == value);
        is("role", "master") && is("loading", "0") && is("cluster_enabled", "0")
    }
}

/// Examines a node.
pub fn examine(address: &Address, node: &NodeSettings, manner: &Manner) -> Examination {
    let mut seen = Examination::default();
    seen.trouble = examine_into(&mut seen, address, node, manner).err();
    seen
}

fn examine_into(
    seen: &mut Examination,
    address: &Address,
    node: &NodeSettings,
    manner: &Manner,
) -> Result<(), Trouble> {
    let mut connection = Connection::open(address, manner.tls.as_ref(), manner.patience)?;
    begin_handshake(&mut connection, node, seen)?;
    seen.info = match connection.ask(&[b"INFO"])? {
        Answer::Text(text) => fields(&text),
        _ => BTreeMap::new(),
    };
    let questions = SETTINGS.map(|name| [&b"CONFIG"[..], b"GET", name.as_bytes()]);
    let answers = connection.ask_all(&[&questions[0], &questions[1], &questions[2]])?;
    let values = SETTINGS.into_iter().zip(answers.iter().map(setting));
    seen.settings = values.filter_map(|(name, value)| Some((name, value?))).collect();
    let question: &[&[u8]] = &[b"INFO", b"server"];
    let answers = connection.ask_all(&[question; IDENTITIES])?;
    seen.identities = answers.iter().filter_map(identity).collect();
    seen.identities.dedup();
    // If two servers take turns, one would keep the key that the other is asked to delete.
    if seen.is_master() && seen.identities.len() <= 1 {
        let notified = matches!(seen.hello, Some(Answer::Many(_)));
        seen.trials = trial::run(&mut connection, node.db, &manner.keys, notified)?;
    }
    watch_the_clock(&mut connection, seen)?;
    if let (Some(key), true) = (&manner.marker, seen.is_in_its_database()) {
        seen.marker = marker::look(&mut connection, key, seen)?;
    }
    seen.elsewhere = another(address, node, manner);
    seen.places = match addresses(address) {
        Ok(found) if found.len() > 1 => name::ask_each(&found, address, node, manner),
        _ => Vec::new(),
    };
    Ok(())
}

/// The server that answers on another connection; `None`, without a finding, if there is none.
fn another(address: &Address, node: &NodeSettings, manner: &Manner) -> Option<String> {
    let connection = Connection::open(address, manner.tls.as_ref(), manner.patience);
    connection.and_then(|it| who_answers(it, node)).ok().flatten()
}

/// The `run_id` of the server at the other end; `None` if it does not say.
pub fn who_answers(
    mut connection: Connection,
    node: &NodeSettings,
) -> Result<Option<String>, Trouble> {
    connection.greet(node, &mut Greeting::default())?;
    connection.ask(&[b"INFO", b"server"]).map(|answer| identity(&answer))
}

fn begin_handshake(
    connection: &mut Connection,
    node: &NodeSettings,
    seen: &mut Examination,
) -> Result<(), Trouble> {
    let mut greeting = Greeting::default();
    let begun = connection.greet(node, &mut greeting);
    (seen.answered, seen.hello) = (greeting.answered, greeting.hello);
    seen.handshake_answered = greeting.accepted;
    begun
}

fn identity(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Text(text) => fields(text).remove("run_id"),
        _ => None,
    }
}

/// The `name:value` lines of `INFO`.
fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

/// The value in an answer to `CONFIG GET`: name and value, in RESP3 as a map.
fn setting(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Many(items) => match items.as_slice() {
            [_, Answer::Text(value)] => Some(value.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn watch_the_clock(connection: &mut Connection, seen: &mut Examination) -> Result<(), Trouble> {
    let start = clock::now();
    read_the_clock(connection, seen)?;
    sleep(WATCHED.saturating_sub(clock::now().saturating_since(start)));
    read_the_clock(connection, seen)
}

fn read_the_clock(connection: &mut Connection, seen: &mut Examination) -> Result<(), Trouble> {
    let start = clock::now();
    for count in 1..=READINGS {
        let asked_at = clock::now();
        let answer = connection.ask(&[b"TIME"])?;
        let read_at = clock::now();
        // A refusal is a round trip, too.
        seen.round_trips.push(read_at.saturating_since(asked_at));
        let micros = micros(&answer);
        seen.readings.extend(micros.map(|micros| Reading { micros, asked_at, read_at }));
        let is_slow = read_at.saturating_since(start) > SLOW;
        if is_slow && count >= READINGS_OF_A_SLOW_ONE {
            break;
        }
    }
    Ok(())
}

fn micros(answer: &Answer) -> Option<u64> {
    let Answer::Many(items) = answer else { return None };
    let [Answer::Text(seconds), Answer::Text(micros)] = items.as_slice() else { return None };
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a clock time has to pass, and nothing else is to be done"
)]
fn sleep(length: Duration) {
    std::thread::sleep(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_come() {
        let text = |text: &str| Answer::Text(text.to_owned());
        let info = fields("# Server\r\nrun_id:abc\r\n\r\ndb0:keys=1,expires=0\r\n");
        assert_eq!(info.get("run_id").map(String::as_str), Some("abc"));
        assert_eq!(info.get("db0").map(String::as_str), Some("keys=1,expires=0"));
        let time = Answer::Many(vec![text("1700000000"), text("7")]);
        assert_eq!(micros(&time), Some(1_700_000_000_000_007));
        assert_eq!(micros(&Answer::Error("NOPERM".into())), None);
        let answer = Answer::Many(vec![text("timeout"), text("10")]);
        assert_eq!(setting(&answer).as_deref(), Some("10"));
        assert_eq!(setting(&Answer::Many(Vec::new())), None);
    }

    #[test]
    fn only_a_master_of_its_own_is_written_to() {
        let is_master = |name: &str, value: &str| {
            let info = [(name.to_owned(), value.to_owned())].into();
            Examination { info, ..Examination::default() }.is_master()
        };
        assert!(is_master("role", "master"));
        assert!(!is_master("role", "slave"));
        assert!(!is_master("loading", "1"));
        assert!(!is_master("cluster_enabled", "1"));
    }
}
