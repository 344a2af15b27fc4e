//! Very many acquires and releases, with 1, 64 and 512 in flight: no key is left on any node.
//!
//! A debug build does fewer. `REDLATCH_TEST_PAIRS=100000` sets another number.

use super::*;
use redlatch::{Outcome, ReleaseOutcome};

const VARIABLE: &str = "REDLATCH_TEST_PAIRS";

#[test]
fn no_key_is_left_after_pairs_with_1_64_and_512_in_flight() {
    let fleet = Fleet::start(5);
    let told = std::env::var(VARIABLE).ok().map(|text| text.parse().expect("a number of pairs"));
    let few = if cfg!(debug_assertions) { [2_000, 20_000, 20_000] } else { [100_000; 3] };
    for (in_flight, few) in [1, 64, 512].into_iter().zip(few) {
        let mut embedded = Loop::ready(config(&fleet).node_timeout(5 * SECOND));
        let (start, count) = (Instant::now(), told.unwrap_or(few));
        pairs(&mut embedded, in_flight, count);
        println!("{count} pairs with {in_flight} in flight in {:?}", start.elapsed());
        embedded.turn_until("nothing is open", |engine| engine.coordinator().open_records() == 0);
        assert_eq!(embedded.engine.coordinator().open_ops(), 0);
        fleet.wait_empty();
    }
}

/// Each lock has a key of its own, so that no later lock hides a key that an earlier one left.
fn pairs(embedded: &mut Loop, in_flight: u64, count: u64) {
    let acquire = |embedded: &mut Loop, number: u64| {
        let key = format!("pair:{number}");
        embedded.engine.acquire(key, LockOptions::once(60 * SECOND), number).expect("there is room")
    };
    let (mut begun, mut done) = (in_flight, 0);
    for number in 0..begun {
        acquire(embedded, number);
    }
    while done < count {
        let end = embedded.completion();
        match end.result {
            Ok(Outcome::Acquired(lock)) => {
                embedded.engine.release(lock, end.data);
            }
            Ok(Outcome::Released(outcome)) => {
                assert_eq!(outcome, ReleaseOutcome::Released);
                done += 1;
                if begun < count {
                    acquire(embedded, begun);
                    begun += 1;
                }
            }
            other => panic!("a free key came to {other:?}"),
        }
    }
}
