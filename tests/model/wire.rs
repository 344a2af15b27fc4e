//! The connections between clients and nodes, as queues of messages. A message is one command, or
//! what a node answered to one command; a transaction counts as one command.
//!
//! The hazard is granularity: the search can stop only between messages, never inside one. It
//! misses nothing by that, because a server executes whole commands and a client acts on whole
//! replies.

use std::collections::VecDeque;
use std::sync::Arc;

use redlatch::proto::Marker;
use redlatch::proto::fingerprint::{Names, hash_of, mix};
use redlatch::testing::master::ConnectionId;

/// The bytes of one message.
pub type Message = Arc<[u8]>;

/// The connection of a client to a node.
#[derive(Debug, Clone, Default)]
pub struct Wire {
    /// The node's number of the connection, as long as the node has it.
    pub id: Option<ConnectionId>,
    /// The messages that are in flight to the node.
    pub up: VecDeque<Message>,
    /// The messages that are in flight to the client.
    pub down: VecDeque<Message>,
    /// The node has ended the connection. The client notices once it has read everything.
    pub ended: bool,
    /// The client wants a connection.
    pub wanted: bool,
}

/// A connection that its client has lost, with commands that have not arrived yet.
#[derive(Debug, Clone)]
pub struct Orphan {
    pub client: usize,
    pub node: usize,
    pub id: ConnectionId,
    pub up: VecDeque<Message>,
}

/// Splits what a client wrote into messages. TIME, which follows a handshake, goes into one message
/// with the command before it, and so does the command that loads a script's source. `CLIENT
/// CACHING` goes with the command after it. None of them touches a lock. A transaction is one
/// message, because a node executes all of it or nothing.
pub fn commands(mut bytes: &[u8]) -> Vec<Message> {
    let mut commands: Vec<Vec<u8>> = Vec::new();
    while !bytes.is_empty() {
        let (command, rest) = bytes.split_at(length_of_first(bytes));
        bytes = rest;
        match commands.last_mut() {
            Some(last)
                if is_time(command)
                    || is_load(command)
                    || ends_with_caching(last)
                    || is_open_transaction(last) =>
            {
                last.extend_from_slice(command);
            }
            _ => commands.push(command.to_vec()),
        }
    }
    commands.into_iter().map(Into::into).collect()
}

/// Whether this is the command TIME.
pub fn is_time(command: &[u8]) -> bool {
    command == b"*1\r\n$4\r\nTIME\r\n"
}

fn is_load(command: &[u8]) -> bool {
    command.starts_with(b"*3\r\n$6\r\nSCRIPT\r\n")
}

fn ends_with_caching(commands: &[u8]) -> bool {
    commands.ends_with(b"$7\r\nCACHING\r\n$3\r\nYES\r\n")
}

fn is_open_transaction(commands: &[u8]) -> bool {
    commands.starts_with(b"*1\r\n$5\r\nMULTI\r\n") && !commands.ends_with(b"$4\r\nEXEC\r\n")
}

fn length_of_first(bytes: &[u8]) -> usize {
    let (count, mut at) = number(bytes, 1);
    for _ in 0..count {
        let (length, start) = number(bytes, at + 1);
        at = start + length + 2;
    }
    at
}

/// The number at `from`, and where the next line begins.
fn number(bytes: &[u8], from: usize) -> (usize, usize) {
    let end = from + bytes[from..].iter().position(|&byte| byte == b'\r').expect("a line ends");
    let text = std::str::from_utf8(&bytes[from..end]).expect("a number is text");
    (text.parse().expect("a count or a length"), end + 2)
}

/// The beginning of the CLIENT KILL with which a client ends its earlier connection.
const KILL: &[u8] = b"*4\r\n$6\r\nCLIENT\r\n$4\r\nKILL\r\n$2\r\nID\r\n";

/// The number of the connection that such a command ends.
fn killed(rest: &[u8]) -> Option<i64> {
    std::str::from_utf8(rest).ok()?.lines().nth(1)?.parse().ok()
}

/// The hash of a message, in which tokens and identities have their names, and a marker its age.
pub fn message_word(
    message: &[u8],
    now_micros: u64,
    limit: u64,
    names: &dyn Names,
    connection: &dyn Fn(i64) -> u64,
) -> u64 {
    if let Some(number) = message.strip_prefix(KILL).and_then(killed) {
        return mix(11, connection(number));
    }
    let (message, time) = without_time(message);
    let age = time.map_or(0, |time| 1 + now_micros.saturating_sub(time));
    let (mut sum, mut rest) = (age, message);
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        sum = mix(sum, hash_of(&&rest[..at]));
        let Some(length) = length_at(&rest[at..]) else {
            rest = &rest[at + 1..];
            continue;
        };
        let start = at + 1 + length.1;
        let text = &rest[start..start + length.0];
        sum = mix(sum, bulk_word(text, now_micros, limit, names));
        rest = &rest[start + length.0..];
    }
    mix(sum, hash_of(&rest))
}

/// Splits the answer to TIME, in microseconds, from the end of a message. How late the client reads
/// it decides what the client knows of the node's clock.
fn without_time(message: &[u8]) -> (&[u8], Option<u64>) {
    const TIME: &[u8] = b"*2\r\n$10\r\n";
    let Some(at) = message.windows(TIME.len()).position(|window| window == TIME) else {
        return (message, None);
    };
    let (seconds, rest) = number(message, at + TIME.len());
    // After the seconds come the length of the microseconds and the microseconds.
    let (_, rest) = number(message, rest + 1);
    let (micros, _) = number(message, rest);
    (&message[..at], Some(1_000_000 * seconds as u64 + micros as u64))
}

/// A longer argument is the source of a script.
const LONGEST_SAID: usize = 300;

fn bulk_word(text: &[u8], now_micros: u64, limit: u64, names: &dyn Names) -> u64 {
    let name = |text: &[u8]| names.text(text);
    if text.len() == 40 {
        return name(text);
    }
    match Marker::parse(text) {
        Some(marker) => {
            let age = now_micros.saturating_sub(marker.since_micros).min(limit);
            let [run, history] = [marker.identity.run_id, marker.identity.replid]
                .map(|id| id.map_or(0, |id| name(&id)));
            mix(mix(run, history), age)
        }
        // A marker, as a client sends it, begins with two identities.
        None if text.starts_with(b"1 ") && text.len() == 84 => {
            mix(name(&text[2..42]), name(&text[43..83]))
        }
        None if text.len() > LONGEST_SAID => hash_of(&text),
        None => names.said(text),
    }
}

/// The length of the bulk string that begins here, and the length of its first line.
fn length_at(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    let length = std::str::from_utf8(&bytes[1..end]).ok()?.parse().ok()?;
    let fits = bytes.len() >= end + 2 + length;
    fits.then_some((length, end + 1))
}

/// The first words of a message, in one line.
pub fn words(message: &[u8]) -> String {
    let text = message.escape_ascii().to_string();
    let parts =
        text.split("\\r\\n").filter(|part| !part.starts_with(['*', '$']) && !part.is_empty());
    let short = |part: &str| match part {
        part if part.len() > 40 => format!("{}..", &part[..12]),
        part if part.len() == 40 => part[..6].to_owned(),
        part => part.to_owned(),
    };
    parts.map(short).collect::<Vec<_>>().join(" ")
}
