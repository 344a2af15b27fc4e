//! The owners that single requests name in their tokens, in place of the owner of the settings.
//!
//! The hazard is a request that keeps a text: it would allocate, and each copy of its options would
//! count references. So the client keeps each text once, and a request has its number.

use std::num::NonZeroU16;
use std::sync::Arc;

use crate::proto::error::ConfigError;
use crate::proto::lock::check_owner;

/// The most owners that a client can name. They are kept as long as the client, so a program that
/// names a new one for each request must not fill the memory.
const MOST_OWNERS: u16 = 4096;

/// The number of an owner that the client keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(NonZeroU16);

/// The owners that the requests of a client name.
#[derive(Debug, Clone, Default)]
pub struct Owners(Vec<Arc<str>>);

impl Owners {
    /// The number of this owner: the same number for the same text.
    ///
    /// # Errors
    /// If tokens cannot name the owner, or the client has named too many others.
    pub fn id_of(&mut self, owner: &str) -> Result<OwnerId, ConfigError> {
        let refuse = |problem| Err(ConfigError::Owner { given: owner.into(), problem });
        if owner.is_empty() {
            return refuse("it is empty; give one byte at least");
        }
        if let Err(problem) = check_owner(owner) {
            return refuse(problem);
        }
        let found = self.0.iter().position(|known| **known == *owner);
        let place = found.unwrap_or(self.0.len());
        let number = u16::try_from(place + 1).ok().filter(|&number| number <= MOST_OWNERS);
        let Some(number) = number.and_then(NonZeroU16::new) else {
            return refuse("this client has named 4096 others; name no new one for each request");
        };
        if found.is_none() {
            self.0.push(owner.into());
        }
        Ok(OwnerId(number))
    }

    /// The owner with this number; `None` if another client gave the number.
    pub fn get(&self, id: OwnerId) -> Option<&Arc<str>> {
        self.0.get(usize::from(id.0.get()) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_has_one_number_and_there_is_a_most() {
        let mut owners = Owners::default();
        let name = |number: u16| format!("web-{number}");
        let ids: Vec<OwnerId> =
            (0..MOST_OWNERS).map(|number| owners.id_of(&name(number)).unwrap()).collect();
        for (number, &id) in (0..).zip(&ids) {
            assert_eq!(owners.get(id).map(|owner| &**owner), Some(&*name(number)));
        }
        assert_eq!(owners.id_of("web-7"), Ok(ids[7]), "it is not kept twice");
        let error = owners.id_of("one more").unwrap_err();
        assert!(matches!(error, ConfigError::Owner { .. }), "{error}");
        assert_eq!(owners.id_of("web-7"), Ok(ids[7]));
        assert_eq!(Owners::default().get(ids[7]), None, "it is the number of another client");
    }

    #[test]
    fn owner_that_no_token_can_name_has_no_number() {
        let long = "x".repeat(101);
        for owner in ["", "a b", "a\n", "\u{e4}", &long] {
            let error = Owners::default().id_of(owner).unwrap_err();
            assert!(error.to_string().starts_with("owner is \""), "{error}");
        }
    }
}
