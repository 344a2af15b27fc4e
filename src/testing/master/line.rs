//! The commands that a line of waiters needs: those of sorted sets with integer scores, and those
//! of messages.
//!
//! They have only the forms that lines use: `ZADD key [NX | XX] score member` with one member,
//! `ZRANGE` by rank, `SUBSCRIBE` on RESP3 only, `PUBSUB NUMSUB`. Replies with scores are flat, as
//! in a script.

use super::keys::Content;
use super::reply::Reply;
use super::request::integer;
use super::{Call, ConnectionId, Master};

const SYNTAX: &str = "ERR syntax error";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The members in their order: by score, and by their bytes if the scores are equal.
type Members = Vec<(i64, Vec<u8>)>;

impl Master {
    /// The members of a sorted set; empty if there is no such key.
    fn members_at(&mut self, call: &Call, key: &[u8]) -> Result<Members, Reply> {
        match self.look_up(call, key).map(|entry| &entry.content) {
            None => Ok(Members::new()),
            Some(Content::Sorted(members)) => Ok(members.clone()),
            Some(_) => Err(Reply::error(WRONG_TYPE)),
        }
    }

    /// The members of the line at a key at `now`, first to last.
    pub fn line(&self, now: crate::proto::time::Instant, key: &[u8]) -> Vec<Vec<u8>> {
        self.databases[0].sorted(key, self.wall(now))
    }

    /// Whether a connection is subscribed to the channel.
    pub fn has_listener(&self, channel: &[u8]) -> bool {
        self.connections.values().any(|state| state.channels.contains(channel))
    }

    /// The connections that are subscribed to the channel.
    fn listeners(&self, channel: &[u8]) -> Vec<ConnectionId> {
        let heard =
            |state: &super::session::Connection| !state.closing && state.channels.contains(channel);
        let all = self.connections.iter().filter(|(_, state)| heard(state));
        all.map(|(&id, _)| id).collect()
    }

    /// Sends a message to every connection that is subscribed to the channel. Returns the number of
    /// these connections.
    fn send_message(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let listeners = self.listeners(channel);
        let words = [&b"message"[..], channel, message].map(Reply::bulk);
        for &id in &listeners {
            self.say(id, &Reply::Push(words.to_vec()));
        }
        i64::try_from(listeners.len()).unwrap_or(i64::MAX)
    }
}

pub(super) fn zadd(master: &mut Master, call: &Call) -> Reply {
    let key = &call.words[1];
    let (skips_new, skips_old, score, member) = match &call.words[2..] {
        [score, member] => (false, false, score, member),
        [nx, score, member] if nx.eq_ignore_ascii_case(b"nx") => (false, true, score, member),
        [xx, score, member] if xx.eq_ignore_ascii_case(b"xx") => (true, false, score, member),
        _ => return Reply::error(SYNTAX),
    };
    let Some(score) = integer(score) else { return Reply::error("ERR value is not a valid float") };
    let mut members = match master.members_at(call, key) {
        Ok(members) => members,
        Err(error) => return error,
    };
    let there = members.iter().position(|(_, other)| other == member);
    if (there.is_some() && skips_old) || (there.is_none() && skips_new) {
        return Reply::Integer(0);
    }
    if let Some(place) = there {
        members.remove(place);
    }
    members.push((score, member.clone()));
    members.sort();
    master.write_sorted(call, key, members);
    Reply::Integer(i64::from(there.is_none()))
}

pub(super) fn zrem(master: &mut Master, call: &Call) -> Reply {
    let key = &call.words[1];
    let mut members = match master.members_at(call, key) {
        Ok(members) => members,
        Err(error) => return error,
    };
    let before = members.len();
    members.retain(|(_, member)| !call.words[2..].contains(member));
    let removed = before - members.len();
    if removed > 0 {
        master.write_sorted(call, key, members);
    }
    Reply::Integer(removed as i64)
}

pub(super) fn zrank(master: &mut Master, call: &Call) -> Reply {
    match master.members_at(call, &call.words[1]) {
        Ok(members) => {
            let place = members.iter().position(|(_, member)| *member == call.words[2]);
            place.map_or(Reply::Null, |place| Reply::Integer(place as i64))
        }
        Err(error) => error,
    }
}

pub(super) fn zscore(master: &mut Master, call: &Call) -> Reply {
    match master.members_at(call, &call.words[1]) {
        Ok(members) => {
            let found = members.iter().find(|(_, member)| *member == call.words[2]);
            found.map_or(Reply::Null, |(score, _)| Reply::bulk(score.to_string().as_bytes()))
        }
        Err(error) => error,
    }
}

pub(super) fn zrange(master: &mut Master, call: &Call) -> Reply {
    let (Some(first), Some(last)) = (integer(&call.words[2]), integer(&call.words[3])) else {
        return Reply::error(NOT_INTEGER);
    };
    let with_scores = match &call.words[4..] {
        [] => false,
        [word] if word.eq_ignore_ascii_case(b"withscores") => true,
        _ => return Reply::error(SYNTAX),
    };
    let members = match master.members_at(call, &call.words[1]) {
        Ok(members) => members,
        Err(error) => return error,
    };
    let length = members.len() as i64;
    let from_start = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (first, last) = (from_start(first), from_start(last).min(length - 1));
    let mut found = Vec::new();
    for place in first..=last {
        let (score, member) = &members[place as usize];
        found.push(Reply::bulk(member.as_slice()));
        if with_scores {
            found.push(Reply::bulk(score.to_string()));
        }
    }
    Reply::Array(found)
}

pub(super) fn numsub(master: &mut Master, call: &Call) -> Reply {
    let counts = call.words[2..].iter().flat_map(|channel| {
        let count = master.listeners(channel).len() as i64;
        [Reply::bulk(channel.as_slice()), Reply::Integer(count)]
    });
    Reply::Array(counts.collect())
}

pub(super) fn publish(master: &mut Master, call: &Call) -> Reply {
    Reply::Integer(master.send_message(&call.words[1], &call.words[2]))
}

/// `SUBSCRIBE` to one channel.
pub(super) fn subscribe(master: &mut Master, call: &Call) -> Reply {
    let connection = master.own(call);
    if !connection.resp3 || call.words.len() != 2 {
        return Reply::error("ERR this master subscribes to one channel, and by RESP3 only");
    }
    connection.channels.insert(call.words[1].clone());
    let count = connection.channels.len() as i64;
    let channel = Reply::bulk(call.words[1].as_slice());
    Reply::Push(vec![Reply::bulk(&b"subscribe"[..]), channel, Reply::Integer(count)])
}
