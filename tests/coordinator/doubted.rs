//! Kept locks whose keys somebody wrote to: what is asked because of it, beside what the caller
//! asks.

use super::*;
use redlatch::{Keep, Lock, Loss};

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";
const WRITTEN: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";

/// A lock on all three nodes that is kept, with nothing unanswered.
fn kept(bench: &mut Bench, keep: Keep) -> Lock {
    let lock = bench.hold(&[0, 1]);
    bench.said(2);
    bench.reply(2, "+OK\r\n");
    bench.core.keep(&lock, keep, 7, bench.now).unwrap();
    for node in 0..3 {
        assert_eq!(bench.names(node), ["CLIENT", "PTTL"]);
        bench.reply(node, "+OK\r\n:9999\r\n");
    }
    lock
}

/// Every node answers what it was asked: `said` to an extend. Returns how many extends those were.
fn answer(bench: &mut Bench, said: [&str; 3]) -> usize {
    let mut extends = 0;
    for (node, said) in said.into_iter().enumerate() {
        for command in bench.said(node) {
            let reply = match command[0].as_str() {
                "CLIENT" => "+OK\r\n",
                "PTTL" => ":9999\r\n",
                "TIME" => "*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
                _ => {
                    extends += 1;
                    said
                }
            };
            bench.reply(node, reply);
        }
    }
    extends
}

#[test]
fn a_look_leaves_an_extend_that_pauses_alone() {
    let mut bench = Bench::with(3, |settings| settings.node_timeout = millis(600));
    let lock = kept(&mut bench, Keep::at_most(TTL * 100));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    assert_eq!(answer(&mut bench, [BUSY, BUSY, ":1\r\n"]), 3);
    // It is asked again 600 ms later. Somebody writes meanwhile, which is looked after in 500 ms.
    bench.reply(2, WRITTEN);
    bench.pass(millis(500));
    answer(&mut bench, [BUSY; 3]);
    bench.pass(millis(100));
    assert_eq!(bench.names(0), ["EVALSHA", "CLIENT", "PTTL"], "its pause is over");
    // The pause that the look would have begun comes to its end while this one is not answered.
    bench.pass(millis(500));
    answer(&mut bench, [":1\r\n"; 3]);
    let done = bench.completion().unwrap();
    assert!(matches!((done.data, &done.result), (2, Ok(Outcome::Extended { .. }))), "{done:?}");
}
