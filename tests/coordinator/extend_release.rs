//! Extends and releases: late answers, scripts that a node forgot, and releases by `DELIFEQ` or
//! `DELEX`, the nodes' own commands that compare and delete.

use super::*;
use redlatch::{AutoExtend, Lock, LostReason, NodeId, NodeSet};

#[test]
fn holders_are_reported_beyond_the_majority_that_decided() {
    let (mut bench, lock) = Bench::new(5).with_lock(&[0, 1, 3]);
    let holders = |bench: &Bench, lock: &Lock| -> Vec<usize> {
        bench.core.holders(lock).iter().map(NodeId::index).collect()
    };
    assert_eq!(holders(&bench, &lock), [0, 1, 3]);
    bench.answer_each([(2, "+OK\r\n"), (4, "$-1\r\n")]);
    assert_eq!(holders(&bench, &lock), [0, 1, 2, 3], "one came late, one said no");
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([(0, ":1\r\n"), (1, ":1\r\n"), (2, ":1\r\n"), (3, ":0\r\n")]);
    assert!(bench.completion().unwrap().result.is_ok());
    bench.sent(4);
    assert_eq!(holders(&bench, &lock), [0, 1, 2], "two were healed, and have not answered");
    assert!(bench.core.into_token(lock, bench.now).is_some());
}

#[test]
fn an_answer_to_an_earlier_round_has_no_vote_in_a_later_one() {
    let mut bench = Bench::with(3, |settings| settings.reset_after = TTL);
    let lock = bench.hold_everywhere();
    let before = bench.core.deadline(&lock).unwrap();
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.assert_sent(0..3, ["EVALSHA"]);
    bench.reply(0, ":1\r\n");
    bench.pass(millis(50));
    assert!(bench.completion().is_none(), "too few answered: it is asked again");
    assert_eq!(bench.core.deadline(&lock), Some(before));
    // Node 1 answers the first round just before the second one, so the second round asks it, too.
    bench.reply(1, ":1\r\n");
    assert!(bench.completion().is_none(), "an answer to the first round was counted");
    bench.pass(millis(50));
    assert_eq!(bench.names(0), ["EVALSHA"]);
    assert_eq!(bench.names(1), ["EVALSHA"]);
    bench.reply(2, ":1\r\n");
    bench.reply(0, ":1\r\n");
    assert!(bench.completion().is_none(), "an answer to the first round was counted");
    bench.reply(1, ":1\r\n");
    let Ok(Outcome::Extended { deadline }) = bench.completion().unwrap().result else { panic!() };
    assert!(deadline > before);
}

#[test]
fn late_grant_of_the_acquire_has_no_vote_in_an_extend() {
    // Node 2 has the key for the ttl of the acquire, and does not know of the extend yet.
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_to(["EVALSHA"], [0], ":1\r\n");
    bench.reply(2, "+OK\r\n");
    assert!(bench.completion().is_none(), "the answer to the acquire was counted");
    bench.reply(2, ":1\r\n");
    bench.extended();
}

#[test]
fn a_script_that_was_forgotten_is_sent_again_unless_the_lock_was_released_meanwhile() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_to(["EVALSHA"], [0], "-NOSCRIPT No matching script\r\n");
    bench.answer_to(["EVAL"], [0], ":1\r\n");
    bench.extended();

    bench.core.extend(&lock, TTL, 3, bench.now).unwrap();
    bench.sent(0);
    bench.core.release(lock, 4, bench.now);
    assert_eq!(bench.names(0), ["EVALSHA"], "after a question that is unanswered");
    bench.reply(0, "-NOSCRIPT No matching script\r\n");
    assert!(bench.sent(0).is_empty(), "the repeat would overtake its release");
    bench.reply(0, "-NOSCRIPT No matching script\r\n");
    assert_eq!(bench.names(0), ["EVAL"], "the release itself is repeated");
    bench.reply(0, ":1\r\n");
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Lost { .. })));
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.assert_idle();
}

#[test]
fn a_node_whose_user_may_not_run_scripts_by_their_sha1_gets_the_source_from_then_on() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    for (data, commands) in [(2, &["EVALSHA", "EVAL"][..]), (3, &["EVAL"])] {
        bench.core.extend(&lock, TTL, data, bench.now).unwrap();
        for command in commands {
            bench.answer_to(
                [*command],
                [0],
                if *command == "EVAL" { ":1\r\n" } else { "-NOPERM no\r\n" },
            );
        }
        bench.extended();
    }
    bench.core.release(lock, 4, bench.now);
    assert_eq!(bench.names(0), ["EVALSHA"], "each script is refused for itself");
    bench.reply(0, "-NOPERM no\r\n");
    bench.answer_to(["EVAL"], [0], ":1\r\n");
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.assert_idle();
}

#[test]
fn extend_remembers_nodes_that_lost_the_key_until_no_majority_is_left() {
    let (mut bench, lock) = Bench::new(5).with_lock(&[0, 1, 2]);
    bench.answer([3, 4], "+OK\r\n");
    for gone in 0..3 {
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        for node in 0..5 {
            let asked = bench.sent(node).len();
            // In the third round the third denial loses the lock, so the client also writes its
            // release to nodes 3 and 4, which may have the key.
            let expected = 1 + usize::from(gone == 2 && node > 2);
            assert_eq!(asked, expected, "n{node} in round {gone}");
            for _ in 0..asked {
                bench.reply(node, if node <= gone { ":-1\r\n" } else { ":1\r\n" });
            }
        }
        let result = bench.completion().unwrap().result;
        assert_eq!(result.is_ok(), gone < 2, "{result:?}");
    }
    assert_eq!(bench.core.remaining(&lock, bench.now), Duration::ZERO);
    bench.assert_idle();
}

#[test]
fn a_majority_that_agrees_after_the_old_deadline_does_not_bring_the_lock_back() {
    let mut bench = Bench::with(1, |settings| {
        (settings.node_timeout, settings.probe_interval) = (TTL, TTL * 10);
    });
    let lock = bench.hold(&[0]);
    let deadline = bench.core.deadline(&lock).unwrap();
    bench.pass(Duration::from_secs(5));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.sent(0);
    bench.now = deadline;
    // The deadline has passed, and its timer was not handled yet. So a grant comes too late.
    bench.reply(0, ":1\r\n");
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Lost { .. })));
    assert_eq!(bench.names(0), ["EVALSHA"], "what was prolonged is released");
    bench.reply(0, ":1\r\n");
    bench.assert_idle();
}

#[test]
fn a_native_release_that_did_nothing_asks_whose_key_it_is() {
    let delifeq = "*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n";
    for (exists, released) in
        [(":1", ReleaseOutcome::TakenByOther), (":0", ReleaseOutcome::AlreadyExpired)]
    {
        let (mut bench, lock) = Bench::of(1, INFO_OLD, delifeq, |_| {}).with_lock(&[0]);
        bench.core.release(lock, 2, bench.now);
        bench.answer_to(["DELIFEQ"], [0], ":0\r\n");
        bench.answer_to(["EXISTS"], [0], &format!("{exists}\r\n"));
        assert_eq!(bench.released(), released);
        bench.assert_idle();
    }
    let (mut bench, lock) = Bench::of(1, INFO_OLD, delifeq, |_| {}).with_lock(&[0]);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer_to(["DELIFEQ"], [0], ":0\r\n");
    assert!(bench.sent(0).is_empty(), "nobody waits for the difference");
    bench.assert_idle();
}

#[test]
fn a_native_release_that_did_nothing_is_confirmed_even_if_the_next_answer_is_lost() {
    let delifeq = "*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n";
    for what in ["connection lost", "silence", "refused"] {
        let (mut bench, lock) = Bench::of(1, INFO_OLD, delifeq, |_| {}).with_lock(&[0]);
        bench.core.release(lock, 2, bench.now);
        bench.answer_to(["DELIFEQ"], [0], ":0\r\n");
        assert_eq!(bench.names(0), ["EXISTS"]);
        match what {
            "connection lost" => bench.lose(0),
            "silence" => bench.pass(bench.core.settings().node_timeout),
            _ => bench.reply(0, "-NOPERM no\r\n"),
        }
        assert_eq!(bench.released(), ReleaseOutcome::AlreadyExpired, "{what}");
        if what == "silence" {
            bench.reply(0, ":0\r\n");
        }
        bench.assert_idle();
    }
}

#[test]
fn a_native_release_that_is_not_permitted_is_sent_as_a_script() {
    let delex = "*2\r\n_\r\n*1\r\n$5\r\ndelex\r\n";
    let mut bench = Bench::of(1, INFO_OLD, delex, |_| {});
    for native in [true, false] {
        let lock = bench.hold(&[0]);
        bench.core.release(lock, 2, bench.now);
        if native {
            bench.answer_to(
                ["DELEX"],
                [0],
                "-NOPERM this user has no permissions to run 'delex'\r\n",
            );
            assert_eq!(bench.names(0), ["EVAL"]);
        } else {
            assert_eq!(bench.names(0), ["EVALSHA"], "it is not tried again");
        }
        bench.reply(0, ":1\r\n");
        assert_eq!(bench.released(), ReleaseOutcome::Released);
    }
    bench.assert_idle();
}

#[test]
fn release_is_repeated_in_time_after_its_connections_are_lost() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
    bench.pass(millis(600));
    bench.core.release(lock, 2, bench.now);
    for node in 0..3 {
        bench.sent(node);
        bench.lose(node);
    }
    assert!(bench.completion().is_none(), "the next connections may be in time");
    bench.pass(Duration::ZERO);
    for node in 0..3 {
        assert_eq!(bench.connect(node)[0][0], "EVAL");
        bench.reply(node, ":1\r\n");
    }
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.assert_idle();
}

#[test]
fn an_extend_after_one_that_was_cancelled_is_a_round_of_its_own() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    let first = bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.core.cancel(first, bench.now);
    bench.core.extend(&lock, TTL, 3, bench.now).unwrap();
    bench.answer_to(["EVALSHA", "EVALSHA"], [0], ":1\r\n");
    bench.reply(0, ":1\r\n");
    let done = bench.completion().unwrap();
    assert_eq!((done.data, done.result.is_ok()), (3, true));
    bench.core.release(lock, 4, bench.now);
    bench.answer([0], ":1\r\n");
    assert!(bench.completion().is_some());
    bench.assert_idle();
    // No timer of the cancelled extend is left: it would act on a record that is closed.
    bench.pass(millis(50));
}

/// Node 0 agrees to every extend, and answers its other requests.
fn grant_extends(bench: &mut Bench) {
    for name in bench.names(0) {
        let extend = name == "EVALSHA";
        bench.reply(0, if extend { ":1\r\n" } else { ":9999\r\n" });
    }
}

#[test]
fn an_extend_that_is_fetched_late_returns_the_present_deadline() {
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    bench.core.auto_extend(&lock, AutoExtend::at_most(TTL * 100), bench.now).unwrap();
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    let begin = bench.now;
    while bench.now.saturating_since(begin) < TTL * 2 {
        grant_extends(&mut bench);
        bench.pass(millis(20));
    }
    let deadline = bench.core.deadline(&lock).expect("it is renewed");
    let extended = bench.completion().unwrap();
    assert_eq!((extended.data, extended.result), (2, Ok(Outcome::Extended { deadline })));
    // The nodes agree in time, but the caller fetches the result after the lock has ended.
    bench.core.extend(&lock, TTL, 4, bench.now).unwrap();
    grant_extends(&mut bench);
    bench.now = bench.now.saturating_add(TTL);
    let late = bench.completion().unwrap();
    assert_eq!(late.data, 4);
    assert!(
        matches!(late.result, Err(Error::Lost { reason: LostReason::Expired, .. })),
        "{late:?}"
    );
}

#[test]
fn a_node_that_forgot_the_script_gets_it_also_after_the_majority_answered() {
    let (mut bench, lock) = Bench::new(3).with_lock_everywhere();
    let extend = |bench: &mut Bench, lock| {
        bench.core.extend(lock, TTL, 2, bench.now).unwrap();
        assert_eq!(bench.names(2), ["EVALSHA"]);
        bench.answer(0..2, ":1\r\n");
        bench.completion().unwrap().result.unwrap();
    };
    extend(&mut bench, &lock);
    bench.reply(2, "-NOSCRIPT No matching script\r\n");
    assert_eq!(bench.names(2), ["EVAL"], "the key there would end at its first deadline");
    bench.reply(2, ":0\r\n");
    assert_eq!(bench.names(2), ["SET"], "and nobody would know that it is gone");
    bench.reply(2, "+OK\r\n");
    // After a release the client does not repeat the extend: a repeat could only prolong a key that
    // the client has given up.
    extend(&mut bench, &lock);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer_to(["EVAL"], [2], "-NOSCRIPT No matching script\r\n");
    assert!(bench.sent(2).is_empty());
}

/// Node 0 lost its key, and then its connection. The next round is lost because node 1 has lost its
/// key, too. The report has to name both nodes.
#[test]
fn loss_names_a_node_whose_key_was_gone_before_it_was_disconnected() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([(0, ":0\r\n"), (1, "-ERR no\r\n"), (2, "-ERR no\r\n")]);
    bench.lose(0);
    bench.pass(millis(300));
    for (node, reply) in [(1, ":0\r\n"), (2, "-ERR no\r\n")] {
        assert!(bench.names(node).iter().any(|name| name.starts_with("EVAL")), "n{node}");
        bench.reply(node, reply);
    }
    let error = bench.refused();
    let Error::Lost { reason: LostReason::Gone, report } = error else { panic!("{error}") };
    let replies: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    assert_eq!(replies[..2], [NodeReply::Absent; 2], "{report}");
}

/// Node 2 has forgotten the script, and answers two extends after the majority did. The client
/// repeats only the later one.
#[test]
fn extend_of_an_earlier_round_is_not_repeated() {
    let (mut bench, lock) = Bench::new(3).with_lock_everywhere();
    for _ in 0..2 {
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        assert_eq!(bench.names(2), ["EVALSHA"]);
        bench.answer(0..2, ":1\r\n");
        bench.completion().unwrap().result.unwrap();
    }
    bench.reply(2, "-NOSCRIPT No matching script\r\n");
    assert!(bench.sent(2).is_empty(), "the later extend is on its way");
    bench.reply(2, "-NOSCRIPT No matching script\r\n");
    assert_eq!(bench.names(2), ["EVAL"]);
}

#[test]
fn release_waits_for_a_node_whose_connection_is_being_replaced() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.pass(TTL / 2);
    // The connection lasted long, so the client opens the next one without a back-off.
    bench.lose(0);
    bench.core.release(lock, 3, bench.now);
    assert_eq!(bench.names(1), ["EVALSHA"]);
    assert_eq!(bench.names(2), ["EVALSHA"]);
    bench.reply(1, ":1\r\n");
    assert!(bench.completion().is_none(), "two of three have to answer");
    bench.pass(Duration::ZERO);
    let sent = bench.connect(0);
    assert_eq!(sent.last().unwrap()[0], "EVAL", "{sent:?}");
    bench.reply(0, &"+OK\r\n".repeat(sent.len() - 1));
    bench.reply(0, ":1\r\n");
    assert_eq!(bench.released(), ReleaseOutcome::Released);
}

#[test]
fn release_does_not_wait_for_a_node_that_keeps_failing() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.lose(0);
    bench.lose(1);
    bench.core.release(lock, 3, bench.now);
    assert!(matches!(bench.released(), ReleaseOutcome::Unconfirmed { .. }));
}

#[test]
fn release_whose_answers_differ_waits_for_the_node_that_decides() {
    let cases = [
        ([0, 1, 2], "1 0 1", Some(ReleaseOutcome::Released)),
        ([2, 0, 1], "1 0 1", Some(ReleaseOutcome::Released)),
        ([1, 2, 0], "1 -1 0", Some(ReleaseOutcome::TakenByOther)),
        ([1, 2, 0], "1 -1 -1", Some(ReleaseOutcome::TakenByOther)),
        ([0, 1, 2], "1 0 0", Some(ReleaseOutcome::AlreadyExpired)),
        ([0, 1, 2], "1 -1", None),
        ([1, 0, 2], "1 0", None),
    ];
    for (order, said, released) in cases {
        let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
        bench.core.release(lock, 2, bench.now);
        let said: Vec<&str> = said.split(' ').collect();
        for node in order {
            let Some(answer) = said.get(node) else { continue };
            bench.answer([node], &format!(":{answer}\r\n"));
        }
        let expected = released.unwrap_or_else(|| {
            assert!(bench.completion().is_none(), "the third node decides: {said:?}");
            bench.pass(bench.core.settings().node_timeout);
            let third = NodeSet::first(3).minus(NodeSet::first(2));
            ReleaseOutcome::Unconfirmed { nodes: third }
        });
        assert_eq!(bench.released(), expected, "{said:?} by {order:?}");
    }
}

#[test]
fn release_that_no_majority_answers_in_time_is_unconfirmed() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.core.release(lock, 3, bench.now);
    bench.assert_sent(0..3, ["EVALSHA"]);
    bench.reply(0, ":1\r\n");
    assert!(bench.completion().is_none());
    bench.pass(millis(50));
    assert!(matches!(bench.released(), ReleaseOutcome::Unconfirmed { .. }));
}
