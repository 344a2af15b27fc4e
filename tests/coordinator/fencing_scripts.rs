//! Scripts of fenced locks that a node forgot, refuses, or does not run to the end.

use redlatch::proto::sets::{ACQUIRE, EXTEND_SET};

use super::fencing::{ask, give_back, held, hold, release, runs, script, vote, votes};
use super::*;

#[test]
fn fenced_acquire_that_a_node_forgot_is_not_repeated_after_its_release() {
    let (mut bench, lock) = held(3, &[7, 7]);
    votes(&mut bench, [(2, 7)]);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer(0..3, ":1\r\n");
    let op = ask(&mut bench);
    script(&mut bench, 0);
    bench.core.cancel(op, bench.now);
    script(&mut bench, 0);
    bench.reply(0, "-NOSCRIPT No matching script.\r\n:0\r\n");
    assert!(bench.sent(0).is_empty(), "a repeat would leave a lock without an owner");
}

/// The user may not use `TIME`, or may not write the counter, so the script sets the key and then
/// fails. The denial of the repeat does not prove that the first script set nothing.
#[test]
fn fenced_acquire_whose_script_failed_in_the_middle_is_released_although_the_repeat_is_denied() {
    let mut bench = Bench::new(3);
    give_back(&mut bench, &[7, 7, 7]);
    ask(&mut bench);
    for node in 0..2 {
        assert_eq!(script(&mut bench, node)[0], "EVALSHA");
        let line = "-ERR The user executing the script can't run this command or subcommand\r\n";
        bench.reply(node, line);
        assert_eq!(script(&mut bench, node)[0], "EVAL");
        bench.reply(node, ":-1\r\n");
    }
    bench.refused();
    for node in 0..2 {
        assert_eq!(bench.names(node), ["EVALSHA"], "the release on node {node}");
        bench.reply(node, ":1\r\n");
    }
}

/// Node 2 answers after the others have decided. If it forgot the script, the client sends the
/// source next time, and then the SHA1 again. If it refuses SHA1s, the client always sends the
/// source from then on.
#[test]
fn fenced_script_that_a_node_refused_by_its_sha1_is_sent_by_its_source() {
    for (line, forms) in [
        ("-NOSCRIPT No matching script.\r\n", ["EVAL", "EVALSHA"]),
        ("-NOPERM this user has no permissions to run the 'evalsha' command\r\n", ["EVAL", "EVAL"]),
    ] {
        let mut bench = Bench::new(3);
        give_back(&mut bench, &[7, 7, 7]);
        let lock = hold(&mut bench, &[8, 8]);
        script(&mut bench, 2);
        bench.reply(2, line);
        release(&mut bench, &lock);
        for form in forms {
            ask(&mut bench);
            assert_eq!(script(&mut bench, 2)[0], form, "{line}");
            vote(&mut bench, 2, 9);
            for node in 0..2 {
                script(&mut bench, node);
                vote(&mut bench, node, 9);
            }
            let lock = bench.won();
            release(&mut bench, &lock);
        }
    }
}

#[test]
fn acquire_that_a_flushed_node_has_no_script_for_is_not_repeated() {
    let mut bench = Bench::new(3);
    give_back(&mut bench, &[7, 7, 7]);
    ask(&mut bench);
    assert_eq!(script(&mut bench, 2)[0], "EVALSHA");
    bench.reply(2, &format!("{FLUSH}-NOSCRIPT No matching script.\r\n"));
    let sent = bench.sent(2);
    let counts = sent.iter().any(|command| runs(command, ACQUIRE));
    assert!(!counts, "it would create a counter below a number: {sent:?}");
}

/// The client learns that node 2 forgot the script when the second round is in flight. The vote
/// that follows is not that of the first round, but no confirmation of the number either.
#[test]
fn vote_of_a_repeated_acquire_in_the_second_round_is_no_confirmation_of_the_number() {
    for (late, to_write) in [(8, true), (9, false)] {
        let mut bench = Bench::new(3);
        give_back(&mut bench, &[7, 7, 7]);
        ask(&mut bench);
        votes(&mut bench, [(0, 9), (1, 8)]);
        assert!(runs(&script(&mut bench, 1), EXTEND_SET));
        script(&mut bench, 2);
        bench.reply(2, "-NOSCRIPT No matching script.\r\n");
        assert_eq!(script(&mut bench, 2)[0], "EVAL");
        vote(&mut bench, 2, late);
        if to_write {
            assert!(bench.completion().is_none(), "only node 0 has the number");
            assert!(runs(&script(&mut bench, 2), EXTEND_SET));
            bench.reply(2, ":1\r\n");
        }
        assert_eq!(bench.won().fence(), Some(9), "late vote {late}");
    }
}
