//! The examination of one node over doctor's own connection: a plain value with the node's answers,
//! which `checks` judges.
//!
//! The examination writes only its own key, and sends the deletion in the same write. The hazard is
//! a node that becomes silent half-way: the answers that came before are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::Address;
use redlatch::proto::NodeSettings;
use redlatch::{clock, clock::Instant};

use super::marker;
use super::name::{self, Place};
use super::trial::{self, Keys, Trial};
use crate::connection::{Answer, Connection, Greeting, Patience, Tls, Trouble, addresses};
use crate::members::lists;

/// How long the clock is observed: long enough to notice an error of 1 % although round trips vary.
pub const CLOCK_WATCH: Duration = Duration::from_secs(1);

/// How often the node is asked for its time at the beginning of [`CLOCK_WATCH`], and as often at
/// its end, if it answers fast.
const READINGS: usize = 12;

/// How often a slow node is asked. Only the fastest of the answers counts, so one of three may be
/// delayed.
const READINGS_IF_SLOW: usize = 3;

/// A node is slow if the readings so far took longer than this together.
const SLOW: Duration = Duration::from_millis(400);

/// How often the node is asked for its `run_id`, on one connection.
const IDENTITIES: usize = 6;

/// The settings that matter for locks. The node may refuse to return any of them.
const SETTINGS: [&str; 3] = ["appendfsync", "timeout", "maxclients"];

/// How a node is examined: the parameters of an examination.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub tls: Option<Tls>,
    pub patience: Patience,
    pub keys: Keys,
    /// The key of the node marker, if the restart guard needs one.
    pub marker: Option<String>,
    /// Replicas have to confirm each grant.
    pub waits: bool,
}

/// What one node answered.
#[derive(Debug, Default)]
pub struct Examination {
    /// Where the server is, if the URL does not say it.
    pub found_at: Option<Box<str>>,
    /// The node answered anything at all.
    pub answered: bool,
    /// The node accepted our credentials.
    pub handshake_answered: bool,
    /// The answer to `HELLO 3`: not an error if the node speaks RESP3, which pushes need.
    pub hello: Option<Answer>,
    /// The fields of `INFO`; empty if it was refused.
    pub info: BTreeMap<String, String>,
    /// The settings that the node did not refuse to return.
    pub settings: BTreeMap<&'static str, String>,
    /// The servers that answered on one connection, by `run_id`, in order.
    pub identities: Vec<String>,
    /// The `run_id` that was read over a second connection.
    pub elsewhere: Option<String>,
    /// The servers at the addresses of the node's name, if the name has several.
    pub places: Vec<Place>,
    /// The outcome of trying each command of the library.
    pub trials: Vec<Trial>,
    /// The node marker, read after the library's client had time to write it.
    pub marker: marker::Seen,
    /// The list of masters; `None` if it was not read.
    pub list: Option<lists::Seen>,
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

    /// Whether the connection has selected the database of the URL. That is so once commands about
    /// keys were tried.
    fn is_in_its_database(&self) -> bool {
        let chosen = |trial: &Trial| trial.command != "SELECT";
        !self.trials.is_empty() && self.trials.iter().all(chosen)
    }

    /// Whether the server is a loaded master outside of a cluster, as a node has to be. A missing
    /// field counts as right.
    pub fn is_master(&self) -> bool {
        let is = |name, value| self.info(name).is_none_or(|reported| reported == value);
        is("role", "master") && is("loading", "0") && is("cluster_enabled", "0")
    }
}

/// Examines a node at the address of its server, if that was found.
pub fn examine(
    server: Result<Address, Trouble>,
    node: &NodeSettings,
    parameters: &Parameters,
) -> Examination {
    let mut seen = Examination::default();
    seen.trouble = match server {
        Ok(address) => {
            seen.found_at = Some(address.label()).filter(|label| *label != node.label);
            examine_into(&mut seen, &address, node, parameters).err()
        }
        Err(trouble) => Some(trouble),
    };
    seen
}

fn examine_into(
    seen: &mut Examination,
    address: &Address,
    node: &NodeSettings,
    parameters: &Parameters,
) -> Result<(), Trouble> {
    let mut connection = Connection::open(address, parameters.tls.as_ref(), parameters.patience)?;
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
    // If two servers take turns behind one address, one could get the key, and the other the
    // deletion: then nothing is written.
    if seen.is_master() && seen.identities.len() <= 1 {
        let notified = matches!(seen.hello, Some(Answer::Many(_)));
        seen.trials =
            trial::run(&mut connection, node.db, &parameters.keys, (notified, parameters.waits))?;
    }
    measure_clock(&mut connection, seen)?;
    if let (Some(key), true) = (&parameters.marker, seen.is_in_its_database()) {
        seen.marker = marker::read_marker(&mut connection, key, seen)?;
    }
    if seen.is_in_its_database() {
        seen.list = Some(lists::read(&mut connection)?);
    }
    seen.elsewhere = run_id_elsewhere(address, node, parameters);
    seen.places = match addresses(address) {
        Ok(found) if found.len() > 1 => name::ask_each(&found, address, node, parameters),
        _ => Vec::new(),
    };
    Ok(())
}

/// The `run_id` of the server that answers on another connection. `None` if it does not answer,
/// which is not reported.
fn run_id_elsewhere(
    address: &Address,
    node: &NodeSettings,
    parameters: &Parameters,
) -> Option<String> {
    let connection = Connection::open(address, parameters.tls.as_ref(), parameters.patience);
    connection.and_then(|it| ask_run_id(it, node)).ok().flatten()
}

/// The `run_id` of the server at the other end; `None` if the server does not report it.
pub fn ask_run_id(
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

/// The value in an answer to `CONFIG GET`, which has the name and the value (in RESP3 as a map).
fn setting(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Many(items) => match items.as_slice() {
            [_, Answer::Text(value)] => Some(value.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn measure_clock(connection: &mut Connection, seen: &mut Examination) -> Result<(), Trouble> {
    let start = clock::now();
    read_clock(connection, seen)?;
    sleep(CLOCK_WATCH.saturating_sub(clock::now().saturating_since(start)));
    read_clock(connection, seen)
}

fn read_clock(connection: &mut Connection, seen: &mut Examination) -> Result<(), Trouble> {
    let start = clock::now();
    for count in 1..=READINGS {
        let asked_at = clock::now();
        let answer = connection.ask(&[b"TIME"])?;
        let read_at = clock::now();
        // Even if the node refuses TIME, its answer measures a round trip.
        seen.round_trips.push(read_at.saturating_since(asked_at));
        let micros = micros(&answer);
        seen.readings.extend(micros.map(|micros| Reading { micros, asked_at, read_at }));
        let is_slow = read_at.saturating_since(start) > SLOW;
        if is_slow && count >= READINGS_IF_SLOW {
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
