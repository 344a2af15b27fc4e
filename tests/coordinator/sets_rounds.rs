//! Sets in rounds: a script is not repeated after the deadline of its round.

use std::time::Duration;

use redlatch::LockOptions;
use redlatch::proto::KeySet;

use crate::bench::{Bench, TTL};
use crate::sets_kept::asked;

const WAIT: Duration = Duration::from_secs(4);

fn wait_for(bench: &mut Bench, names: &[&str]) {
    let keys = KeySet::new(names).expect("a good set");
    bench.ask_for(&keys, 0, LockOptions::new(TTL).wait(WAIT));
}

#[test]
fn script_over_a_set_is_not_repeated_past_the_deadline() {
    let mut bench = Bench::new(1);
    // With this set the node learns the script.
    wait_for(&mut bench, &["a", "b"]);
    asked(&mut bench, 0);
    bench.reply(0, ":1\r\n");
    let _held = bench.won();
    wait_for(&mut bench, &["c", "d"]);
    assert_eq!(bench.sent(0)[0][0], "EVALSHA");
    // The client reads the answer before the timer of the deadline expires.
    bench.now = bench.now.saturating_add(TTL);
    bench.reply(0, "-NOSCRIPT No matching script.\r\n");
    let sent = bench.sent(0);
    assert!(sent.iter().all(|command| command[0] != "EVAL" || command.len() == 6), "{sent:?}");
}
