//! The keys of one database, and the commands that read and write them.
//!
//! A key whose ttl is over stays in memory until a command reads it, and `DBSIZE` counts it until
//! then, as on a node whose active expiry is switched off.

use std::collections::BTreeMap;

use super::reply::Reply;
use super::request::integer;
use super::{Call, DATABASES, Flavor, MILLISECOND, Master};

const SYNTAX: &str = "ERR syntax error";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// One database.
#[derive(Debug, Clone, Default)]
pub(super) struct Database {
    entries: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) content: Content,
    /// The first nanosecond on the wall clock at which the key does not exist any more.
    pub(super) expires: Option<i128>,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    /// A sorted set: scores and members, in their order.
    Sorted(Vec<(i64, Vec<u8>)>),
}

impl Entry {
    fn expired(&self, wall: i128) -> bool {
        self.expires.is_some_and(|expires| wall >= expires)
    }

    fn pttl(&self, wall: i128) -> i64 {
        // A ttl that does not fit into an i64 was refused when it was set.
        let left = |expires| i64::try_from((expires - wall) / MILLISECOND).unwrap_or(i64::MAX);
        self.expires.map_or(-1, left)
    }
}

impl Database {
    pub(super) fn text(&self, key: &[u8], wall: i128) -> Option<&[u8]> {
        match self.entries.get(key) {
            Some(entry) if entry.expired(wall) => None,
            Some(Entry { content: Content::Text(text), .. }) => Some(text),
            _ => None,
        }
    }

    /// The members of a sorted set.
    pub(super) fn sorted(&self, key: &[u8], wall: i128) -> Vec<Vec<u8>> {
        match self.entries.get(key).filter(|entry| !entry.expired(wall)) {
            Some(Entry { content: Content::Sorted(members), .. }) => {
                members.iter().map(|(_, member)| member.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Writes a string without a ttl.
    pub(super) fn write(&mut self, key: &[u8], text: &[u8]) {
        let entry = Entry { content: Content::Text(text.to_vec()), expires: None };
        self.entries.insert(key.to_vec(), entry);
    }

    pub(super) fn pttl(&self, key: &[u8], wall: i128) -> i64 {
        let entry = self.entries.get(key).filter(|entry| !entry.expired(wall));
        entry.map_or(-2, |entry| entry.pttl(wall))
    }

    pub(super) fn keys(&self, wall: i128) -> Vec<Vec<u8>> {
        let live = self.entries.iter().filter(|(_, entry)| !entry.expired(wall));
        live.map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn live(&self, wall: i128) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        self.entries.iter().filter(move |(_, entry)| !entry.expired(wall))
    }

    pub(super) fn postpone(&mut self, by: i128) {
        for entry in self.entries.values_mut() {
            entry.expires = entry.expires.map(|expires| expires + by);
        }
    }

    /// How many keys there are, and how many of them have a ttl, including those whose ttl is over.
    pub(super) fn counts(&self) -> (usize, usize) {
        let expiring = self.entries.values().filter(|entry| entry.expires.is_some()).count();
        (self.entries.len(), expiring)
    }
}

impl Master {
    fn database(&mut self, call: &Call) -> &mut Database {
        let database = self.own(call).database;
        &mut self.databases[database]
    }

    /// The entry at a key. If its ttl is over, deletes the key and notifies its readers. A replica
    /// only hides such a key, because only its master deletes keys.
    pub(super) fn look_up(&mut self, call: &Call, key: &[u8]) -> Option<&mut Entry> {
        if self.database(call).entries.get(key).is_some_and(|entry| entry.expired(call.wall)) {
            if !self.is_replica() {
                self.remove(call, key);
            }
            return None;
        }
        self.database(call).entries.get_mut(key)
    }

    /// Replaces the members of a sorted set, and keeps its ttl. If there are no members, removes
    /// it.
    pub(super) fn write_sorted(&mut self, call: &Call, key: &[u8], members: Vec<(i64, Vec<u8>)>) {
        if members.is_empty() {
            self.remove(call, key);
            return;
        }
        let expires = self.look_up(call, key).and_then(|entry| entry.expires);
        let entry = Entry { content: Content::Sorted(members), expires };
        self.database(call).entries.insert(key.to_vec(), entry);
        self.invalidate(call, key);
    }

    fn text_at(&mut self, call: &Call, key: &[u8]) -> Result<Option<Vec<u8>>, Reply> {
        match self.look_up(call, key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Reply::error(WRONG_TYPE)),
        }
    }

    fn remove(&mut self, call: &Call, key: &[u8]) -> bool {
        let removed = self.database(call).entries.remove(key).is_some();
        if removed {
            self.invalidate(call, key);
        }
        removed
    }

    fn remove_live(&mut self, call: &Call, key: &[u8]) -> bool {
        self.look_up(call, key).is_some() && self.remove(call, key)
    }
}

pub(super) fn get(master: &mut Master, call: &Call) -> Reply {
    match master.text_at(call, &call.words[1]) {
        Ok(Some(text)) => Reply::Bulk(text),
        Ok(None) => Reply::Null,
        Err(error) => error,
    }
}

pub(super) fn getrange(master: &mut Master, call: &Call) -> Reply {
    let (Some(first), Some(last)) = (integer(&call.words[2]), integer(&call.words[3])) else {
        return Reply::error(NOT_INTEGER);
    };
    let text = match master.text_at(call, &call.words[1]) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => return error,
    };
    if first < 0 && last < 0 && first > last {
        return Reply::Bulk(Vec::new());
    }
    // Negative indexes count from the end. All are limited to the text.
    let length = text.len() as i64;
    let from_start = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (first, last) = (from_start(first), from_start(last).min(length - 1));
    let inside = first <= last && length > 0;
    Reply::Bulk(if inside { text[first as usize..=last as usize].to_vec() } else { Vec::new() })
}

/// The options of `SET`.
#[derive(Default)]
struct Options<'a> {
    only_absent: bool,
    only_present: bool,
    /// The value that the key must have, of servers that know `IFEQ`.
    only_equal: Option<&'a [u8]>,
    get: bool,
    keep_ttl: bool,
    /// The unit of the expiry, and its number, which is not parsed yet.
    expiry: Option<(Expiry, &'a [u8])>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Seconds,
    Milliseconds,
    AtSecond,
    AtMillisecond,
}

fn options(words: &[Vec<u8>], flavor: Flavor) -> Option<Options<'_>> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let compares = options.only_equal.is_some();
        match word.to_ascii_lowercase().as_slice() {
            b"nx" if !options.only_present && !compares => options.only_absent = true,
            b"xx" if !options.only_absent && !compares => options.only_present = true,
            b"ifeq" if flavor != Flavor::Redis70 => {
                if options.only_absent || options.only_present || compares {
                    return None;
                }
                options.only_equal = Some(words.next()?);
            }
            b"get" => options.get = true,
            b"keepttl" if options.expiry.is_none() => options.keep_ttl = true,
            other => {
                let unit = match other {
                    b"ex" => Expiry::Seconds,
                    b"px" => Expiry::Milliseconds,
                    b"exat" => Expiry::AtSecond,
                    b"pxat" => Expiry::AtMillisecond,
                    _ => return None,
                };
                // The same unit may be given again; the last number counts.
                let clashes = options.expiry.is_some_and(|(earlier, _)| earlier != unit);
                if clashes || options.keep_ttl {
                    return None;
                }
                options.expiry = Some((unit, words.next()?));
            }
        }
    }
    Some(options)
}

/// The moment on the wall clock at which an expiry option lets the key end.
fn moment(wall: i128, (unit, number): (Expiry, &[u8])) -> Result<i128, Reply> {
    let invalid = || Reply::error("ERR invalid expire time in 'set' command");
    let number = integer(number).ok_or_else(|| Reply::error(NOT_INTEGER))?;
    let scale = if matches!(unit, Expiry::Seconds | Expiry::AtSecond) { 1000 } else { 1 };
    let milliseconds = number.checked_mul(scale).filter(|number| *number > 0);
    let milliseconds = i128::from(milliseconds.ok_or_else(invalid)?);
    let from = match unit {
        Expiry::Seconds | Expiry::Milliseconds => wall,
        Expiry::AtSecond | Expiry::AtMillisecond => 0,
    };
    if milliseconds + from / MILLISECOND > i128::from(i64::MAX) {
        return Err(invalid());
    }
    Ok(from + milliseconds * MILLISECOND)
}

pub(super) fn set(master: &mut Master, call: &Call) -> Reply {
    let (key, text) = (&call.words[1], &call.words[2]);
    let options = options(&call.words[3..], master.flavor);
    let Some(options) = options else { return Reply::error(SYNTAX) };
    let expires = match options.expiry.map(|expiry| moment(call.wall, expiry)).transpose() {
        Ok(expires) => expires.map(|moment| moment + master.overtime()),
        Err(error) => return error,
    };
    let mut reply = Reply::OK;
    let mut equals = true;
    if options.get || options.only_equal.is_some() {
        let before = match master.text_at(call, key) {
            Ok(before) => before,
            Err(error) => return error,
        };
        equals = options.only_equal.is_none_or(|value| before.as_deref() == Some(value));
        if options.get {
            reply = before.map_or(Reply::Null, Reply::Bulk);
        }
    }
    let before = master.look_up(call, key);
    let (present, kept) = (before.is_some(), before.and_then(|entry| entry.expires));
    if options.only_absent && present || options.only_present && !present || !equals {
        return if options.get { reply } else { Reply::Null };
    }
    let expires = if options.keep_ttl { kept } else { expires };
    let entry = Entry { content: Content::Text(text.clone()), expires };
    master.database(call).entries.insert(key.clone(), entry);
    master.invalidate(call, key);
    reply
}

pub(super) fn pttl(master: &mut Master, call: &Call) -> Reply {
    let entry = master.look_up(call, &call.words[1]);
    Reply::Integer(entry.map_or(-2, |entry| entry.pttl(call.wall)))
}

pub(super) fn ttl(master: &mut Master, call: &Call) -> Reply {
    let entry = master.look_up(call, &call.words[1]);
    let milliseconds = entry.map_or(-2, |entry| entry.pttl(call.wall));
    Reply::Integer(match milliseconds {
        ..0 => milliseconds,
        _ => milliseconds / 1000 + i64::from(milliseconds % 1000 >= 500),
    })
}

pub(super) fn pexpire(master: &mut Master, call: &Call) -> Reply {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in &call.words[3..] {
        match word.to_ascii_lowercase().as_slice() {
            b"nx" => nx = true,
            b"xx" => xx = true,
            b"gt" => gt = true,
            b"lt" => lt = true,
            _ => return Reply::error_about("ERR Unsupported option ", word, ""),
        }
    }
    if nx && (xx || gt || lt) {
        let what = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Reply::error(what);
    }
    if gt && lt {
        return Reply::error("ERR GT and LT options at the same time are not compatible");
    }
    let Some(milliseconds) = integer(&call.words[2]) else { return Reply::error(NOT_INTEGER) };
    if i128::from(milliseconds) + call.wall / MILLISECOND > i128::from(i64::MAX) {
        return Reply::error("ERR invalid expire time in 'pexpire' command");
    }
    let new = call.wall + i128::from(milliseconds) * MILLISECOND + master.overtime();
    let key = &call.words[1];
    let Some(entry) = master.look_up(call, key) else { return Reply::Integer(0) };
    let skips = match entry.expires {
        None => xx || gt,
        Some(old) => nx || gt && new <= old || lt && new >= old,
    };
    if skips {
        return Reply::Integer(0);
    }
    if milliseconds > 0 {
        entry.expires = Some(new);
        master.invalidate(call, key);
    } else {
        master.remove(call, key);
    }
    Reply::Integer(1)
}

pub(super) fn incr(master: &mut Master, call: &Call) -> Reply {
    let key = &call.words[1];
    let (text, expires) = match master.look_up(call, key) {
        None => (&b"0"[..], None),
        Some(Entry { content: Content::Text(text), expires }) => (&text[..], *expires),
        Some(_) => return Reply::error(WRONG_TYPE),
    };
    let Some(count) = integer(text) else { return Reply::error(NOT_INTEGER) };
    let Some(count) = count.checked_add(1) else {
        return Reply::error("ERR increment or decrement would overflow");
    };
    let entry = Entry { content: Content::Text(count.to_string().into()), expires };
    master.database(call).entries.insert(key.clone(), entry);
    master.invalidate(call, key);
    Reply::Integer(count)
}

pub(super) fn exists(master: &mut Master, call: &Call) -> Reply {
    count(master, &call.words[1..], |master, key| master.look_up(call, key).is_some())
}

/// `DEL` and `UNLINK`, which differ only in the time that they take.
pub(super) fn del(master: &mut Master, call: &Call) -> Reply {
    count(master, &call.words[1..], |master, key| master.remove_live(call, key))
}

fn count(
    master: &mut Master,
    keys: &[Vec<u8>],
    mut each: impl FnMut(&mut Master, &[u8]) -> bool,
) -> Reply {
    Reply::Integer(keys.iter().map(|key| i64::from(each(master, key))).sum())
}

/// `TYPE`.
pub(super) fn kind(master: &mut Master, call: &Call) -> Reply {
    Reply::Status(match master.look_up(call, &call.words[1]).map(|entry| &entry.content) {
        None => "none",
        Some(Content::Text(_)) => "string",
        Some(Content::List(_)) => "list",
        Some(Content::Sorted(_)) => "zset",
    })
}

pub(super) fn lpush(master: &mut Master, call: &Call) -> Reply {
    let key = &call.words[1];
    master.look_up(call, key);
    let empty = Entry { content: Content::List(Vec::new()), expires: None };
    let entry = master.database(call).entries.entry(key.clone()).or_insert(empty);
    let Content::List(items) = &mut entry.content else { return Reply::error(WRONG_TYPE) };
    items.extend_from_slice(&call.words[2..]);
    let length = items.len();
    master.invalidate(call, key);
    Reply::Integer(i64::try_from(length).unwrap_or(i64::MAX))
}

/// Valkey's compare-and-delete: `DELIFEQ key token`.
pub(super) fn delifeq(master: &mut Master, call: &Call) -> Reply {
    delete_if_equal(master, call, &call.words[2])
}

/// Redis's compare-and-delete, of which the master knows only this form: `DELEX key [IFEQ token]`.
pub(super) fn delex(master: &mut Master, call: &Call) -> Reply {
    match &call.words[2..] {
        [] => del(master, call),
        [word, token] if word.eq_ignore_ascii_case(b"ifeq") => delete_if_equal(master, call, token),
        _ => Reply::error(SYNTAX),
    }
}

fn delete_if_equal(master: &mut Master, call: &Call, token: &[u8]) -> Reply {
    let key = &call.words[1];
    match master.text_at(call, key) {
        Ok(Some(text)) if text == token => Reply::Integer(i64::from(master.remove(call, key))),
        Ok(_) => Reply::Integer(0),
        Err(error) => error,
    }
}

pub(super) fn dbsize(master: &mut Master, call: &Call) -> Reply {
    let (keys, _) = master.database(call).counts();
    Reply::Integer(i64::try_from(keys).unwrap_or(i64::MAX))
}

pub(super) fn flushdb(master: &mut Master, call: &Call) -> Reply {
    let database = master.own(call).database;
    empty(master, call, database..database + 1)
}

pub(super) fn flushall(master: &mut Master, call: &Call) -> Reply {
    let all = 0..master.databases.len();
    empty(master, call, all)
}

fn empty(master: &mut Master, call: &Call, which: std::ops::Range<usize>) -> Reply {
    match &call.words[1..] {
        [] => {}
        [mode] if mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async") => {}
        _ => return Reply::error(SYNTAX),
    }
    master.databases[which].fill(Database::default());
    master.invalidate_all(call);
    Reply::OK
}

/// `SWAPDB`: swaps two databases. As on a real server, no client gets a push about it.
pub(super) fn swapdb(master: &mut Master, call: &Call) -> Reply {
    let number = |word: usize| integer(&call.words[word]).and_then(|it| i32::try_from(it).ok());
    let Some(first) = number(1) else { return Reply::error("ERR invalid first DB index") };
    let Some(second) = number(2) else { return Reply::error("ERR invalid second DB index") };
    match (usize::try_from(first), usize::try_from(second)) {
        (Ok(first @ 0..DATABASES), Ok(second @ 0..DATABASES)) => {
            master.databases.swap(first, second);
            Reply::OK
        }
        _ => Reply::error("ERR DB index is out of range"),
    }
}
