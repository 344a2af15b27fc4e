//! Asks a node whether all its replicas have executed a question, before a grant counts.
//!
//! A node that was cut off from its replicas goes on granting and extending, while one of them is
//! promoted in its place and grants the same key. So each question that may grant is followed by
//! `PUBLISH`, which the replicas get, and `WAIT`, which says how many of them have got so far. A
//! replica that was promoted, or that follows another master, gets nothing more from this node.
//!
//! The hazard is a question that writes nothing, because the key lives long enough already: `WAIT`
//! alone would count replicas that had the last write long ago.

use std::time::Duration;

use bytes::BytesMut;

use super::Incoming;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::wire::answers::TaskAnswer;
use crate::proto::wire::ask::Ask;
use crate::proto::wire::command::{encode, put_number};
use crate::proto::wire::resp::Reply;

/// Nobody listens to this channel: it is the replicas that get what is published.
const CHANNEL: &[u8] = b"redlatch:replicas";

/// What the replicas of a node have to confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Confirmation {
    /// How many replicas have to have executed a question; 0: they are not asked.
    replicas: u32,
    /// How long the node waits for them.
    patience: Duration,
    /// The answer to the oldest question, until the replicas have confirmed it.
    answer: Option<Incoming>,
    /// Whether the node has executed `PUBLISH`, once it has answered that.
    published: Option<bool>,
    /// Whether the replicas did not confirm the last question that they were to confirm.
    lacks: bool,
}

/// A reply that the command cannot have.
pub(super) struct Impossible;

impl Confirmation {
    /// That `replicas` have executed each question that may grant. The node waits for them for as
    /// long as `patience`.
    pub fn new(replicas: u32, patience: Duration) -> Confirmation {
        Confirmation { replicas, patience, ..Confirmation::default() }
    }

    /// Forgets what was read on a connection that is gone.
    pub fn reset(&mut self) {
        (self.answer, self.published, self.lacks) = (None, None, false);
    }

    /// Asks the node about its replicas, after the question.
    #[cold]
    pub fn encode_after(&self, ask: &Ask, out: &mut BytesMut) {
        if ask.is_confirmed_by_replicas() {
            encode(out, &[b"PUBLISH", CHANNEL, b""]);
            out.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n");
            put_number(out, u64::from(self.replicas));
            put_number(out, u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX).max(1));
        }
    }

    /// Whether the next reply is about the replicas.
    #[inline]
    pub fn is_going_on(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether the replicas did not confirm the last question that they were to confirm.
    pub fn lacks_replicas(&self) -> bool {
        self.lacks
    }

    /// Takes the answer to the oldest question. Returns it if no replica has to confirm it.
    pub fn keep(&mut self, ask: Option<&Ask>, answer: Incoming) -> Option<Incoming> {
        if self.replicas > 0 && ask.is_some_and(|ask| ask.is_confirmed_by_replicas()) {
            self.answer = Some(answer);
            return None;
        }
        Some(answer)
    }

    /// Reads the next reply about the replicas. After the last one returns the answer to the
    /// question: a grant that was not confirmed is a failure.
    ///
    /// # Errors
    /// If the command cannot have such a reply.
    #[cold]
    pub fn read(&mut self, reply: &Reply<'_>) -> Result<Option<Incoming>, Impossible> {
        let count = match *reply {
            Reply::Integer(count) => Some(count),
            Reply::Error(_) => None,
            _ => return Err(Impossible),
        };
        let Some(published) = self.published.take() else {
            self.published = Some(count.is_some());
            return Ok(None);
        };
        let confirmed = published && count.is_some_and(|it| it >= i64::from(self.replicas));
        self.lacks = !confirmed;
        let answer = self.answer.take();
        Ok(answer.map(|answer| if confirmed { answer } else { unless_granted(answer) }))
    }
}

/// The answer, with a failure in the place of a grant. The answer to a command that compares and
/// sets is read as "held": it may be a grant, which only the record can say.
fn unless_granted(answer: Incoming) -> Incoming {
    let failed = NodeReply::Failed(NodeError::NoReplicas);
    let refused = |reply| if reply == NodeReply::Granted { failed } else { reply };
    match answer {
        Incoming::Lock(ask, NodeReply::Held) if ask.is_replacement() => Incoming::Lock(ask, failed),
        Incoming::Lock(ask, reply) => Incoming::Lock(ask, refused(reply)),
        Incoming::Task(task, TaskAnswer::Extended(form, reply)) => {
            Incoming::Task(task, TaskAnswer::Extended(form, refused(reply)))
        }
        Incoming::Task(task, TaskAnswer::ExtendedAll(form, reply, key)) => {
            Incoming::Task(task, TaskAnswer::ExtendedAll(form, refused(reply), key))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::{RecordId, TaskId};
    use crate::proto::wire::ask::{Encoding, Kind, LockAsk, Names, NodeAsk, TaskAsk};
    use crate::proto::wire::command::Form;

    fn asked(ask: Ask) -> String {
        let mut out = BytesMut::new();
        let confirmation = Confirmation::new(3, Duration::from_millis(125));
        confirmation.encode_after(&ask, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn what_may_grant_is_followed_by_a_message_and_a_question_about_all_replicas() {
        let lock = |kind| {
            let sent = Encoding { form: None, names: Names::Key };
            asked(Ask::Lock(LockAsk { record: RecordId::of(0), round: 0, kind, sent }))
        };
        let about_replicas = "*3\r\n$7\r\nPUBLISH\r\n$17\r\nredlatch:replicas\r\n$0\r\n\r\n\
                              *3\r\n$4\r\nWAIT\r\n$1\r\n3\r\n$3\r\n125\r\n";
        for kind in [Kind::Acquire, Kind::Extend, Kind::Heal, Kind::Adopt] {
            assert_eq!(lock(kind), about_replicas, "{kind:?}");
        }
        assert_eq!([Kind::WriteBack, Kind::Claim].map(lock), [about_replicas; 2]);
        assert_eq!([Kind::Join, Kind::Release, Kind::Exists].map(lock), [""; 3]);
        let task = |kind| asked(Ask::Task(TaskId::of(0), kind));
        let extends = [TaskAsk::Extend(Form::Sha), TaskAsk::ExtendAll(Form::Sha)];
        assert_eq!(extends.map(task), [about_replicas; 2]);
        assert_eq!([TaskAsk::Delete, TaskAsk::WriteNote, TaskAsk::Vouch].map(task), [""; 3]);
        assert_eq!(asked(Ask::Node(NodeAsk::Mark)), "");
    }
}
