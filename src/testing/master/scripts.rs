//! The scripts that a master can run: those of [`crate::proto::wire::command`], each written again
//! in Rust.
//!
//! The master runs no Lua, and refuses scripts that it does not know. To add one, put a line into
//! [`KNOWN`] and write the function, with a [`Sandbox::call`] for each `redis.call`. The calls must
//! be in the same order, so that the same one fails first.

use super::commands::{self, MASTERDOWN, WRITE};
use super::reply::Reply;
use super::request::integer;
use super::{Call, Master, Trouble};
use super::{line_scripts, set_scripts};
use crate::proto::wire::command::{DELETE_SEEN, EXTEND, MARK, MEMBERS, RELEASE, Script};
use crate::proto::wire::line::{HAND_OVER, JOIN};
use crate::proto::wire::sets::{ACQUIRE, EXTEND_SET, RELEASE_SET};

/// The answer of a script, or the error that ended it, without the place that a server adds.
pub(super) type Outcome = Result<Reply, Reply>;

type Run = fn(&mut Sandbox) -> Outcome;
type Known = (Script, Run);

const KNOWN: &[Known] = &[
    (RELEASE, release),
    (EXTEND, extend),
    (MARK_NODE, mark),
    (WRITE_MEMBERS, write_members),
    (DELETE_SEEN_KEY, delete_seen),
    (JOIN, line_scripts::join),
    (HAND_OVER, line_scripts::hand_over),
    (ACQUIRE, set_scripts::acquire),
    (EXTEND_SET, set_scripts::extend),
    (RELEASE_SET, set_scripts::release),
    (set_scripts::TAKE_UP, set_scripts::adopt),
];

/// No client calls this script by its SHA1, but a server has the SHA1 in its errors.
const MARK_NODE: Script = Script { source: MARK, sha1: "34009d6051e17949233c85716d46650082aecac3" };

/// The script that writes the list of masters: needs its SHA1 for the same reason.
const WRITE_MEMBERS: Script =
    Script { source: MEMBERS, sha1: "f15c2ecc795c18bca5ed6ece0e41f0e7e43bf1c4" };

/// The script that deletes a key if it still has the inspected value: needs its SHA1 for the same
/// reason.
const DELETE_SEEN_KEY: Script =
    Script { source: DELETE_SEEN, sha1: "929fa1547d7fa361b4b1a63762708c447a3c7655" };

pub(super) const NOSCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

fn release(lua: &mut Sandbox) -> Outcome {
    match lua.call(&[Some(b"GET"), lua.key(0)])? {
        Reply::Null => Ok(Reply::Integer(0)),
        token if !token_is(&token, lua.argument(0)) => Ok(Reply::Integer(-1)),
        _ => lua.call(&[Some(b"DEL"), lua.key(0)]).map(|_| Reply::Integer(1)),
    }
}

fn extend(lua: &mut Sandbox) -> Outcome {
    match lua.call(&[Some(b"GET"), lua.key(0)])? {
        Reply::Null => return Ok(Reply::Integer(0)),
        token if !token_is(&token, lua.argument(0)) => return Ok(Reply::Integer(-1)),
        _ => {}
    }
    prolong(lua, 0)?;
    Ok(Reply::Integer(1))
}

/// The macro `prolong` of [`crate::proto::wire::command`], for `KEYS[index + 1]`.
pub(super) fn prolong(lua: &mut Sandbox, index: usize) -> Result<(), Reply> {
    let key = lua.key(index);
    let left = number(&lua.call(&[Some(b"PTTL"), key])?);
    if left < lua.number_argument(1)? {
        return lua.call(&[Some(b"PEXPIRE"), key, lua.argument(1)]).map(drop);
    }
    let same = format!("{left:.0}");
    let same = Some(same.as_bytes());
    // As with `redis.pcall`, an error does not end the script.
    let unchanged = lua.call(&[Some(b"PEXPIRE"), key, same, Some(b"NX")]);
    if unchanged == Ok(Reply::Integer(0)) {
        return Ok(());
    }
    let words = [Some(&b"SET"[..]), key, lua.argument(0), Some(b"NX"), Some(b"PX"), same];
    // As with `redis.pcall`, an error does not end the script.
    if lua.call(&words) != Ok(Reply::Null) {
        lua.call(&[Some(b"PEXPIRE"), key, same])?;
    }
    Ok(())
}

pub(super) const NO_COUNTER: &str = "ERR the fencing counter is not a number";

/// The first number from which on a script cannot count exactly.
const COUNTER_LIMIT: f64 = 9_007_199_254_740_991.0;

fn delete_seen(lua: &mut Sandbox) -> Outcome {
    let found = lua.call(&[Some(b"GETRANGE"), lua.key(0), Some(b"0"), lua.argument(1)])?;
    if token_is(&found, lua.argument(0)) {
        return lua.call(&[Some(b"DEL"), lua.key(0)]);
    }
    match lua.call(&[Some(b"EXISTS"), lua.key(0)])? {
        Reply::Integer(count) => Ok(Reply::Integer(-count)),
        other => Ok(other),
    }
}

fn write_members(lua: &mut Sandbox) -> Outcome {
    let found = match lua.call(&[Some(b"GET"), lua.key(0)])? {
        Reply::Bulk(value) => value,
        _ => Vec::new(),
    };
    if Some(&found[..]) != lua.argument(0) {
        return Ok(Reply::Bulk(found));
    }
    lua.call(&[Some(b"SET"), lua.key(0), lua.argument(1)])?;
    Ok(Reply::Bulk(lua.argument(1).unwrap_or(b"").to_vec()))
}

fn mark(lua: &mut Sandbox) -> Outcome {
    let found = lua.call(&[Some(b"GET"), lua.key(0)])?;
    let (prefix, how) = (lua.argument(0).unwrap_or(b""), lua.argument(1).unwrap_or(b""));
    let value = if let Reply::Bulk(value) = &found { Some(&value[..]) } else { None };
    let marker = value.and_then(split_marker);
    if value.is_some() && marker.is_none() {
        return Ok(found);
    }
    let same = value.is_some_and(|value| value.starts_with(prefix));
    let (since, word) = marker.unwrap_or_default();
    let expected = how.first().is_some_and(u8::is_ascii_digit);
    let has_start = lua.argument(3).is_some();
    if (same && (how.is_empty() || has_start)) || (expected && since != how) {
        return Ok(found);
    }
    let text = match how {
        b"keep" if !since.is_empty() => since.to_vec(),
        b"tail" if !since.is_empty() => [since, word].concat(),
        _ => {
            lua.call(&[Some(b"TIME")])?;
            let micros = lua.call.wall.div_euclid(1000);
            let text = format!("{}{:06}", micros / 1_000_000, micros % 1_000_000);
            let text = [text.as_bytes(), lua.argument(2).unwrap_or(b"")].concat();
            lua.argument(3).map_or(text, <[u8]>::to_vec)
        }
    };
    let marker = [prefix, &text].concat();
    lua.call(&[Some(b"SET"), lua.key(0), Some(&marker)])?;
    Ok(Reply::Bulk(marker))
}

/// The time of a marker, and the text after it. `None` for a marker of another version.
fn split_marker(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = value.strip_prefix(b"1 ").filter(|_| value.len() >= 85)?;
    for _ in 0..2 {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
        rest = rest[end..].strip_prefix(b" ").filter(|_| end > 0)?;
    }
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (since, word) = rest.split_at(end);
    (!since.is_empty() && matches!(word, b"" | b" vouched")).then_some((since, word))
}

/// One run of a script: its keys and arguments, and the master whose commands it calls.
pub(super) struct Sandbox<'a> {
    master: &'a mut Master,
    call: &'a Call<'a>,
    keys: &'a [Vec<u8>],
    arguments: &'a [Vec<u8>],
    /// The index of the key that `key(0)` returns.
    first_key: usize,
    /// How many calls of this run have written.
    writes: usize,
}

impl<'a> Sandbox<'a> {
    /// `KEYS[index + 1]`, or nil.
    pub(super) fn key(&self, index: usize) -> Option<&'a [u8]> {
        self.keys.get(self.first_key + index).map(Vec::as_slice)
    }

    /// Lets `key(0)` return the key of this index from now on.
    pub(super) fn begin_keys_at(&mut self, index: usize) {
        self.first_key = index;
    }

    /// `#KEYS`.
    pub(super) fn count_keys(&self) -> usize {
        self.keys.len()
    }

    /// `#ARGV`.
    pub(super) fn count_arguments(&self) -> usize {
        self.arguments.len()
    }

    /// `ARGV[index + 1]`, or nil.
    pub(super) fn argument(&self, index: usize) -> Option<&'a [u8]> {
        self.arguments.get(index).map(Vec::as_slice)
    }

    /// `tonumber(ARGV[index + 1])`, with the error of Lua if that is nil and is compared.
    pub(super) fn number_argument(&self, index: usize) -> Result<f64, Reply> {
        let nil = || Reply::error("ERR user_script:1: attempt to compare number with nil");
        self.argument(index).and_then(to_number).ok_or_else(nil)
    }

    /// `tonumber(redis.call('GET', KEYS[place + 1]) or 0)`; `None` if a counter cannot have that
    /// value.
    pub(super) fn counter(&mut self, place: usize) -> Result<Option<f64>, Reply> {
        let found = match self.call(&[Some(b"GET"), self.key(place)])? {
            Reply::Bulk(digits) => to_number(&digits),
            _ => Some(0.0),
        };
        Ok(found.filter(|found| (0.0..COUNTER_LIMIT).contains(found)))
    }

    /// What an absent counter starts from; `ARGV[step + 1]` is the step.
    pub(super) fn seed(&mut self, step: usize) -> Result<f64, Reply> {
        self.call(&[Some(b"TIME")])?;
        let step = self.number_argument(step)?;
        let micros = self.call.wall.div_euclid(1000);
        let (seconds, rest) = ((micros / 1_000_000) as f64, (micros % 1_000_000) as f64);
        let millis = seconds * 1000.0 + rest / 1000.0;
        Ok(((millis / step).floor() * step * 1048.576).floor())
    }

    /// Writes the counter at `KEYS[place + 1]`, with the ttl `ARGV[lives + 1]`.
    pub(super) fn set_counter(
        &mut self,
        place: usize,
        count: f64,
        lives: usize,
    ) -> Result<Reply, Reply> {
        let digits = format!("{count:.0}");
        let words = [Some(&b"SET"[..]), self.key(place), Some(digits.as_bytes())];
        self.call(&[&words[..], &[Some(b"PX"), self.argument(lives)]].concat())
    }

    /// `redis.call(...)`. The command must exist and have enough words.
    pub(super) fn call(&mut self, words: &[Option<&[u8]>]) -> Result<Reply, Reply> {
        let nil =
            || Reply::error("ERR Lua redis lib command arguments must be strings or integers");
        let words: Option<Vec<Vec<u8>>> = words.iter().map(|word| word.map(Vec::from)).collect();
        let words = words.ok_or_else(nil)?;
        let command = commands::find(self.master.flavor, &words)?;
        let refusal = |trouble: &Trouble| trouble.refuses_to_write(command, self.writes);
        if let Some(refusal) = self.master.troubles.iter().find_map(refusal) {
            return Err(refusal);
        }
        self.writes += usize::from(command.flags & WRITE != 0);
        let inner = Call { wall: self.call.wall, connection: self.call.connection, words: &words };
        match command.execute(self.master, &inner, self.keys) {
            Reply::Error(line) => Err(Reply::Error(line)),
            reply => Ok(reply),
        }
    }
}

pub(super) fn eval(master: &mut Master, call: &Call) -> Reply {
    let known = KNOWN.iter().find(|(script, _)| script.source.as_bytes() == call.words[1]);
    let Some((script, run)) = known else { return unknown_source() };
    play(master, call, |master| {
        master.scripts.insert(script.sha1);
        Some((script, *run))
    })
}

pub(super) fn evalsha(master: &mut Master, call: &Call) -> Reply {
    let sha1 = call.words[1].to_ascii_lowercase();
    if sha1.len() != 40 {
        return Reply::error(NOSCRIPT);
    }
    play(master, call, |master| {
        let loaded = |(script, _): &&Known| {
            script.sha1.as_bytes() == sha1 && master.scripts.contains(script.sha1)
        };
        KNOWN.iter().find(loaded).map(|(script, run)| (script, *run))
    })
}

pub(super) fn load(master: &mut Master, call: &Call) -> Reply {
    match KNOWN.iter().find(|(script, _)| script.source.as_bytes() == call.words[2]) {
        Some((script, _)) => {
            master.scripts.insert(script.sha1);
            Reply::bulk(script.sha1)
        }
        None => unknown_source(),
    }
}

pub(super) fn exists(master: &mut Master, call: &Call) -> Reply {
    let loaded = |sha1: &Vec<u8>| {
        let sha1 = sha1.to_ascii_lowercase();
        Reply::Integer(i64::from(master.scripts.iter().any(|own| own.as_bytes() == sha1)))
    };
    Reply::Array(call.words[2..].iter().map(loaded).collect())
}

pub(super) fn flush(master: &mut Master, call: &Call) -> Reply {
    match &call.words[2..] {
        [] => {}
        [mode] if mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async") => {}
        _ => return Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
    }
    master.scripts.clear();
    Reply::OK
}

/// Checks the number of keys, finds the script and runs it.
fn play<'k>(
    master: &mut Master,
    call: &Call,
    find: impl FnOnce(&mut Master) -> Option<(&'k Script, Run)>,
) -> Reply {
    let rest = &call.words[3..];
    let Some(keys) = integer(&call.words[2]) else {
        return Reply::error("ERR value is not an integer or out of range");
    };
    let (keys, arguments) = match usize::try_from(keys) {
        Ok(keys) if keys <= rest.len() => rest.split_at(keys),
        Ok(_) => return Reply::error("ERR Number of keys can't be greater than number of args"),
        Err(_) => return Reply::error("ERR Number of keys can't be negative"),
    };
    let Some((script, run)) = find(master) else { return Reply::error(NOSCRIPT) };
    if master.troubles.contains(&Trouble::MasterDown) {
        return Reply::error(MASTERDOWN);
    }
    match run(&mut Sandbox { master, call, keys, arguments, first_key: 0, writes: 0 }) {
        Ok(reply) => reply,
        Err(Reply::Error(line)) => {
            let place = format!(" script: {}, on @user_script:1.", script.sha1);
            Reply::Error([&line[..], place.as_bytes()].concat())
        }
        Err(other) => other,
    }
}

fn unknown_source() -> Reply {
    Reply::error("ERR this master runs no Lua, and does not know that script")
}

/// The opposite of `reply ~= ARGV[..]`: whether both are the same string.
pub(super) fn token_is(reply: &Reply, token: Option<&[u8]>) -> bool {
    matches!((reply, token), (Reply::Bulk(text), Some(token)) if text == token)
}

/// An integer reply as a Lua number: Lua 5.1 has only floating-point numbers.
pub(super) fn number(reply: &Reply) -> f64 {
    match reply {
        Reply::Integer(number) => *number as f64,
        _ => f64::NAN,
    }
}

/// `tonumber` of Lua: takes what C's `strtod` takes, with white space around it, and hexadecimal
/// integers.
pub(super) fn to_number(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?.trim_matches(|c: char| c.is_ascii_whitespace());
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok().map(|number| sign * f64::from(number)),
        // Rust's parser would accept a second sign.
        None if digits.starts_with(['-', '+']) => None,
        None => digits.parse::<f64>().ok().map(|number| sign * number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_stands_beside_its_sha1() {
        for (script, _) in KNOWN {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    #[test]
    fn numbers_are_those_of_lua() {
        for (text, expected) in [
            ("10", 10.0),
            (" 1.5\t", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("-0x10", -16.0),
            ("+7", 7.0),
            ("10\0x", 10.0),
            ("inf", f64::INFINITY),
        ] {
            assert_eq!(to_number(text.as_bytes()), Some(expected), "{text:?}");
        }
        assert!(to_number(b"nan").is_some_and(f64::is_nan));
        for text in ["", " ", "abc", "1_0", "0x", "1e", "--1", "+-1", "1 2"] {
            assert_eq!(to_number(text.as_bytes()), None, "{text:?}");
        }
    }
}
