//! Reads the few plain answers that nearly all questions about locks get: straight from the bytes,
//! without the decoder, and equal ones together.
//!
//! The hazard is an answer that is taken while the decoder is in the middle of another reply, or
//! while a push has not been reported yet. Then this code takes nothing.

use super::Connection;
use crate::proto::error::NodeReply;
use crate::proto::time::Instant;
use crate::proto::wire::answers;
use crate::proto::wire::ask::{Ask, Kind, LockAsk};

/// Equal plain answers in a row, to questions of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainAnswers {
    /// What was asked.
    pub kind: Kind,
    /// What each of them says.
    pub reply: NodeReply,
    /// How many there are: one at least.
    pub count: usize,
}

impl Connection {
    /// Takes the equal plain answers that the input begins with, to questions of one kind. The
    /// caller then takes out as many questions by
    /// [`take_answered`](Connection::take_answered), before anything else is read. Every other
    /// event is for [`next_incoming`](Connection::next_incoming), which reads these answers, too.
    ///
    /// `took` is called with each round trip time of these answers, in nanoseconds, and with how
    /// many of them have it: questions of one moment have the same.
    #[inline]
    pub fn plain_answers(
        &mut self,
        input: &mut &[u8],
        now: Instant,
        took: impl FnMut(u64, usize),
    ) -> Option<PlainAnswers> {
        if input.is_empty() {
            return None;
        }
        let reads_replies =
            self.partial.is_empty() && !self.skipping.is_going_on() && !self.asks_replicas;
        if !reads_replies || !self.written.is_empty() {
            return None;
        }
        let Some(Ask::Lock(first)) = self.asks.front() else { return None };
        let kind = first.kind;
        let (reply, count) = match answers::plain(&first, input) {
            Some((reply, length)) => {
                let asks = self.asks.as_slice();
                // The compiler compares bytes without a call if it knows how many there are.
                let count = match length {
                    5 => take_equal::<5>(asks, kind, input),
                    4 => take_equal::<4>(asks, kind, input),
                    _ => take_equal::<3>(asks, kind, input),
                };
                (reply, count)
            }
            None if first.is_transaction() => {
                self.details.named = 0;
                let votes = &mut self.details.votes;
                let (reply, length) = self.reading.read_granted(input, votes)?;
                *input = &input[length..];
                (reply, 1)
            }
            None => return None,
        };
        self.last_answer = now;
        self.take_moments(count, now, took);
        Some(PlainAnswers { kind, reply, count })
    }

    /// Takes out the oldest question, which was answered by a plain answer.
    #[inline]
    pub fn take_answered(&mut self) -> Option<LockAsk> {
        match self.asks.pop() {
            Some(Ask::Lock(ask)) => Some(ask),
            _ => None,
        }
    }

    /// Takes the `count` oldest questions off their moments.
    #[inline]
    fn take_moments(&mut self, mut count: usize, now: Instant, mut took: impl FnMut(u64, usize)) {
        while count > 0 {
            let Some(oldest) = self.moments.front_mut() else { return };
            let of_this_moment = count.min(oldest.count);
            oldest.count -= of_this_moment;
            count -= of_this_moment;
            self.asked_at = oldest.asked_at;
            took(now.nanos_since(oldest.asked_at), of_this_moment);
            if oldest.count == 0 {
                self.moments.pop();
                // A node that answers before its question was written whole is strange, but does no
                // harm.
                self.unwritten = self.unwritten.min(self.moments.len());
            }
        }
    }
}

/// Takes the plain answer of `LENGTH` bytes that the input begins with, and the same answer to the
/// questions after the oldest one, as long as these are of this kind. Returns how many it took.
#[inline]
fn take_equal<const LENGTH: usize>(asks: &[Ask], kind: Kind, input: &mut &[u8]) -> usize {
    let Some((answer, mut rest)) = input.split_first_chunk::<LENGTH>() else { return 0 };
    let mut count = 1;
    while let (Some(Ask::Lock(ask)), Some((next, after))) =
        (asks.get(count), rest.split_first_chunk::<LENGTH>())
    {
        if next != answer || ask.kind != kind || !answers::may_be_plain(ask) {
            break;
        }
        rest = after;
        count += 1;
    }
    *input = rest;
    count
}
