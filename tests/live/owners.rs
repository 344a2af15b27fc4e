//! The owner in a token, which people read; and that a token is compared as a whole, with its
//! owner.

use super::*;
use redlatch::{KeySummary, LockToken, LostReason, ReleaseOutcome};

fn owned(fleet: &Fleet, owner: &str) -> Client {
    ready::client(config(fleet).owner(owner))
}

/// The owner of the key's token, as `inspect` reads it from the nodes.
fn holder(client: &Client, key: &str) -> Option<String> {
    match client.inspect(key).unwrap().summary() {
        KeySummary::Held { value, .. } => value.owner().map(str::to_string),
        _ => None,
    }
}

#[test]
fn owner_is_in_the_token_on_every_node_and_inspect_shows_it() {
    let fleet = Fleet::start(3);
    let long = "x".repeat(100);
    for owner in ["web-1:4711/nightly", &long] {
        let (ours, other) = (owned(&fleet, owner), client(&fleet));
        let guard = ours.lock("a", kept(TTL)).unwrap();
        ours.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
        let text = guard.token().to_string();
        assert!(text.ends_with(&format!(":{owner}")), "{text}");
        assert!(fleet.values("a").iter().all(|token| *token == text.as_bytes()));
        assert_eq!(holder(&other, "a").as_deref(), Some(owner));
        // A node that lost the key gets the whole token again, with its owner.
        fleet[0].command(&["DEL", "a"]);
        ours.drive_until(SOON, "it is healed", || fleet.values("a").len() == 3);
        assert!(fleet.values("a").iter().all(|token| *token == text.as_bytes()));
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        ours.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    }
}

#[test]
fn token_of_another_process_works_as_text_and_only_with_its_owner() {
    let fleet = Fleet::start(3);
    let (giver, taker) = (owned(&fleet, "giver:1"), owned(&fleet, "taker:2/longer"));
    let guard = giver.lock("a", TTL).unwrap();
    giver.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let text = guard.into_token().unwrap().to_string();
    let token: LockToken = text.parse().unwrap();
    // The same digits without the owner, or with another owner, are another token.
    let digits = &text[..40];
    for wrong in [digits.to_string(), format!("{digits}:taker:2/longer"), format!("{text}x")] {
        let wrong: LockToken = wrong.parse().unwrap();
        let error = taker.extend_token("a", wrong.clone(), TTL).unwrap_err();
        assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
        assert!(taker.adopt("a", wrong.clone(), TTL).is_err(), "{wrong} was adopted");
        let released = taker.release_token("a", wrong.clone()).unwrap();
        assert_eq!(released, ReleaseOutcome::TakenByOther, "{wrong}");
    }
    taker.extend_token("a", token.clone(), TTL).unwrap();
    let adopted = taker.adopt("a", token.clone(), TTL).unwrap();
    assert_eq!(holder(&giver, "a").as_deref(), Some("taker:2/longer"));
    assert_eq!(taker.release_token("a", token).unwrap(), ReleaseOutcome::TakenByOther);
    let whole = adopted.into_token().unwrap().to_string();
    let released = giver.release_token("a", whole.parse().unwrap()).unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn owner_that_no_token_can_name_is_refused_before_anything_is_sent() {
    let fleet = Fleet::start(1);
    for owner in ["a b", "a\n", "\u{e4}", &"x".repeat(101)] {
        let error = Client::connect(config(&fleet).owner(owner)).unwrap_err();
        assert!(error.to_string().starts_with("owner is"), "{error}");
    }
}
