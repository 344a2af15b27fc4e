//! Leader election: one of several candidates leads, for as long as it holds the lock of the
//! election.
//!
//! The lock is an ordinary one: its requests stand in line, it has a fencing number, and it is
//! renewed. `campaign.rs` decides when a candidate asks for it and when it gives it up. The lock's
//! rules make it safe: whatever is wrong here, two candidates never hold the lock at once.
//!
//! The hazard is a candidate that believes that it leads after its lock is over. So a candidate
//! leads only as long as it has the lock of its term, and the next request for the lock is made
//! only after the caller has given the term up.

pub(crate) mod campaign;
pub(crate) mod elections;
pub(crate) mod leader;

use std::fmt;
use std::time::Duration;

use crate::proto::error::{ConfigError, Error};
use crate::proto::ids::CampaignId;
use crate::proto::lock::{LONGEST_OWNER, Lock, check_owner};

pub use leader::{Leader, Leadership};

/// The most bytes of a candidate's address, so that the note of a leader is read whole.
const LONGEST_ADDRESS: usize = 90;

/// What stands between the name and the address of a candidate in its tokens.
const AT: char = '@';

/// Who takes part in an election: a name, and the address at which others reach the candidate.
///
/// Both are shown to everyone who asks who leads. Together they have at most 99 bytes, the address
/// at most 90: printable ASCII without spaces, and no `@` in the name.
///
/// ```
/// use redlatch::Candidate;
///
/// let candidate = Candidate::named("web-1").address("10.0.0.7:8080");
/// assert_eq!(candidate.to_string(), "web-1@10.0.0.7:8080");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    name: Box<str>,
    address: Option<Box<str>>,
}

impl Candidate {
    /// A candidate of this name, without an address.
    pub fn named(name: impl Into<Box<str>>) -> Candidate {
        Candidate { name: name.into(), address: None }
    }

    /// The candidate with this address.
    #[must_use]
    pub fn address(self, address: impl Into<Box<str>>) -> Candidate {
        Candidate { address: Some(address.into()), ..self }
    }

    /// The candidate as its tokens name it.
    pub(crate) fn owner(&self) -> Result<String, ConfigError> {
        let owner = self.to_string();
        let problem = if self.name.is_empty() {
            Some("a candidate has a name")
        } else if self.name.contains(AT) {
            Some("the name of a candidate has no @")
        } else if owner.len() > LONGEST_OWNER - 1 {
            Some("a candidate's name and address have at most 99 bytes together")
        } else {
            check_owner(&owner).err().or_else(|| self.address.as_deref().and_then(bad_address))
        };
        match problem {
            None => Ok(owner),
            Some(problem) => Err(ConfigError::Owner { given: owner.into(), problem }),
        }
    }

    /// The candidate that the owner in a token names.
    fn of_owner(owner: &str) -> Candidate {
        match owner.split_once(AT) {
            Some((name, address)) => Candidate::named(name).address(address),
            None => Candidate::named(owner),
        }
    }
}

/// What is wrong with an address.
fn bad_address(address: &str) -> Option<&'static str> {
    if address.is_empty() || address == "-" {
        return Some("leave the address out if there is none");
    }
    if address.len() > LONGEST_ADDRESS {
        return Some("the address of a candidate has at most 90 bytes");
    }
    None
}

/// The name, and after an `@` the address if there is one.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.address.iter().try_for_each(|address| write!(f, "{AT}{address}"))
    }
}

/// Where a candidate stands. Between two `Leading` of one campaign there is always a `Following`.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The candidate leads from now on, as long as it holds this lock. The lock has a fencing
    /// number, the number of the term, and is renewed. When the term is over, the caller stops what
    /// only a leader may do, and then calls
    /// [`end_term`](crate::proto::Coordinator::end_term): only then the candidate asks anew.
    Leading(Lock),
    /// Another candidate leads, or nobody. Reported when that changes, and after each term.
    Following(Option<Leader>),
    /// A client asked this leader to step down, and not to lead again for this long. It still leads
    /// until the caller ends the term.
    AskedToResign(Duration),
    /// The request for the lock has failed. The campaign goes on after one ttl.
    Failed(Error),
    /// For an observer: who leads, whenever that changes.
    Observed(Leadership),
}

/// A change in a campaign.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StandingChange {
    /// The campaign.
    pub campaign: CampaignId,
    /// The data that the caller gave with it.
    pub data: u64,
    /// Where the candidate stands now.
    pub standing: Standing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_that_a_token_or_a_note_cannot_name_is_refused() {
        let owner = |name: &str, address: &str| Candidate::named(name).address(address).owner();
        assert_eq!(Candidate::named("web-1").owner().as_deref(), Ok("web-1"));
        assert_eq!(owner("web-1", "10.0.0.7:8080").as_deref(), Ok("web-1@10.0.0.7:8080"));
        let (long, longer) = ("x".repeat(LONGEST_ADDRESS), "x".repeat(LONGEST_ADDRESS + 1));
        assert!(owner("web-1", &long).is_ok() && owner(&long, "web-1").is_ok());
        for (name, address) in [
            ("", "a"),
            ("a@b", "a"),
            ("a b", "a"),
            ("a", "b c"),
            ("a", ""),
            ("a", "-"),
            ("a", &longer),
            (&long, "0123456789"),
            ("\u{e4}", "a"),
        ] {
            let refused = owner(name, address);
            assert!(matches!(refused, Err(ConfigError::Owner { .. })), "{name:?} at {address:?}");
        }
    }

    #[test]
    fn owner_of_a_token_names_the_candidate() {
        for candidate in [
            Candidate::named("web-1"),
            Candidate::named("web-1").address("10.0.0.7:8080"),
            Candidate::named("web-1").address("user@host"),
        ] {
            assert_eq!(Candidate::of_owner(&candidate.owner().unwrap()), candidate);
        }
    }
}
