//! A release reports what the nodes held, whichever of them answers first.

use super::*;
use redlatch::ReleaseOutcome::{self, AlreadyExpired, Released, TakenByOther};

/// What a node holds at the key before the release.
#[derive(Debug, Clone, Copy)]
enum Holds {
    Ours,
    Others,
    Nothing,
}

use Holds::{Nothing, Others, Ours};

const CASES: [([Holds; 3], ReleaseOutcome); 9] = [
    ([Ours, Ours, Ours], Released),
    ([Ours, Ours, Others], Released),
    ([Ours, Ours, Nothing], Released),
    ([Ours, Others, Others], TakenByOther),
    ([Ours, Others, Nothing], TakenByOther),
    ([Ours, Nothing, Nothing], AlreadyExpired),
    ([Others, Others, Nothing], TakenByOther),
    ([Others, Nothing, Nothing], AlreadyExpired),
    ([Nothing, Nothing, Nothing], AlreadyExpired),
];

/// How often each case is played in each order of the nodes.
const TIMES: usize = 6;

/// How the lock is acquired and released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Lock,
    Token,
    /// The lock is acquired after a wait in line, so its release hands the key over.
    InLine,
}

fn set_state(node: &Node, key: &str, holds: Holds) {
    match holds {
        Ours => {}
        Others => assert!(node.command(&["SET", key, "another's", "PX", "60000"]).is_ok()),
        Nothing => assert_eq!(node.command(&["DEL", key]).int(), 1),
    }
}

/// Plays every case in every order of the nodes. The test changes the last key.
fn play_all_cases(client: &Client, fleet: &Fleet, keys: &[&str], way: Way) {
    let options = LockOptions::new(TTL).wait(10 * SECOND);
    // In line a lock takes up to a tenth of a second, because another program's keys have to
    // expire.
    let times = if way == Way::InLine { 1 } else { TIMES };
    let changed = keys.last().expect("there is a key");
    for (holds, expected) in CASES {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            for _ in 0..times {
                if way == Way::InLine {
                    // The other program's keys expire one after the other, and the client has the
                    // lock once two have expired.
                    for (node, ttl) in fleet.iter().zip(["10", "20", "60"]) {
                        node.command(&["SET", changed, "another's", "PX", ttl]);
                    }
                }
                let mut guard = client.lock(keys, options).expect("it is free soon");
                if way == Way::InLine {
                    // The lock may have only two nodes. The extend also gives it the third, once
                    // the other program's key has expired there.
                    let ended =
                        || !fleet.iter().any(|node| node.get(changed).is_some_and(is_others));
                    client.drive_until(10 * SECOND, "the other program's keys end", ended);
                    guard.extend(TTL).expect("it is held");
                }
                let all = || keys.iter().all(|key| fleet.values(key).len() == 3);
                client.drive_until(10 * SECOND, "every node has it", all);
                for (node, holds) in order.into_iter().zip(holds) {
                    set_state(&fleet[node], changed, holds);
                }
                let released = if way == Way::Token {
                    let token = guard.into_token().expect("it is held");
                    client.release_token(changed, token).expect("it can be asked")
                } else {
                    guard.release().expect("it can be asked")
                };
                assert_eq!(released, expected, "{keys:?} {holds:?} on {order:?}");
                let alone = || fleet.iter().all(|node| node.get(changed).is_none_or(is_others));
                client.drive_until(10 * SECOND, "our keys are gone", alone);
                fleet.command(&["DEL", changed]);
            }
        }
    }
}

fn is_others(value: Vec<u8>) -> bool {
    value == b"another's"
}

#[test]
fn release_ends_by_what_the_nodes_hold_and_not_by_their_order() {
    let (fleet, client) = fleet_and_client(3);
    play_all_cases(&client, &fleet, &["a"], Way::Lock);
    play_all_cases(&client, &fleet, &["a"], Way::Token);
}

#[test]
fn release_of_a_set_or_in_line_ends_by_what_the_nodes_hold_and_not_by_their_order() {
    let (fleet, client) = fleet_and_client(3);
    play_all_cases(&client, &fleet, &["a", "b"], Way::Lock);
    play_all_cases(&client, &fleet, &["a"], Way::InLine);
    assert!(client.stats().handed_over > 0, "it stood in line");
}
