//! A fenced acquire of one key as a transaction: `MULTI`, `SET NX` of the key, `INCR` and `PEXPIRE`
//! of its counter, `EXEC`. It is as atomic as the script. With its release it costs a master 0.6 of
//! what the script costs with it (Redis 7.0.15).
//!
//! Unlike the script it also counts if the key is held, and if there is no counter: then `INCR`
//! starts one from 0. So its vote counts only if it is above the floor, which is above everything
//! that such a counter reaches; the caller checks this.
//!
//! The hazard is that one question has five replies. A node that refuses a command in the queue
//! executes nothing; one that refuses `MULTI` executes the others each by itself. After either only
//! an error of `EXEC` is an answer.

use bytes::BytesMut;

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::lock::LockToken;
use crate::proto::own_keys::COUNTER;
use crate::proto::time::Ttl;
use crate::proto::wire::command::{put_bulk, put_bulk_of, put_number, put_token};
use crate::proto::wire::counters::LIMIT;
use crate::proto::wire::resp::Reply;

/// How many replies come before that of `EXEC`.
const BEFORE_EXEC: u8 = 4;

/// What a node usually sends, up to its vote.
const GRANTED: &[u8] = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n:";

/// Encodes the transaction. `key` comes after `prefix`, and `lives` is how long the counter lives
/// after it was counted up, in milliseconds.
pub fn acquire(
    out: &mut BytesMut,
    (prefix, key): (&[u8], &[u8]),
    token: &LockToken,
    ttl: Ttl,
    lives: u64,
) {
    let counter = [COUNTER[0], prefix, key, COUNTER[1]];
    out.extend_from_slice(b"*1\r\n$5\r\nMULTI\r\n*6\r\n$3\r\nSET\r\n");
    put_bulk_of(out, [prefix, key]);
    put_token(out, token);
    out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
    put_number(out, ttl.as_millis());
    out.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n");
    put_bulk_of(out, counter);
    out.extend_from_slice(b"*3\r\n$7\r\nPEXPIRE\r\n");
    put_bulk_of(out, counter);
    put_number(out, lives);
    out.extend_from_slice(b"*1\r\n");
    put_bulk(out, b"EXEC");
}

/// How far the replies to the oldest question were read, if that is a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Reading {
    /// How many replies were read.
    read: u8,
    /// The first error among them.
    refused: Option<NodeError>,
}

impl Reading {
    /// Reads the next reply. Returns the answer to the question once it is there, with the vote in
    /// `votes` if the key is granted.
    ///
    /// # Errors
    /// If the command cannot have such a reply.
    pub fn read(
        &mut self,
        reply: &Reply<'_>,
        votes: &mut Vec<u64>,
    ) -> Result<Option<NodeReply>, Impossible> {
        if self.read == BEFORE_EXEC {
            let refused = std::mem::take(self).refused;
            return of_exec(reply, refused, votes).map(Some).ok_or(Impossible);
        }
        let first = self.read == 0;
        match *reply {
            Reply::Error(line) => {
                self.refused.get_or_insert(NodeError::of_error(line));
            }
            Reply::Simple(b"OK") if first => {}
            Reply::Simple(b"QUEUED") if !first => {}
            // The node refused `MULTI` and executed this command.
            Reply::Simple(b"OK") | Reply::Null | Reply::Integer(_) if self.refused.is_some() => {}
            _ => return Err(Impossible),
        }
        self.read += 1;
        Ok(None)
    }

    /// Reads the replies of a node that granted, as it usually does, straight from the bytes.
    /// Returns their length, too. Any others are for [`read`](Reading::read).
    #[inline]
    pub fn read_granted(self, bytes: &[u8], votes: &mut Vec<u64>) -> Option<(NodeReply, usize)> {
        let rest = bytes.strip_prefix(GRANTED).filter(|_| self.read == 0)?;
        let mut vote = 0;
        // A number that counters can have has at most 16 digits.
        for (index, &byte) in rest.iter().enumerate().take(17) {
            match byte {
                b'0'..=b'9' => vote = vote * 10 + u64::from(byte - b'0'),
                b'\r' if rest[index..].starts_with(b"\r\n:1\r\n") && is_vote(vote) => {
                    votes.clear();
                    votes.push(vote);
                    return Some((NodeReply::Granted, GRANTED.len() + index + 6));
                }
                _ => return None,
            }
        }
        None
    }
}

/// A reply that the command cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible;

/// Reads the reply to `EXEC`. `refused`: why the node refused an earlier command.
fn of_exec(
    reply: &Reply<'_>,
    refused: Option<NodeError>,
    votes: &mut Vec<u64>,
) -> Option<NodeReply> {
    let elements = match (*reply, refused) {
        (Reply::Error(line), _) => {
            let cause = refused.unwrap_or_else(|| NodeError::of_error(line));
            return Some(NodeReply::Failed(cause));
        }
        (Reply::Array(elements), None) if elements.len() == 3 => elements,
        _ => return None,
    };
    let mut elements = elements.iter();
    let (set, count, lives) = (elements.next()?, elements.next()?, elements.next()?);
    for element in [set, count, lives] {
        if let Reply::Error(line) = element {
            return Some(NodeReply::Failed(NodeError::of_error(line)));
        }
    }
    match (set, count, lives) {
        (Reply::Null, Reply::Integer(_), Reply::Integer(1)) => Some(NodeReply::Held),
        (Reply::Simple(b"OK"), Reply::Integer(count), Reply::Integer(1)) => {
            let vote = u64::try_from(count).ok().filter(|&vote| is_vote(vote));
            votes.clear();
            votes.extend(vote);
            // Another program uses the counter.
            Some(vote.map_or(NodeReply::Failed(NodeError::Other), |_| NodeReply::Granted))
        }
        _ => None,
    }
}

fn is_vote(number: u64) -> bool {
    number > 0 && number < LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::resp::{self, Step};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    const QUEUED: &str = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";

    /// Reads all replies in `text` one by one.
    fn read(text: &str) -> Result<(Option<NodeReply>, Vec<u64>), Impossible> {
        let (mut reading, mut votes, mut answer) = (Reading::default(), Vec::new(), None);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            assert_eq!(answer, None, "{text:?} has more replies than the question");
            let step = resp::decode(rest, &resp::Limits::default()).unwrap();
            let Step::Complete { reply, consumed } = step else { panic!("{text:?} is not whole") };
            answer = reading.read(&reply, &mut votes)?;
            rest = &rest[consumed..];
        }
        Ok((answer, votes))
    }

    #[test]
    fn transaction_is_five_commands() {
        let token = LockToken::random(&mut StdRng::from_seed([3; 32]));
        let ttl = Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap();
        let mut out = BytesMut::new();
        acquire(&mut out, (b"p:", b"k"), &token, ttl, 600_000);
        let mut expected = BytesMut::new();
        let (text, counter) = (token.to_string(), b"redlatch:fence:{p:k}");
        let set: [&[u8]; 6] = [b"SET", b"p:k", text.as_bytes(), b"NX", b"PX", b"10000"];
        let commands: [&[&[u8]]; 5] =
            [&[b"MULTI"], &set, &[b"INCR", counter], &[b"PEXPIRE", counter, b"600000"], &[b"EXEC"]];
        for words in commands {
            crate::proto::wire::command::encode(&mut expected, words);
        }
        assert_eq!(out, expected);
    }

    #[test]
    fn only_a_granted_key_and_a_whole_count_are_a_vote() {
        let of = |exec: &str| read(&format!("{QUEUED}{exec}"));
        let granted = |vote| Ok((Some(NodeReply::Granted), vec![vote]));
        let failed = |cause| Ok((Some(NodeReply::Failed(cause)), vec![]));
        let all = |set: &str, count: &str, lives: &str| {
            of(&format!("*3\r\n{set}\r\n{count}\r\n{lives}\r\n"))
        };
        assert_eq!(all("+OK", ":7", ":1"), granted(7));
        for null in ["_", "$-1"] {
            assert_eq!(all(null, ":7", ":1"), Ok((Some(NodeReply::Held), vec![])));
        }
        for number in [-4, 0, 1_i64 << 53] {
            assert_eq!(all("+OK", &format!(":{number}"), ":1"), failed(NodeError::Other));
        }
        let wrong_type = "-WRONGTYPE Operation against a key";
        assert_eq!(all("+OK", wrong_type, ":1"), failed(NodeError::WrongType));
        assert_eq!(all("-OOM no", ":7", ":1"), failed(NodeError::OutOfMemory));
        assert_eq!(all("+OK", ":7", "-NOPERM no"), failed(NodeError::NoPermission));
        assert_eq!(of("-EXECABORT Transaction discarded\r\n"), failed(NodeError::Other));
        for odd in ["+OK\r\n", "_\r\n", "*0\r\n", "*2\r\n+OK\r\n:7\r\n", ":7\r\n"] {
            assert_eq!(of(odd), Err(Impossible), "{odd:?}");
        }
        assert_eq!(all("+OK", ":7", ":0"), Err(Impossible));
        assert_eq!(all(":1", ":7", ":1"), Err(Impossible));
    }

    #[test]
    fn node_that_refuses_a_command_gives_no_vote() {
        let failed = |cause| Ok((Some(NodeReply::Failed(cause)), vec![]));
        let refused = "+OK\r\n-OOM no memory\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT no\r\n";
        assert_eq!(read(refused), failed(NodeError::OutOfMemory));
        let without = "-NOPERM no\r\n+OK\r\n:7\r\n:1\r\n-ERR EXEC without MULTI\r\n";
        assert_eq!(read(without), failed(NodeError::NoPermission));
        let granted = "*3\r\n+OK\r\n:7\r\n:1\r\n";
        assert_eq!(read(&format!("-ERR no\r\n+OK\r\n:7\r\n:1\r\n{granted}")), Err(Impossible));
        for odd in ["+QUEUED\r\n", "_\r\n", ":1\r\n", "+OK\r\n+OK\r\n", "+OK\r\n:1\r\n"] {
            assert_eq!(read(odd), Err(Impossible), "{odd:?}");
        }
    }

    #[test]
    fn replies_that_are_read_from_the_bytes_mean_the_same() {
        for (tail, vote) in [
            ("*3\r\n+OK\r\n:7\r\n:1\r\n", Some(7)),
            ("*3\r\n+OK\r\n:9007199254740991\r\n:1\r\n", Some(LIMIT - 1)),
            ("*3\r\n+OK\r\n:9007199254740992\r\n:1\r\n", None),
            ("*3\r\n+OK\r\n:99007199254740991\r\n:1\r\n", None),
            ("*3\r\n+OK\r\n:0\r\n:1\r\n", None),
            ("*3\r\n+OK\r\n:7\r\n:0\r\n", None),
            ("*3\r\n+OK\r\n:7\r\n:1\r", None),
            ("*3\r\n_\r\n:7\r\n:1\r\n", None),
        ] {
            let (text, mut votes) = (format!("{QUEUED}{tail}"), Vec::new());
            let with_more = format!("{text}+OK\r\n");
            let read = Reading::default().read_granted(with_more.as_bytes(), &mut votes);
            let expected = vote.map(|_| (NodeReply::Granted, text.len()));
            assert_eq!((read, votes), (expected, vote.into_iter().collect()), "{tail:?}");
            if let Some(vote) = vote {
                assert_eq!(self::read(&text), Ok((Some(NodeReply::Granted), vec![vote])));
            }
        }
        let begun = Reading { read: 1, refused: None };
        assert_eq!(
            begun.read_granted(
                format!("{QUEUED}*3\r\n+OK\r\n:7\r\n:1\r\n").as_bytes(),
                &mut Vec::new()
            ),
            None
        );
    }
}
