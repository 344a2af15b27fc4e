//! What a request did to the keys of a lock, by what the node answered.
//!
//! The hazard is an answer that seems to prove that nothing was written. A script that fails may
//! have written before it failed; a plain `SET` has not if the node refused it for a cause that it
//! looks at first; and an unknown error, a proxy's say, proves nothing.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::wire::ask::Kind;

/// What a request that may create or prolong a key did to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The key is there with the token of the lock, or the token stands in the line of the key.
    Written,
    /// The request wrote nothing.
    NotWritten,
    /// It may have written, or a part of the keys.
    Unknown,
}

impl Effect {
    /// The effect of a request of this kind that was answered so.
    #[inline]
    pub fn of(kind: Kind, reply: NodeReply) -> Effect {
        match reply {
            NodeReply::Granted => Effect::Written,
            // A node that gives the token a place in the line may hand the key to it later.
            NodeReply::Held if matches!(kind, Kind::Join(_)) => Effect::Written,
            // Each script looks at all keys before it writes one.
            NodeReply::Held | NodeReply::Absent => Effect::NotWritten,
            NodeReply::Failed(cause) if kind.is_plain_set() => match cause.proves_nothing_was_set()
            {
                true => Effect::NotWritten,
                false => Effect::Unknown,
            },
            // The node did not run the script.
            NodeReply::Failed(NodeError::NoScript | NodeError::UnknownCommand) => {
                Effect::NotWritten
            }
            NodeReply::Failed(_) | NodeReply::Nothing => Effect::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::command::Form;

    #[test]
    fn only_some_answers_prove_that_nothing_was_written() {
        use NodeError::{NoPermission, NoScript, Other, OutOfMemory, Silent, UnknownCommand};
        let plain = [Kind::Acquire, Kind::Heal];
        let sha = Form::Sha;
        let scripts = [
            Kind::Extend(sha),
            Kind::Adopt,
            Kind::AcquireFenced(sha),
            Kind::AcquireSet(sha),
            Kind::AcquireFencedSet(sha),
            Kind::HealSet,
            Kind::WriteBack(sha),
            Kind::Claim(sha),
        ];
        // A script that fails in its middle may have written; a plain `SET` may not.
        let not_run = [NoScript, UnknownCommand].map(NodeReply::Failed);
        let in_set = [OutOfMemory, NoPermission].map(NodeReply::Failed);
        let in_none = [Silent, Other].map(NodeReply::Failed);
        for kind in plain.into_iter().chain(scripts) {
            let effect = |reply| Effect::of(kind, reply);
            assert_eq!(effect(NodeReply::Granted), Effect::Written, "{kind:?}");
            let denials = [NodeReply::Held, NodeReply::Absent].map(effect);
            assert_eq!(denials, [Effect::NotWritten; 2], "{kind:?}");
            let (by_script, by_set) = match plain.contains(&kind) {
                true => (Effect::Unknown, Effect::NotWritten),
                false => (Effect::NotWritten, Effect::Unknown),
            };
            assert_eq!(not_run.map(effect), [by_script; 2], "{kind:?}");
            assert_eq!(in_set.map(effect), [by_set; 2], "{kind:?}");
            assert_eq!(in_none.map(effect), [Effect::Unknown; 2], "{kind:?}");
        }
    }

    #[test]
    fn token_that_got_a_place_in_a_line_may_get_the_key() {
        let join = Kind::Join(Form::Sha);
        assert_eq!(Effect::of(join, NodeReply::Held), Effect::Written);
        let unknown_script = NodeReply::Failed(NodeError::NoScript);
        assert_eq!(Effect::of(join, unknown_script), Effect::NotWritten);
    }
}
