//! Fencing numbers of locks over several keys: how the scripts over a set are sent if they count
//! for every key. `KEYS` are the keys of the set, and then their counters in the same order.
//!
//! The hazards are those of [`counters`](crate::proto::wire::counters) and of
//! [`sets`](crate::proto::wire::sets): a counter that starts too low, and a part of a set. So each
//! script looks at all keys and all counters before it writes one.

use bytes::BytesMut;

use crate::proto::error::NodeReply;
use crate::proto::key_set::{MOST_KEYS, parts};
use crate::proto::lock::LockToken;
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    Form, Script, decimal, put_bulk, put_bulk_of, put_header, put_token,
};
use crate::proto::wire::counters::{Counting, LIMIT, affixes};
use crate::proto::wire::resp::Reply;
use crate::proto::wire::sets::{ACQUIRE_SET, EXTEND_SET, SetKeys, acquire_answer};

/// [`ACQUIRE_SET`], to count.
pub fn acquire(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Ttl),
    counting: Counting,
) {
    put_script(out, &ACQUIRE_SET, form, keys, 5);
    put_common(out, token, Some(ttl), counting);
}

/// [`ACQUIRE_SET`], to heal. Always by its source: it is rare.
pub fn heal(
    out: &mut BytesMut,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Ttl),
    counting: Counting,
    fences: impl ExactSizeIterator<Item = u64>,
) {
    put_script(out, &ACQUIRE_SET, Form::Source, keys, 5 + fences.len());
    put_common(out, token, Some(ttl), counting);
    fences.for_each(|fence| put_number(out, fence));
}

/// [`EXTEND_SET`]; without a ttl it only raises the counters.
pub fn extend(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Option<Ttl>),
    counting: Counting,
    fences: impl ExactSizeIterator<Item = u64>,
) {
    put_script(out, &EXTEND_SET, form, keys, 5 + fences.len());
    put_common(out, token, ttl, counting);
    fences.for_each(|fence| put_number(out, fence));
}

/// `EVALSHA sha 2n key... counter...` or `EVAL source 2n key... counter...`; the arguments follow.
fn put_script(
    out: &mut BytesMut,
    script: &Script,
    form: Form,
    keys: SetKeys<'_>,
    arguments: usize,
) {
    let (prefix, names) = (keys.prefix.as_bytes(), 2 * keys.ends.len());
    put_header(out, b'*', 3 + names + arguments);
    let (command, text) = match form {
        Form::Sha => ("EVALSHA", script.sha1),
        Form::Source | Form::Native(_) => ("EVAL", script.source),
    };
    put_bulk(out, command.as_bytes());
    put_bulk(out, text.as_bytes());
    put_number(out, names as u64);
    for key in parts(keys.bytes, keys.ends) {
        put_bulk_of(out, &[prefix, key]);
    }
    for key in parts(keys.bytes, keys.ends) {
        let (before, after) = affixes(&[prefix, key].concat());
        put_bulk_of(out, &[before, prefix, key, after]);
    }
}

fn put_common(out: &mut BytesMut, token: &LockToken, ttl: Option<Ttl>, counting: Counting) {
    put_token(out, token);
    put_number(out, ttl.map_or(0, Ttl::as_millis));
    put_number(out, counting.lives);
    put_number(out, counting.step);
    put_number(out, counting.floor);
}

fn put_number(out: &mut BytesMut, number: u64) {
    let mut digits = [0; 20];
    put_bulk(out, decimal(number, &mut digits));
}

/// What [`ACQUIRE_SET`] answered with counters: the votes for all keys, which are put into `votes`,
/// or the number of the key that is held, from 0 on.
pub fn acquire_votes(reply: &Reply<'_>, votes: &mut Vec<u64>) -> Option<(NodeReply, u64)> {
    let Reply::Array(elements) = *reply else {
        return acquire_answer(reply).filter(|&(said, _)| said == NodeReply::Held);
    };
    let vote = |element: Reply<'_>| match element {
        Reply::Integer(number) => u64::try_from(number).ok(),
        _ => None,
    };
    votes.clear();
    votes.extend(elements.iter().map_while(vote).filter(|&vote| vote > 0 && vote < LIMIT));
    let whole = votes.len() == elements.len() && (2..=MOST_KEYS).contains(&votes.len());
    whole.then_some((NodeReply::Granted, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::key::KeyPrefix;
    use crate::proto::key_set::KeySet;
    use crate::proto::wire::resp::{self, Step};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    fn written(encode: impl FnOnce(&mut BytesMut, SetKeys<'_>, (&LockToken, Ttl))) -> String {
        let (set, mut out) = (KeySet::new(["b{x}", "a"]).unwrap(), BytesMut::new());
        let (bytes, ends) = set.as_parts();
        let token = LockToken::random(&mut StdRng::from_seed([3; 32]));
        let ttl = Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap();
        let keys = SetKeys { prefix: &KeyPrefix::new("p:"), bytes, ends };
        encode(&mut out, keys, (&token, ttl));
        let text = String::from_utf8(out.to_vec()).unwrap();
        let words = text.split("\r\n").filter(|line| !line.starts_with('$'));
        words.collect::<Vec<_>>().join(" ").replace(&token.to_string(), "TOKEN")
    }

    #[test]
    fn fenced_commands_over_a_set_name_all_keys_and_then_all_counters() {
        let counting = Counting { lives: 600_000, step: 1000, floor: 5, fence: 0 };
        let keys = "4 p:a p:b{x} {p:a}:fence p:b{x}:fence TOKEN";
        let text = written(|out, keys, what| acquire(out, Form::Sha, keys, what, counting));
        let sha = ACQUIRE_SET.sha1;
        assert_eq!(text, format!("*12 EVALSHA {sha} {keys} 10000 600000 1000 5 "));
        let fences = || [7, 8].into_iter();
        let text = written(|out, keys, what| heal(out, keys, what, counting, fences()));
        assert!(text.starts_with("*14 EVAL ") && text.contains(ACQUIRE_SET.source));
        assert!(text.ends_with(&format!("{keys} 10000 600000 1000 5 7 8 ")), "{text}");
        let text = written(|out, keys, (token, _)| {
            extend(out, Form::Sha, keys, (token, None), counting, fences());
        });
        let sha = EXTEND_SET.sha1;
        assert_eq!(text, format!("*14 EVALSHA {sha} {keys} 0 600000 1000 5 7 8 "));
    }

    #[test]
    fn votes_for_a_set_are_numbers_that_counters_can_have() {
        let mut votes = Vec::new();
        let mut read = |text: &str| {
            let step = resp::decode(text.as_bytes(), &resp::Limits::default()).unwrap();
            let Step::Complete { reply, .. } = step else { panic!("{text:?} is not whole") };
            acquire_votes(&reply, &mut votes).map(|(said, key)| (said, key, votes.clone()))
        };
        let granted = Some((NodeReply::Granted, 0, vec![7, 8]));
        assert_eq!(read("*2\r\n:7\r\n:8\r\n"), granted);
        assert_eq!(read(":-2\r\n").map(|it| (it.0, it.1)), Some((NodeReply::Held, 1)));
        let limit = format!("*2\r\n:7\r\n:{LIMIT}\r\n");
        for text in [":1\r\n", ":0\r\n", ":-65\r\n", "+OK\r\n", "*0\r\n", "*1\r\n:7\r\n", &limit] {
            assert_eq!(read(text), None, "{text:?}");
        }
        for odd in [":0", ":-1", "$1\r\n7", "_"] {
            let text = format!("*2\r\n:7\r\n{odd}\r\n");
            assert_eq!(read(&text), None, "{text:?}");
        }
    }
}
