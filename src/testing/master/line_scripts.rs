//! The scripts of the line, written again in Rust, like the other scripts in [`super::scripts`].

use super::reply::Reply;
use super::request::integer;
use super::scripts::{Outcome, Sandbox, token_is};
use crate::proto::wire::line::{MOST_SEARCHED, MOST_SKIPPED, SCORE_OF_A_PLACE, name_of};

/// A member of the line, its score, and the member behind it.
struct Front {
    member: Vec<u8>,
    score: Option<i64>,
    after: Vec<u8>,
}

/// The macro `front` of the scripts: the first member of the line; `None` if the line is empty.
fn front(lua: &mut Sandbox) -> Result<Option<Front>, Reply> {
    let range = [Some(&b"ZRANGE"[..]), lua.key(1), Some(b"0"), Some(b"1"), Some(b"WITHSCORES")];
    let Reply::Array(items) = lua.call(&range)? else { return Ok(None) };
    let text = |index: usize| match items.get(index) {
        Some(Reply::Bulk(text)) => Some(text.clone()),
        _ => None,
    };
    let score = text(1).as_deref().and_then(integer);
    Ok(text(0).map(|member| Front { member, score, after: text(2).unwrap_or_default() }))
}

/// The member that has this name, if it is among the first of the line, or else the first member.
fn named_or_first(lua: &mut Sandbox, line: Front, name: &[u8]) -> Result<Front, Reply> {
    let name = [b" ", name].concat();
    let has_name = |member: &[u8]| member.windows(name.len()).any(|part| part == name);
    if name == b" " || has_name(&line.member) {
        return Ok(line);
    }
    let last = (MOST_SEARCHED - 1).to_string();
    let all = lua.call(&[Some(b"ZRANGE"), lua.key(1), Some(b"0"), Some(last.as_bytes())])?;
    let Reply::Array(all) = all else { return Ok(line) };
    let found = all.into_iter().find_map(|member| match member {
        Reply::Bulk(member) if has_name(&member) => Some(member),
        _ => None,
    });
    let Some(member) = found else { return Ok(line) };
    // Errors count as no answer, as with `redis.pcall`.
    let score = score_of(lua, Some(&member)).unwrap_or(None);
    Ok(Front { member, score, after: line.member })
}

/// Splits a member of the line into its two ttls, channel, mark and token.
fn parts_of_member(member: &[u8]) -> Option<[&[u8]; 5]> {
    let parts: Vec<&[u8]> = member.split(|&byte| byte == b' ').collect();
    let [ttl, short, channel, mark, token] = parts[..] else { return None };
    let is_ttl = |ttl: &[u8]| {
        let digits = ttl.iter().all(u8::is_ascii_digit) && ttl.len() < 16;
        digits && matches!(ttl.first(), Some(b'1'..=b'9'))
    };
    let none_empty = [channel, mark, token].iter().all(|part| !part.is_empty());
    let good = is_ttl(ttl) && is_ttl(short) && none_empty;
    good.then_some([ttl, short, channel, mark, token])
}

/// The value `now` of the scripts of the line.
fn now(lua: &mut Sandbox) -> Result<i64, Reply> {
    let Reply::Array(time) = lua.call(&[Some(b"TIME")])? else { return Ok(0) };
    let part = |reply: &Reply| match reply {
        Reply::Bulk(digits) => integer(digits).unwrap_or(0),
        _ => 0,
    };
    Ok((part(&time[0]) * 1000 + part(&time[1]) / 1000).rem_euclid(SCORE_OF_A_PLACE))
}

/// The score of a member of the line, if it is in the line.
fn score_of(lua: &mut Sandbox, member: Option<&[u8]>) -> Result<Option<i64>, Reply> {
    let found = lua.call(&[Some(b"ZSCORE"), lua.key(1), member])?;
    Ok(if let Reply::Bulk(score) = &found { integer(score) } else { None })
}

/// The function `give` of the scripts: gives the key to the first member that can take it. Returns
/// that member, or `own` if it comes first.
fn give(
    lua: &mut Sandbox,
    line: Front,
    name: &[u8],
    own: Option<&[u8]>,
    mut known_now: Option<i64>,
) -> Result<Option<Vec<u8>>, Reply> {
    let mut next = Some(named_or_first(lua, line, name)?);
    let mut skipped = 0;
    for _ in 0..MOST_SKIPPED {
        let front = match next.take() {
            Some(front) => Some(front),
            // Errors count as no answer, as with `redis.pcall`.
            None => front(lua).unwrap_or(None),
        };
        let Some(Front { member, score, after }) = front else { return Ok(None) };
        if own == Some(&member[..]) {
            return Ok(Some(member));
        }
        let parts = parts_of_member(&member);
        if known_now.is_none() && parts.is_some_and(|[ttl, short, ..]| ttl != short) {
            known_now = Some(now(lua)?);
        }
        // The script calls `ZREM` by `redis.pcall`, and returns no member if that failed.
        let Ok(removed) = lua.call(&[Some(b"ZREM"), lua.key(1), Some(&member)]) else {
            return Ok(None);
        };
        let parts = parts.filter(|_| removed == Reply::Integer(1));
        let Some([ttl, short, channel, mark, token]) = parts else { continue };
        let age = |score: i64| (known_now.unwrap_or(0) - score).rem_euclid(SCORE_OF_A_PLACE);
        let runs = |score| 4 * age(score) < integer(short).unwrap_or(0);
        let ttl = if score.is_some_and(runs) { ttl } else { short };
        let write = [Some(&b"SET"[..]), lua.key(0), Some(token), Some(b"PX"), Some(ttl)];
        if channel == b"-" {
            lua.call(&write)?;
            return Ok(Some(member));
        }
        // An error counts as heard, as with `redis.pcall`.
        let heard = lua.call(&[Some(b"PUBSUB"), Some(b"NUMSUB"), Some(channel)]);
        let unheard = matches!(heard, Ok(Reply::Array(counts)) if counts[1] == Reply::Integer(0));
        if !unheard {
            lua.call(&write)?;
            let after = after.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            let (count, key) = (format!("{skipped}"), lua.key(0).unwrap_or_default());
            let message = [ttl, count.as_bytes(), name_of(after), mark, token, key].join(&b'\n');
            // An error counts as heard, as with `redis.pcall`.
            let heard = lua.call(&[Some(b"PUBLISH"), Some(channel), Some(&message)]);
            if heard != Ok(Reply::Integer(0)) {
                return Ok(Some(member));
            }
        }
        skipped += 1;
    }
    lua.call(&[Some(b"DEL"), lua.key(0)])?;
    Ok(None)
}

/// The score of the last member of the line; `None` if the line is empty.
fn last_score(lua: &mut Sandbox) -> Result<Option<i64>, Reply> {
    let range = [Some(&b"ZRANGE"[..]), lua.key(1), Some(b"-1"), Some(b"-1")];
    let found = lua.call(&[&range[..], &[Some(b"WITHSCORES")]].concat())?;
    let Reply::Array(items) = &found else { return Ok(None) };
    Ok(match items.get(1) {
        Some(Reply::Bulk(score)) => integer(score),
        _ => None,
    })
}

/// The function `stand` of the script of a join: adds the member to the line. Returns whether the
/// member is new.
fn stand(lua: &mut Sandbox, how: &[u8], place: i64, now: i64) -> Result<bool, Reply> {
    let score = (place - place.rem_euclid(SCORE_OF_A_PLACE) + now).to_string();
    let add = [Some(&b"ZADD"[..]), lua.key(1), Some(how), Some(score.as_bytes()), lua.argument(1)];
    Ok(lua.call(&add)? == Reply::Integer(1))
}

/// The function `mine` of the script of a join: the answer that the joining client has the key.
fn mine(lua: &mut Sandbox, left: &[u8]) -> Reply {
    // As with `redis.pcall`, an error does not end the script.
    let first = lua.call(&[Some(b"ZRANGE"), lua.key(1), Some(b"0"), Some(b"0")]);
    let member = match first {
        Ok(Reply::Array(mut items)) if !items.is_empty() => items.swap_remove(0),
        _ => Reply::Null,
    };
    let member = if let Reply::Bulk(member) = member { member } else { Vec::new() };
    let token = member.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    Reply::Bulk([b"mine ", left, b" ", name_of(token)].concat())
}

/// The answer of `PTTL` for the key, in digits.
fn left(lua: &mut Sandbox) -> Result<String, Reply> {
    let left = lua.call(&[Some(b"PTTL"), lua.key(0)])?;
    Ok(if let Reply::Integer(left) = left { left.to_string() } else { String::new() })
}

/// Whether the line ends before `ARGV[4]` has passed.
fn lives_shorter(lua: &mut Sandbox) -> Result<bool, Reply> {
    let left = lua.call(&[Some(b"PTTL"), lua.key(1)])?;
    let ttl = lua.argument(3).map(String::from_utf8_lossy).and_then(|ttl| ttl.parse().ok());
    Ok(matches!((left, ttl), (Reply::Integer(left), Some(ttl)) if left < ttl))
}

pub(super) fn join(lua: &mut Sandbox) -> Outcome {
    let mut value = lua.call(&[Some(b"GET"), lua.key(0)])?;
    let member = lua.argument(1);
    if token_is(&value, lua.argument(0)) {
        let earlier = (5..lua.count_arguments()).map(|earlier| lua.argument(earlier));
        let words: Vec<_> =
            [Some(&b"ZREM"[..]), lua.key(1), member].into_iter().chain(earlier).collect();
        lua.call(&words)?;
        let left = left(lua)?;
        return Ok(mine(lua, left.as_bytes()));
    }
    let now = now(lua)?;
    let mut stands = lua.argument(4) == Some(b"1");
    for earlier in 5..lua.count_arguments() {
        let earlier = lua.argument(earlier);
        if let Some(score) = score_of(lua, earlier)? {
            let score = score.to_string();
            let add = [Some(&b"ZADD"[..]), lua.key(1), Some(b"NX"), Some(score.as_bytes())];
            lua.call(&[&add[..], &[member]].concat())?;
            lua.call(&[Some(b"ZREM"), lua.key(1), earlier])?;
            stands = true;
        }
    }
    if value == Reply::Null {
        // Errors count as no answer, as with `redis.pcall`.
        let found = match front(lua).unwrap_or(None) {
            None => None,
            Some(line) => match give(lua, line, &[], member, Some(now))? {
                Some(found) => Some(found),
                // Errors count as no answer, as with `redis.pcall`.
                None => front(lua).unwrap_or(None).map(|line| line.member),
            },
        };
        if found.is_none() || found.as_deref() == member {
            lua.call(&[Some(b"ZREM"), lua.key(1), member])?;
            let (token, ttl) = (lua.argument(0), lua.argument(2));
            lua.call(&[Some(b"SET"), lua.key(0), token, Some(b"PX"), ttl])?;
            return Ok(mine(lua, lua.argument(2).unwrap_or_default()));
        }
        value = lua.call(&[Some(b"GET"), lua.key(0)])?;
    }
    let value = if let Reply::Bulk(value) = value { value } else { Vec::new() };
    let mut score = if stands { score_of(lua, member)? } else { None };
    let mut is_first = false;
    if score.is_none() {
        let last = last_score(lua)?;
        is_first = last.is_none();
        if !stand(lua, b"NX", last.unwrap_or(0) + SCORE_OF_A_PLACE, now)? {
            score = score_of(lua, member)?;
        }
    }
    if let Some(score) = score {
        stand(lua, b"XX", score, now)?;
    }
    let prolong = [Some(&b"PEXPIRE"[..]), lua.key(1), lua.argument(3)];
    // The second call is `redis.pcall`.
    let prolongs_alone = is_first
        || lua.call(&[&prolong[..], &[Some(b"GT")]].concat()).is_err() && lives_shorter(lua)?;
    if prolongs_alone {
        lua.call(&prolong)?;
    }
    let rank = match value.is_empty() || is_first {
        true => Reply::Integer(0),
        false => lua.call(&[Some(b"ZRANK"), lua.key(1), member])?,
    };
    let Reply::Integer(rank) = rank else {
        return Err(Reply::error("ERR user_script:1: attempt to concatenate a nil value"));
    };
    let standing = format!("held {rank} {} ", left(lua)?);
    Ok(Reply::Bulk([standing.as_bytes(), &value[..value.len().min(168)]].concat()))
}

/// The script that hands a lock over to the next waiters. For one key and its line it answers like
/// the release of one key, and for several like the release of a set.
pub(super) fn hand_over(lua: &mut Sandbox) -> Outcome {
    let keys = lua.count_keys();
    let (mut answer, mut failed) = (1, None);
    for pair in (0..keys).step_by(2) {
        lua.begin_keys_at(pair);
        match hand_over_one(lua, keys == 2)? {
            said if keys == 2 => return Ok(said),
            Reply::Integer(1) => {}
            Reply::Integer(said) if answer == 1 => answer = said - pair as i64 - 2,
            Reply::Integer(_) => {}
            error => failed = Some(error),
        }
    }
    Ok(failed.unwrap_or(Reply::Integer(answer)))
}

/// The function `release` of the script: hands over one key.
fn hand_over_one(lua: &mut Sandbox, alone: bool) -> Outcome {
    // As with `redis.pcall`, an error does not end the script.
    let value = match lua.call(&[Some(b"GET"), lua.key(0)]) {
        Err(Reply::Error(line)) if !alone && line.starts_with(b"WRONGTYPE") => {
            Reply::Bulk(Vec::new())
        }
        Err(error) => return Ok(error),
        Ok(value) => value,
    };
    let ours = token_is(&value, lua.argument(0));
    // As with `redis.pcall`, an error does not end the script.
    let mut line = match front(lua) {
        Ok(line) => line,
        Err(Reply::Error(line)) if line.starts_with(b"WRONGTYPE") => None,
        Err(error) => return Ok(error),
    };
    let mut left = Reply::Integer(0);
    if line.is_some() && lua.argument(2).is_some() {
        let own = (2..lua.count_arguments()).map(|own| lua.argument(own));
        let words: Vec<_> = [Some(&b"ZREM"[..]), lua.key(1)].into_iter().chain(own).collect();
        left = lua.call(&words)?;
    }
    if value != Reply::Null && !ours {
        return Ok(Reply::Integer(-1));
    }
    if left != Reply::Integer(0) {
        // As with `redis.pcall`, an error does not end the script.
        line = front(lua).unwrap_or(None);
    }
    let answer = Reply::Integer(i64::from(ours));
    let has_line = line.is_some();
    let name = lua.argument(1).unwrap_or_default();
    let given = match line {
        Some(line) => give(lua, line, name, None, None)?,
        None => None,
    };
    if given.is_some() {
        return Ok(answer);
    }
    if ours || has_line {
        lua.call(&[Some(b"DEL"), lua.key(0)])?;
    }
    Ok(answer)
}
