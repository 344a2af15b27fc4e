//! Sets in rounds: a script is not repeated after the deadline of its round.

use std::time::Duration;

use redlatch::LockOptions;
use redlatch::proto::KeySet;

use crate::bench::{Bench, TTL};

const WAIT: Duration = Duration::from_secs(4);

fn wait_for(bench: &mut Bench, names: &[&str]) {
    let keys = KeySet::new(names).expect("a good set");
    bench.ask_for(&keys, 0, LockOptions::new(TTL).wait(WAIT));
}

/// Takes what the node was sent, and returns the requests about keys as `take` or `release` and the
/// keys. The node acknowledges releases, and leaves a `take` unanswered.
fn asked(bench: &mut Bench, node: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.sent(node) {
        match &command[0][..] {
            "EVAL" | "EVALSHA" => {
                let count: usize = command[2].parse().expect("a number of keys");
                let keys = command[3..3 + count].join("+");
                if command.len() == 4 + count {
                    bench.reply(node, ":1\r\n");
                    asked.push(format!("release {keys}"));
                } else {
                    asked.push(format!("take {keys}"));
                }
            }
            "TIME" => bench.answer_time(node),
            other => panic!("{other}"),
        }
    }
    asked
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
