//! Locks over several keys that wait: for other requests of the same client, and for other clients.

use std::time::Duration;

use redlatch::proto::{KeySet, ReportedSet};
use redlatch::{Completion, Error, HeldFor, Lock, LockOptions, Op, Outcome};

use crate::bench::{Bench, TTL};

const WAIT: Duration = Duration::from_secs(4);

fn wait_for(bench: &mut Bench, names: &[&str]) -> Op {
    let keys = KeySet::new(names).expect("a good set");
    bench.ask_for(&keys, 0, LockOptions::new(TTL).wait(WAIT))
}

fn wait_for_one(bench: &mut Bench, key: &str) -> Op {
    bench.ask_for(key, 0, LockOptions::new(TTL).wait(WAIT))
}

/// The node grants every lock and confirms every release. Returns the keys of the locks.
fn grant(bench: &mut Bench) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.sent(0) {
        match &command[0][..] {
            "SET" => {
                asked.push(command[1].clone());
                bench.reply(0, "+OK\r\n");
            }
            "EVAL" | "EVALSHA" if command.last().unwrap().len() < 40 => {
                asked.push(command[3..3 + command[2].parse::<usize>().unwrap()].join("+"));
                bench.reply(0, ":1\r\n");
            }
            "EVAL" | "EVALSHA" => bench.reply(0, ":1\r\n"),
            "TIME" => bench.answer_time(0),
            other => panic!("{other}"),
        }
    }
    asked
}

fn taken(bench: &mut Bench) -> (Op, Lock) {
    match bench.completion() {
        Some(Completion { op, result: Ok(Outcome::Acquired(lock)), .. }) => (op, lock),
        other => panic!("no lock: {other:?}"),
    }
}

/// Releases the lock. Returns the keys of the locks that the client asks for then, and gets.
fn give_back(bench: &mut Bench, lock: Lock) -> Vec<String> {
    bench.core.release(lock, 0, bench.now);
    let asked = grant(bench);
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Released(_))));
    asked
}

#[test]
fn crossed_sets_of_one_client_have_their_turns_in_the_order_of_their_requests() {
    let mut bench = Bench::new(1);
    let ops: Vec<Op> = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "a"]]
        .iter()
        .map(|names| wait_for(&mut bench, names))
        .collect();
    let mut expected = ["a+b", "a+b", "b+c", "a+c"].iter();
    for op in ops {
        assert_eq!(grant(&mut bench), [*expected.next().unwrap()], "one set at a time");
        let (taken, lock) = taken(&mut bench);
        assert_eq!(taken, op);
        bench.core.release_nowait(&lock, bench.now);
    }
    grant(&mut bench);
    bench.assert_idle();
}

#[test]
fn request_for_a_key_waits_for_the_set_before_it_that_waits_for_another_key() {
    let mut bench = Bench::new(1);
    wait_for_one(&mut bench, "b");
    assert_eq!(grant(&mut bench), ["b"]);
    let (_, held) = taken(&mut bench);
    // The set waits for `b`, and is before the single request in the local queue for `a`.
    let set = wait_for(&mut bench, &["a", "b"]);
    let single = wait_for_one(&mut bench, "a");
    assert!(grant(&mut bench).is_empty(), "no node is asked");
    assert_eq!(give_back(&mut bench, held), ["a+b"]);
    let (op, lock) = taken(&mut bench);
    assert_eq!(op, set);
    assert_eq!(give_back(&mut bench, lock), ["a"]);
    assert_eq!(taken(&mut bench).0, single);
}

#[test]
fn deadline_of_a_set_that_waited_for_its_own_client_counts_from_its_turn() {
    let mut bench = Bench::new(1);
    wait_for_one(&mut bench, "b");
    grant(&mut bench);
    let (_, held) = taken(&mut bench);
    wait_for(&mut bench, &["a", "b"]);
    bench.pass(WAIT / 2);
    let turn = bench.now;
    give_back(&mut bench, held);
    let (_, lock) = taken(&mut bench);
    let usable = TTL - TTL / 100 - Duration::from_millis(2);
    assert_eq!(bench.core.deadline(&lock), Some(turn.saturating_add(usable)));
}

#[test]
fn set_that_shares_no_key_waits_for_nothing() {
    let mut bench = Bench::new(1);
    wait_for(&mut bench, &["a", "b"]);
    wait_for(&mut bench, &["c", "d"]);
    wait_for_one(&mut bench, "e");
    assert_eq!(grant(&mut bench), ["a+b", "c+d", "e"]);
}

#[test]
fn set_that_gives_up_or_is_cancelled_passes_its_turns_on() {
    for cancelled in [true, false] {
        let mut bench = Bench::new(1);
        wait_for_one(&mut bench, "b");
        grant(&mut bench);
        let (_, held) = taken(&mut bench);
        let set = wait_for(&mut bench, &["a", "b", "c"]);
        bench.pass(WAIT / 2);
        let (first, last) = (wait_for_one(&mut bench, "a"), wait_for_one(&mut bench, "b"));
        assert!(grant(&mut bench).is_empty());
        if cancelled {
            bench.core.cancel(set, bench.now);
        } else {
            bench.pass(WAIT / 2);
            let error = bench.refused();
            assert!(error.is_contended(), "{error}");
            let report = error.report().unwrap();
            assert_eq!((&report.key[..], report.set.unwrap().keys), (&b"b"[..], 3));
        }
        assert_eq!(grant(&mut bench), ["a"], "cancelled: {cancelled}");
        assert_eq!(taken(&mut bench).0, first);
        assert_eq!(give_back(&mut bench, held), ["b"]);
        assert_eq!(taken(&mut bench).0, last);
    }
}

#[test]
fn set_that_may_not_wait_is_refused_for_a_key_that_this_client_has() {
    let mut bench = Bench::new(1);
    wait_for_one(&mut bench, "b");
    grant(&mut bench);
    let (_, held) = taken(&mut bench);
    let keys = KeySet::new(["a", "b", "c"]).unwrap();
    bench.core.acquire(&keys, LockOptions::once(TTL), 0, bench.now).expect("asked");
    let error = bench.refused();
    let Error::Contended(report) = &error else { panic!("{error}") };
    assert_eq!(&report.key[..], b"b");
    assert_eq!(report.set, Some(ReportedSet { keys: 3, named: true }));
    assert!(matches!(report.held, Some(HeldFor::Ours { .. })), "{error}");
    assert!(bench.sent(0).is_empty());
    // A request for one key of a set that this client holds is refused in the same way.
    drop(give_back(&mut bench, held));
    bench.core.acquire(&keys, LockOptions::once(TTL), 0, bench.now).expect("asked");
    assert_eq!(grant(&mut bench), ["a+b+c"]);
    let _lock = taken(&mut bench);
    bench.core.acquire(b"c", LockOptions::once(TTL), 0, bench.now).expect("asked");
    let error = bench.refused();
    assert!(matches!(&error, Error::Contended(report) if &report.key[..] == b"c"), "{error}");
}

#[test]
fn release_of_everything_ends_sets_that_wait_for_each_other() {
    let mut bench = Bench::new(1);
    wait_for(&mut bench, &["a", "b"]);
    grant(&mut bench);
    let _lock = taken(&mut bench);
    for names in [["b", "c"], ["c", "d"], ["d", "a"]] {
        wait_for(&mut bench, &names);
        wait_for_one(&mut bench, names[0]);
        wait_for_one(&mut bench, names[1]);
    }
    bench.core.release_all(bench.now);
    grant(&mut bench);
    bench.assert_idle();
}
