//! The scripts for all keys of a lock, with or without counters: those of
//! [`crate::proto::wire::sets`], each written again in Rust.

use super::reply::Reply;
use super::scripts::{NO_COUNTER, Outcome, Sandbox, number, prolong, to_number, token_is};
use crate::proto::wire::command::Script;
use crate::proto::wire::sets::ADOPT;

/// No client calls this script by its SHA1, but a server has the SHA1 in its errors.
pub(super) const TAKE_UP: Script =
    Script { source: ADOPT, sha1: "cb2c7c130e3571d3470f8979a41ce202c111f4ca" };

/// What a script finds at a key.
enum Found {
    Nothing,
    Ours,
    Others,
    /// An error that is not about the type of the key.
    Trouble(Reply),
}

/// `redis.pcall('GET', KEYS[index + 1])`, compared with these arguments.
fn compare_key(lua: &mut Sandbox<'_>, index: usize, tokens: &[usize]) -> Found {
    match lua.call(&[Some(b"GET"), lua.key(index)]) {
        Ok(Reply::Null) => Found::Nothing,
        Ok(value) if tokens.iter().any(|&token| token_is(&value, lua.argument(token))) => {
            Found::Ours
        }
        Err(Reply::Error(line)) if !line.starts_with(b"WRONGTYPE") => {
            Found::Trouble(Reply::Error(line))
        }
        _ => Found::Others,
    }
}

/// The answer that names the key with this index, which counts from 0.
fn answer_naming_key(times: i64, index: usize, less: i64) -> Reply {
    Reply::Integer(-times * (index as i64 + 1) - less)
}

pub(super) fn release(lua: &mut Sandbox<'_>) -> Outcome {
    let (mut answer, mut failed) = (None, None);
    for index in 0..lua.count_keys() {
        match compare_key(lua, index, &[0]) {
            Found::Ours => drop(lua.call(&[Some(b"DEL"), lua.key(index)])?),
            Found::Nothing => answer = answer.or(Some(answer_naming_key(2, index, 0))),
            Found::Others => answer = answer.or(Some(answer_naming_key(2, index, 1))),
            Found::Trouble(error) => failed = Some(error),
        }
    }
    Ok(failed.or(answer).unwrap_or(Reply::Integer(1)))
}

pub(super) fn adopt(lua: &mut Sandbox<'_>) -> Outcome {
    if let Some(answer) = all_are_ours(lua, &[0, 1]) {
        return Ok(answer);
    }
    let asked = lua.argument(2).and_then(to_number);
    for index in 0..lua.count_keys() {
        let left = number(&lua.call(&[Some(b"PTTL"), lua.key(index)])?);
        let asked = asked.ok_or_else(|| {
            let nil = "bad argument #1 to 'max' (number expected, got nil)";
            Reply::error(format!("ERR user_script:1: {nil}"))
        })?;
        // As `math.max` does, this keeps a first argument that is not a number.
        let ttl = if left > asked { left } else { asked };
        let ttl = format!("{ttl:.0}").to_ascii_lowercase();
        let words = [Some(&b"SET"[..]), lua.key(index), lua.argument(1)];
        let options = [&b"XX"[..], b"PX", ttl.as_bytes()].map(Some);
        lua.call(&[&words[..], &options[..]].concat())?;
    }
    Ok(Reply::Integer(1))
}

/// Whether the script also counts fencing numbers, and how many keys it has besides the counters.
fn keys_of(lua: &Sandbox<'_>) -> (bool, usize) {
    let counts = lua.argument(2).is_some();
    (counts, if counts { lua.count_keys() / 2 } else { lua.count_keys() })
}

pub(super) fn acquire(lua: &mut Sandbox<'_>) -> Outcome {
    let (counts, keys) = keys_of(lua);
    let mut numbers = Vec::new();
    if counts {
        let Some(read) = counters(lua, keys)? else { return Ok(Reply::error(NO_COUNTER)) };
        numbers = read;
    }
    if keys > 1 || !is_set_alone(lua)? {
        let mut own = Vec::new();
        for index in 0..keys {
            match compare_key(lua, index, &[0]) {
                Found::Nothing => own.push(false),
                Found::Ours => own.push(true),
                Found::Others => return Ok(answer_naming_key(1, index, 0)),
                Found::Trouble(error) => return Ok(error),
            }
        }
        for (index, own) in own.into_iter().enumerate() {
            let key = lua.key(index);
            if own && number(&lua.call(&[Some(b"PTTL"), key])?) >= lua.number_argument(1)? {
                continue;
            }
            lua.call(&[Some(b"SET"), key, lua.argument(0), Some(b"PX"), lua.argument(1)])?;
        }
    }
    if !counts {
        return Ok(Reply::Integer(1));
    }
    let floor = lua.number_argument(4)?;
    for (index, count) in numbers.iter_mut().enumerate() {
        if *count < floor {
            *count = lua.seed(3)?.max(*count);
        }
        let raised = lua.argument(5 + index).and_then(to_number);
        *count = raised.map_or(*count + 1.0, |fence| count.max(fence));
        lua.set_counter(keys + index, *count, 2)?;
    }
    Ok(votes_of(&numbers))
}

/// The answer with these votes for fencing numbers.
fn votes_of(numbers: &[f64]) -> Reply {
    match *numbers {
        [vote] => Reply::Integer(vote as i64),
        _ => Reply::Array(numbers.iter().map(|&vote| Reply::Integer(vote as i64)).collect()),
    }
}

/// Writes the only key if it is free, and returns whether it was.
fn is_set_alone(lua: &mut Sandbox<'_>) -> Result<bool, Reply> {
    let words = [Some(&b"SET"[..]), lua.key(0), lua.argument(0)];
    let options = [Some(&b"NX"[..]), Some(b"PX"), lua.argument(1)];
    Ok(lua.call(&[words, options].concat())? != Reply::Null)
}

pub(super) fn extend(lua: &mut Sandbox<'_>) -> Outcome {
    let (counts, keys) = keys_of(lua);
    if let Some(answer) = are_ours(lua, keys, &[0]) {
        return Ok(answer);
    }
    let mut numbers = Vec::new();
    if counts {
        let Some(read) = counters(lua, keys)? else { return Ok(Reply::error(NO_COUNTER)) };
        numbers = read;
        for (index, number) in numbers.iter_mut().enumerate() {
            let count = *number;
            let fence = lua.argument(5 + index).and_then(to_number);
            if fence.is_some_and(|fence| count >= fence) {
                lua.call(&[Some(b"PEXPIRE"), lua.key(keys + index), lua.argument(2)])?;
            } else {
                let low = count < lua.number_argument(4)?;
                let count = if low { lua.seed(3)?.max(count) } else { count };
                let count = fence.map_or(count + 1.0, |fence| count.max(fence));
                lua.set_counter(keys + index, count, 2)?;
                *number = count;
            }
        }
    }
    if lua.argument(1) != Some(b"0") {
        for index in 0..keys {
            prolong(lua, index)?;
        }
    }
    let votes = counts && lua.argument(5).is_none();
    Ok(if votes { votes_of(&numbers) } else { Reply::Integer(1) })
}

/// The values of the counters of this number of keys; `None` if one of them is not a number.
fn counters(lua: &mut Sandbox<'_>, keys: usize) -> Result<Option<Vec<f64>>, Reply> {
    (0..keys).map(|index| lua.counter(keys + index)).collect()
}

/// The answer that names the first key that does not hold one of these tokens; `None` if all do.
fn all_are_ours(lua: &mut Sandbox<'_>, tokens: &[usize]) -> Option<Reply> {
    are_ours(lua, lua.count_keys(), tokens)
}

/// As `all_are_ours`, for the first `keys` keys.
fn are_ours(lua: &mut Sandbox<'_>, keys: usize, tokens: &[usize]) -> Option<Reply> {
    (0..keys).find_map(|index| match compare_key(lua, index, tokens) {
        Found::Ours => None,
        Found::Nothing => Some(answer_naming_key(2, index, 0)),
        Found::Others => Some(answer_naming_key(2, index, 1)),
        Found::Trouble(error) => Some(error),
    })
}
