//! Waiting for a key: the local queue of a client, and attempts with pauses on nodes that refuse
//! lines.

use super::*;
use redlatch::{AutoExtend, Lock, LockOptions, Op};

const WAIT: Duration = Duration::from_secs(100);

pub fn ask_for(bench: &mut Bench, data: u64, wait: Duration) -> Op {
    bench.core.acquire(b"k", LockOptions::new(TTL).wait(wait), data, bench.now).unwrap()
}

/// Every node denies the attempt, and acknowledges its release.
fn deny(bench: &mut Bench, nodes: usize) {
    bench.assert_sent(0..nodes, ["SET"]);
    (0..nodes).for_each(|node| bench.reply(node, "_\r\n"));
    for node in 0..nodes {
        let released = ":0\r\n".repeat(bench.sent(node).len());
        bench.reply(node, &released);
    }
}

pub fn acquired(bench: &mut Bench) -> (u64, Lock) {
    let done = bench.completion().expect("a lock");
    match done.result {
        Ok(Outcome::Acquired(lock)) => (done.data, lock),
        other => panic!("no lock: {other:?}"),
    }
}

/// Takes what the node was sent. Returns whether there is a `SET`.
fn gets_a_set_command(bench: &mut Bench, node: usize) -> bool {
    bench.names(node).iter().any(|name| name == "SET")
}

fn answer_releases(bench: &mut Bench, nodes: usize) {
    for node in 0..nodes {
        let sent = bench.sent(node).len();
        bench.reply(node, &":1\r\n".repeat(sent));
    }
    bench.assert_idle();
}

#[test]
fn waiter_without_a_line_asks_again_after_pauses_that_grow_while_the_key_is_held() {
    let mut bench = Bench::new(3).without_lines();
    ask_for(&mut bench, 1, WAIT);
    let (mut times, mut last, mut longest) = (0, bench.now, Duration::ZERO);
    for _ in 0..1000 {
        bench.pass(millis(1));
        let mut asked = false;
        for node in 0..3 {
            for command in bench.sent(node) {
                assert!(command[0] != "PTTL", "{command:?}");
                asked |= command[0] == "SET";
                let reply = if command[0] == "SET" { "_\r\n" } else { ":0\r\n" };
                bench.reply(node, reply);
            }
        }
        if asked {
            times += 1;
            longest = longest.max(bench.now.saturating_since(last));
            last = bench.now;
        }
    }
    assert!((20..60).contains(&times), "{times} attempts in a second");
    assert!(longest >= millis(25) && longest <= millis(52), "{longest:?}");
}

#[test]
fn queued_requests_of_a_client_are_served_in_order() {
    let mut bench = Bench::new(3);
    for data in 1..=3 {
        ask_for(&mut bench, data, WAIT);
    }
    for node in 0..3 {
        assert_eq!(bench.names(node), ["SET"], "the first");
        bench.reply(node, "+OK\r\n");
    }
    for data in 1..=3 {
        let (served, lock) = acquired(&mut bench);
        assert_eq!(served, data);
        assert!(bench.completion().is_none());
        bench.core.release_nowait(&lock, bench.now);
        for node in 0..3 {
            let sent = bench.names(node);
            let release = sent[0].as_str();
            assert!(release.starts_with("EVAL"), "{sent:?}");
            // The release and the next SET are in one write, in this order.
            assert_eq!(sent.len(), if data < 3 { 2 } else { 1 });
            bench.reply(node, ":1\r\n");
        }
        if data < 3 {
            (0..3).for_each(|node| bench.reply(node, "+OK\r\n"));
        }
    }
    bench.assert_idle();
}

#[test]
fn one_attempt_for_a_key_that_this_client_has_is_refused_at_once() {
    let (mut bench, held) = Bench::new(3).with_lock(&[0, 1]);
    bench.sent(2);
    ask_for(&mut bench, 5, Duration::ZERO);
    let done = bench.completion().unwrap();
    assert!(done.data == 5 && matches!(done.result, Err(Error::Contended(_))));
    assert!((0..3).all(|node| bench.sent(node).is_empty()), "nobody is asked");
    // A request for another key is not refused.
    bench.core.acquire(b"other", LockOptions::once(TTL), 6, bench.now).unwrap();
    assert!(gets_a_set_command(&mut bench, 0));
    assert!(!bench.core.remaining(&held, bench.now).is_zero());
}

#[test]
fn a_lock_that_expires_gives_the_next_waiter_its_turn() {
    let mut bench = Bench::with(1, |settings| settings.probe_interval = WAIT);
    let _held = bench.hold(&[0]);
    ask_for(&mut bench, 2, WAIT);
    bench.pass(TTL);
    let sent = bench.names(0);
    assert_eq!(sent, ["EVALSHA", "SET"]);
    bench.reply(0, ":0\r\n+OK\r\n");
    let (served, lock) = acquired(&mut bench);
    assert_eq!(served, 2);
    bench.core.release_nowait(&lock, bench.now);
    answer_releases(&mut bench, 1);
}

#[test]
fn waits_that_are_cancelled_or_run_out_leave_nothing() {
    let mut bench = Bench::with(1, |settings| settings.probe_interval = WAIT).without_lines();
    let lock = bench.hold(&[0]);
    let first = ask_for(&mut bench, 2, Duration::MAX);
    ask_for(&mut bench, 3, millis(5));
    let third = ask_for(&mut bench, 4, WAIT);
    bench.core.cancel(first, bench.now);
    bench.pass(millis(5));
    let done = bench.completion().unwrap();
    assert!(done.data == 3 && matches!(done.result, Err(Error::Contended(_))));
    bench.core.release_nowait(&lock, bench.now);
    bench.answer_to(["EVAL", "SET"], [0], ":1\r\n");
    bench.core.cancel(third, bench.now);
    bench.answer_to(["EVALSHA"], [0], "+OK\r\n:1\r\n");
    assert!(bench.completion().is_none());
    bench.assert_idle();
    // The same for a request that has asked the nodes and waits between two attempts.
    for how in 0..2 {
        let op = ask_for(&mut bench, 2, if how == 0 { WAIT } else { millis(20) });
        deny(&mut bench, 1);
        ask_for(&mut bench, 3, Duration::ZERO);
        assert!(matches!(bench.completion().unwrap().result, Err(Error::Contended(_))));
        if how == 0 {
            bench.core.cancel(op, bench.now);
        } else {
            bench.pass(millis(20));
            assert!(matches!(bench.completion().unwrap().result, Err(Error::Contended(_))));
        }
        bench.assert_idle();
    }
}

#[test]
fn close_gives_no_queued_request_a_turn() {
    let mut bench = Bench::new(1);
    let op = ask_for(&mut bench, 1, WAIT);
    ask_for(&mut bench, 2, WAIT);
    let _ = op;
    bench.core.close(bench.now);
    assert_eq!(bench.names(0), ["SET", "EVAL"], "the one that was asked for");
    bench.reply(0, "+OK\r\n:1\r\n");
    bench.assert_idle();
}

#[test]
fn queued_request_behind_one_without_quorum_ends_with_no_quorum() {
    let mut bench = Bench::new(3);
    bench.lose(0);
    bench.lose(1);
    for (data, wait) in [(1, millis(500)), (2, millis(100)), (3, Duration::ZERO)] {
        bench.ask(data, LockOptions::new(TTL).wait(wait));
    }
    let now = bench.completion().expect("it does not wait");
    assert_eq!(now.data, 3);
    assert!(matches!(now.result, Err(Error::NoQuorum(_))), "{:?}", now.result);
    bench.pass(millis(100));
    let soon = bench.completion().expect("its wait is over");
    assert_eq!(soon.data, 2);
    let Err(Error::NoQuorum(report)) = soon.result else { panic!("{:?}", soon.result) };
    assert!(matches!(report.nodes[0].reply, NodeReply::Failed(_)), "{report}");
}

#[test]
fn one_attempt_for_a_key_that_this_client_holds_reports_for_how_long() {
    let (mut bench, _) = Bench::new(3).with_lock(&[0, 1, 2]);
    ask_for(&mut bench, 2, Duration::ZERO);
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    let left = TTL - millis(102);
    assert_eq!(report.held, Some(redlatch::HeldFor::Ours { left, auto_extended: false }));
    // A lock that is only watched is not reported as auto-extended.
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
    bench.core.watch(&lock, bench.now);
    ask_for(&mut bench, 2, Duration::ZERO);
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.held, Some(redlatch::HeldFor::Ours { left, auto_extended: false }));
    bench.core.auto_extend(&lock, AutoExtend::at_most(TTL * 3), bench.now).unwrap();
    ask_for(&mut bench, 3, Duration::ZERO);
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.held, Some(redlatch::HeldFor::Ours { left, auto_extended: true }));
    let mut bench = Bench::new(3);
    ask_for(&mut bench, 1, WAIT);
    ask_for(&mut bench, 2, Duration::ZERO);
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.held, None, "this client only asks for it");
}

#[test]
fn request_queued_behind_one_that_finds_no_quorum_ends_with_no_quorum() {
    for queued in ["during an attempt", "between two attempts"] {
        let mut bench = Bench::with(3, |settings| settings.retry = (millis(900), millis(900)));
        if queued == "between two attempts" {
            bench.lose(0);
            bench.lose(1);
        }
        ask_for(&mut bench, 1, WAIT);
        // The first request pauses until after the end of the second one's wait.
        ask_for(&mut bench, 2, millis(10));
        if queued == "during an attempt" {
            bench.answer(0..3, "-LOADING no\r\n");
        }
        bench.pass(millis(10));
        let done = bench.completion().expect("its wait is over");
        assert_eq!(done.data, 2, "{queued}");
        assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{queued}: {:?}", done.result);
    }
}
