//! What a request did to the keys of a lock, by what the node answered.
//!
//! The hazard is an answer that seems to prove that nothing was written. A script that fails may
//! have written before it failed; a plain `SET` wrote nothing if the node refused it for a cause
//! that it checks before it runs a command; and an unknown error, a proxy's say, proves nothing.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::wire::ask::{Kind, LockAsk};

/// What a request that may create or prolong a key did to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The key is there with the token of the lock, or the token stands in the line of the key.
    Written,
    /// The request wrote nothing.
    NotWritten,
    /// The request may have written all keys, or some of them.
    Unknown,
}

impl Effect {
    /// The effect of a request that got this answer.
    #[inline]
    pub fn of(ask: LockAsk, reply: NodeReply) -> Effect {
        match reply {
            NodeReply::Granted => Effect::Written,
            // A node that gives the token a place in the line may hand the key to it later.
            NodeReply::Held if ask.kind == Kind::Join => Effect::Written,
            // Each script looks at all keys before it writes one.
            NodeReply::Held | NodeReply::Absent => Effect::NotWritten,
            NodeReply::Failed(cause) if ask.sent.form.is_none() => {
                match cause.proves_nothing_was_set() {
                    true => Effect::NotWritten,
                    false => Effect::Unknown,
                }
            }
            // A node that refuses `MULTI` executes the other commands each by itself.
            NodeReply::Failed(_) if ask.is_transaction() => Effect::Unknown,
            // The node did not run the script.
            NodeReply::Failed(NodeError::NoScript | NodeError::UnknownCommand) => {
                Effect::NotWritten
            }
            NodeReply::Failed(_) | NodeReply::Nothing | NodeReply::NotAsked => Effect::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::RecordId;
    use crate::proto::wire::ask::{Encoding, Names};
    use crate::proto::wire::command::Form;

    fn effect(kind: Kind, form: Option<Form>, reply: NodeReply) -> Effect {
        let sent = Encoding { form, names: Names::Key };
        Effect::of(LockAsk { record: RecordId::of(0), round: 0, kind, sent }, reply)
    }

    #[test]
    fn only_some_answers_prove_that_nothing_was_written() {
        use NodeError::{NoPermission, NoScript, Other, OutOfMemory, Silent, UnknownCommand};
        let kinds = [Kind::Acquire, Kind::Extend, Kind::Heal, Kind::Adopt, Kind::Claim];
        let plain = [Kind::Acquire, Kind::Heal].map(|kind| (kind, None));
        let scripts = kinds.map(|kind| [Form::Sha, Form::Source].map(|form| (kind, Some(form))));
        for (kind, form) in plain.into_iter().chain(scripts.into_iter().flatten()) {
            let of = |reply| effect(kind, form, reply);
            assert_eq!(of(NodeReply::Granted), Effect::Written, "{kind:?} {form:?}");
            for denial in [NodeReply::Held, NodeReply::Absent] {
                assert_eq!(of(denial), Effect::NotWritten, "{kind:?} {form:?}");
            }
            // A script that fails in its middle may have written something; a plain `SET` has not.
            let (not_run, refused) = match form {
                None => (Effect::Unknown, Effect::NotWritten),
                Some(_) => (Effect::NotWritten, Effect::Unknown),
            };
            for (causes, expected) in [
                ([NoScript, UnknownCommand], not_run),
                ([OutOfMemory, NoPermission], refused),
                ([Silent, Other], Effect::Unknown),
            ] {
                for cause in causes {
                    let of_cause = of(NodeReply::Failed(cause));
                    assert_eq!(of_cause, expected, "{kind:?} {form:?} {cause:?}");
                }
            }
        }
    }

    #[test]
    fn transaction_that_failed_may_have_written_the_key() {
        let acquired = |reply| effect(Kind::Acquire, Some(Form::Transaction), reply);
        for cause in [NodeError::UnknownCommand, NodeError::NoPermission, NodeError::OutOfMemory] {
            assert_eq!(acquired(NodeReply::Failed(cause)), Effect::Unknown, "{cause:?}");
        }
        assert_eq!(acquired(NodeReply::Granted), Effect::Written);
        assert_eq!(acquired(NodeReply::Held), Effect::NotWritten);
    }

    #[test]
    fn token_that_got_a_place_in_a_line_may_get_the_key() {
        let joined = |reply| effect(Kind::Join, Some(Form::Sha), reply);
        assert_eq!(joined(NodeReply::Held), Effect::Written);
        assert_eq!(joined(NodeReply::Failed(NodeError::NoScript)), Effect::NotWritten);
    }
}
