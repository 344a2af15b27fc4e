//! How long `exec` and `hold` hold a lock: as long as CMD and their process live, or for the time
//! of `--max-hold`.

use super::exec::{Desk, started};
use super::*;

#[test]
fn max_hold_none_renews_until_cmd_ends_or_the_process_dies() {
    let (fleet, desk) = Desk::with_fleet(3);
    // CMD keeps the lock for several ttls.
    let script = "echo up > up; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let redlatch = started(&fleet, &desk, &["-t", "2s"], script);
    let token = held_by_majority(&fleet, "key");
    std::thread::sleep(5 * SECOND);
    assert_eq!(held_by_majority(&fleet, "key"), token);
    desk.write("go", "go");
    redlatch.end(LIMIT).with_code(3);
    fleet.wait_empty();

    // Nothing renews the lock of a killed process, so its key expires.
    for arguments in [&["exec", "-t", "2s", "key", "sleep", "60"][..], &["hold", "-t", "2s", "key"]]
    {
        let redlatch = Running::start(&mut tool_on(&fleet, arguments));
        held_by_majority(&fleet, "key");
        redlatch.signal(Signal::KILL);
        redlatch.end(LIMIT);
        nothing_is_left(&fleet);
    }
}

#[test]
fn max_hold_that_is_given_ends_the_lock_and_says_so() {
    let fleet = Fleet::start(3);
    for words in [&["exec", "key", "sleep", "60"][..], &["hold", "key"]] {
        let (verb, rest) = words.split_first().expect("a verb");
        let arguments = [&[*verb, "-t", "2s", "--max-hold", "4s"], rest].concat();
        let ended = run_on(&fleet, &arguments).with_code(124);
        let said = "the lock is lost (its longest hold time is over)";
        assert!(ended.errors.contains(said), "{ended:?}");
        assert!(ended.ran > 2 * SECOND, "{ended:?}");
        nothing_is_left(&fleet);
    }
}
