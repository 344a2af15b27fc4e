//! Locks over several keys that wait: for other requests of the same client, and for other clients.

use std::time::Duration;

use redlatch::proto::{KeySet, ReportedSet};
use redlatch::{Completion, Error, HeldFor, Lock, LockOptions, Op, Outcome};

use crate::bench::{Bench, TTL};

const WAIT: Duration = Duration::from_secs(4);

fn wait_for(bench: &mut Bench, names: &[&str]) -> Op {
    let (keys, now) = (KeySet::new(names).expect("a good set"), bench.now);
    bench
        .core
        .acquire(&keys, LockOptions::new(TTL).wait(WAIT), 0, now)
        .expect("it can be asked for")
}

fn wait_for_one(bench: &mut Bench, key: &str) -> Op {
    bench
        .core
        .acquire(key.as_bytes(), LockOptions::new(TTL).wait(WAIT), 0, bench.now)
        .expect("it can be asked for")
}

/// The first keys of the locks that the node is asked for, each of which it grants.
fn grant(bench: &mut Bench) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.said(0) {
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
            "TIME" => bench.tell_time(0),
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
    // The set has `a` inside this client, and waits for `b`.
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
            let error = bench.completion().expect("its wait is over").result.unwrap_err();
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
    let error = bench.completion().unwrap().result.unwrap_err();
    let Error::Contended(report) = &error else { panic!("{error}") };
    assert_eq!(&report.key[..], b"b");
    assert_eq!(report.set, Some(ReportedSet { keys: 3, named: true }));
    assert!(matches!(report.held, Some(HeldFor::Ours { .. })), "{error}");
    assert!(bench.said(0).is_empty());
    // And one key of a set is refused in the same way.
    drop(give_back(&mut bench, held));
    bench.core.acquire(&keys, LockOptions::once(TTL), 0, bench.now).expect("asked");
    assert_eq!(grant(&mut bench), ["a+b+c"]);
    let _lock = taken(&mut bench);
    bench.core.acquire(b"c", LockOptions::once(TTL), 0, bench.now).expect("asked");
    let error = bench.completion().unwrap().result.unwrap_err();
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

/// The set lost its attempt on the only node, and has registered its keys.
fn lost(bench: &mut Bench) -> Op {
    let op = wait_for(bench, &["a", "b", "c"]);
    drop(bench.said(0));
    bench.reply(0, ":-1\r\n");
    let said = bench.said(0);
    let named: Vec<&str> =
        said.iter().filter(|command| command[0] == "PTTL").map(|command| &command[1][..]).collect();
    assert_eq!(named, ["a", "b", "c"], "{said:?}");
    assert_eq!(said.len(), 6, "each key after `CLIENT CACHING YES`");
    op
}

fn asks(bench: &mut Bench) -> bool {
    let said = bench.said(0);
    said.iter().any(|command| command[0].starts_with("EVAL"))
}

#[test]
fn set_asks_again_when_the_latest_of_its_keys_can_be_free() {
    let mut bench = Bench::new(1).without_lines();
    lost(&mut bench);
    bench.reply(0, "+OK\r\n:40\r\n+OK\r\n:-2\r\n+OK\r\n:120\r\n");
    bench.pass(Duration::from_millis(42));
    assert!(!asks(&mut bench), "another key is held for longer");
    bench.pass(Duration::from_millis(80));
    assert!(asks(&mut bench));
}

#[test]
fn set_is_notified_of_each_of_its_keys() {
    let push = |key: &str| format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\n{key}\r\n");
    let mut bench = Bench::new(1).without_lines();
    lost(&mut bench);
    bench.reply(0, "+OK\r\n:9000\r\n+OK\r\n:-2\r\n+OK\r\n:9000\r\n");
    bench.reply(0, &push("c"));
    assert!(!asks(&mut bench), "`a` is still held");
    bench.reply(0, &push("a"));
    assert!(asks(&mut bench));
}

#[test]
fn wait_for_a_set_that_runs_out_reports_how_long_its_keys_are_held() {
    let mut bench = Bench::new(1).without_lines();
    lost(&mut bench);
    bench.reply(0, "+OK\r\n:-2\r\n+OK\r\n:20000\r\n+OK\r\n:9000\r\n");
    let error = loop {
        if let Some(done) = bench.completion() {
            break done.result.unwrap_err();
        }
        // It polls now and then, and `b` is held.
        bench.pass(Duration::from_millis(20));
        let said = bench.said(0);
        for command in said {
            match &command[0][..] {
                "PTTL" if command[1] == "b" => bench.reply(0, ":16000\r\n"),
                "PTTL" => bench.reply(0, ":-2\r\n"),
                "TIME" => bench.tell_time(0),
                // After some attempts the keys are taken one after the other.
                "EVAL" | "EVALSHA" if command[2] == "1" => bench.reply(0, ":1\r\n"),
                "EVAL" | "EVALSHA" => bench.reply(0, ":-2\r\n"),
                _ => bench.reply(0, "+OK\r\n"),
            }
        }
    };
    let Error::Contended(report) = &error else { panic!("{error}") };
    assert!(matches!(report.held, Some(HeldFor::Left(_))), "{error}");
    assert_eq!(&report.key[..], b"b");
}

/// Sets that were refused several times: what the node is asked, with the keys, and whether it is
/// asked to take or to release them.
fn asked(bench: &mut Bench) -> Vec<String> {
    asked_at(bench, 0)
}

fn asked_at(bench: &mut Bench, node: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.said(node) {
        match &command[0][..] {
            "EVAL" | "EVALSHA" => {
                let count: usize = command[2].parse().unwrap();
                let verb = if command.len() == 4 + count { "release" } else { "take" };
                asked.push(format!("{verb} {}", command[3..3 + count].join("+")));
            }
            // Every key that is watched is free by now.
            "PTTL" => {
                asked.push(format!("watch {}", command[1]));
                bench.reply(node, ":-2\r\n");
            }
            "CLIENT" => bench.reply(node, "+OK\r\n"),
            "TIME" => bench.tell_time(node),
            _ => {}
        }
    }
    asked
}

/// The set lost three attempts to other clients.
fn lost_three_times(bench: &mut Bench) -> Op {
    let op = wait_for(bench, &["a", "b", "c"]);
    for attempt in 0..3 {
        let said = until_asked(bench);
        assert_eq!(said, ["take a+b+c"], "attempt {attempt}");
        bench.reply(0, ":-3\r\n");
    }
    op
}

/// Lets time pass until the node is asked for keys; it answers nothing about the keys until then.
fn until_asked(bench: &mut Bench) -> Vec<String> {
    for _ in 0..2000 {
        let said: Vec<String> =
            asked(bench).into_iter().filter(|said| !said.starts_with("watch")).collect();
        if !said.is_empty() {
            return said;
        }
        bench.pass(Duration::from_millis(1));
    }
    panic!("it does not ask")
}

#[test]
fn set_that_lost_several_times_takes_its_keys_in_the_order_of_their_bytes() {
    let mut bench = Bench::without_tracking(1).without_lines();
    let op = lost_three_times(&mut bench);
    assert_eq!(until_asked(&mut bench), ["take a"]);
    let start = bench.now;
    bench.reply(0, ":1\r\n");
    assert_eq!(asked(&mut bench), ["take a+b"]);
    // Another client holds `b`: `a` is kept meanwhile, and asked for again, so that it stays.
    bench.reply(0, ":-2\r\n");
    assert_eq!(until_asked(&mut bench), ["take a"]);
    assert!(bench.now > start);
    bench.reply(0, ":1\r\n");
    assert_eq!(asked(&mut bench), ["take a+b"]);
    bench.reply(0, ":1\r\n");
    assert_eq!(asked(&mut bench), ["take a+b+c"]);
    let last = bench.now;
    bench.pass(Duration::from_millis(1));
    bench.reply(0, ":1\r\n");
    let (taken, lock) = taken(&mut bench);
    assert_eq!(taken, op);
    let deadline = bench.core.deadline(&lock).expect("it is held");
    let usable = TTL - TTL / 100 - Duration::from_millis(2);
    assert_eq!(deadline, last.saturating_add(usable), "it counts from the last round");
    bench.core.release(lock, 0, bench.now);
    assert_eq!(asked(&mut bench), ["release a+b+c"]);
}

#[test]
fn set_that_takes_its_keys_one_by_one_waits_for_the_next_one_only() {
    let mut bench = Bench::new(1).without_lines();
    wait_for(&mut bench, &["a", "b", "c"]);
    let (mut watched, mut singly) = (Vec::new(), false);
    for _ in 0..2000 {
        for said in asked(&mut bench) {
            match &said[..] {
                "take a" => bench.reply(0, ":1\r\n"),
                "take a+b" => {
                    singly = true;
                    bench.reply(0, ":-2\r\n");
                }
                "take a+b+c" => bench.reply(0, ":-3\r\n"),
                watch if singly && watch.starts_with("watch") => watched.push(watch.to_string()),
                // It gives its first keys up now and then.
                release if release.starts_with("release") => {
                    singly = false;
                    bench.reply(0, ":1\r\n");
                }
                _ => {}
            }
        }
        bench.pass(Duration::from_millis(1));
    }
    assert!(!watched.is_empty() && watched.iter().all(|watch| watch == "watch b"), "{watched:?}");
}

#[test]
fn set_that_holds_its_first_keys_gives_them_back_when_it_gives_up() {
    for cancelled in [true, false] {
        let mut bench = Bench::without_tracking(1).without_lines();
        let op = lost_three_times(&mut bench);
        assert_eq!(until_asked(&mut bench), ["take a"]);
        bench.reply(0, ":1\r\n");
        assert_eq!(asked(&mut bench), ["take a+b"]);
        bench.reply(0, ":-2\r\n");
        assert!(asked(&mut bench).is_empty(), "`a` stays");
        if cancelled {
            bench.core.cancel(op, bench.now);
        }
        let mut said = Vec::new();
        while bench.core.open_ops() > 0 && bench.completion().is_none() {
            for ask in asked(&mut bench) {
                bench.reply(0, if ask == "take a" { ":1\r\n" } else { ":-2\r\n" });
                said.push(ask);
            }
            bench.pass(Duration::from_millis(1));
        }
        said.extend(asked(&mut bench));
        assert_eq!(said.last().unwrap(), "release a+b+c", "cancelled: {cancelled}");
        bench.reply(0, ":-4\r\n");
        bench.assert_idle();
    }
}

#[test]
fn set_whose_first_key_is_refused_again_releases_everything_and_begins_anew() {
    let mut bench = Bench::without_tracking(1).without_lines();
    lost_three_times(&mut bench);
    for _ in 0..2 {
        assert_eq!(until_asked(&mut bench), ["take a"]);
        bench.reply(0, ":1\r\n");
        assert_eq!(asked(&mut bench), ["take a+b"]);
        bench.reply(0, ":-2\r\n");
        // Another client took `a`, for instance after an operator had deleted it.
        assert_eq!(until_asked(&mut bench), ["take a"]);
        bench.reply(0, ":-1\r\n");
        assert_eq!(asked(&mut bench), ["release a+b+c"]);
        bench.reply(0, ":-3\r\n");
    }
}

#[test]
fn node_that_refuses_the_last_round_after_the_majority_is_released_all_the_same() {
    let mut bench = Bench::without_tracking(3).without_lines();
    wait_for(&mut bench, &["a", "b"]);
    let ask = |bench: &mut Bench, expected: &str| {
        for _ in 0..2000 {
            let said: Vec<Vec<String>> = (0..3).map(|node| asked_at(bench, node)).collect();
            if said.iter().any(|said| !said.is_empty()) {
                assert_eq!(said, vec![[expected]; 3]);
                return;
            }
            bench.pass(Duration::from_millis(1));
        }
        panic!("it does not ask")
    };
    for _ in 0..3 {
        ask(&mut bench, "take a+b");
        (0..3).for_each(|node| bench.reply(node, ":-2\r\n"));
        // The attempt was lost before the third node had answered.
        assert_eq!(asked_at(&mut bench, 2), ["release a+b"]);
        bench.reply(2, ":-2\r\n");
    }
    ask(&mut bench, "take a");
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    ask(&mut bench, "take a+b");
    bench.reply(0, ":1\r\n");
    bench.reply(1, ":1\r\n");
    let (_, lock) = taken(&mut bench);
    // The third node granted `a` before, and has `b` for another client.
    bench.reply(2, ":-2\r\n");
    bench.core.release(lock, 0, bench.now);
    assert_eq!(asked_at(&mut bench, 2), ["release a+b"]);
}

#[test]
fn set_whose_next_key_is_shared_among_waiters_gives_up_its_keys_now_and_then() {
    let mut bench = Bench::without_tracking(3).without_lines();
    wait_for(&mut bench, &["a", "b"]);
    let (mut kept, mut given_up) = (0, 0);
    for _ in 0..3800 {
        for node in 0..3 {
            for said in asked_at(&mut bench, node) {
                match &said[..] {
                    "take a" => {
                        kept += usize::from(node == 0);
                        bench.reply(node, ":1\r\n");
                    }
                    // The other nodes have `b` for another set that waits for it.
                    "take a+b" if node == 0 => bench.reply(node, ":1\r\n"),
                    "release a+b" => {
                        given_up += usize::from(node == 0);
                        bench.reply(node, ":1\r\n");
                    }
                    _ => bench.reply(node, ":-2\r\n"),
                }
            }
        }
        bench.pass(Duration::from_millis(1));
    }
    assert!(given_up > 3, "two sets that wait like this would wait for ever: {given_up}");
    assert!(kept > given_up + 3, "{kept} times `a` was asked for, {given_up} times given up");
}

#[test]
fn a_set_begins_no_round_after_its_wait() {
    let mut bench = Bench::without_tracking(1).without_lines();
    let give_up_at = bench.now.saturating_add(WAIT);
    lost_three_times(&mut bench);
    let (mut late, mut is_near_the_end) = (Vec::new(), false);
    for _ in 0..6000 {
        for ask in asked(&mut bench) {
            if bench.now > give_up_at && ask.starts_with("take") {
                late.push(ask.clone());
            }
            is_near_the_end |= give_up_at.saturating_since(bench.now) < Duration::from_millis(300);
            if is_near_the_end {
                bench.pass(Duration::from_millis(40));
            }
            let refused = !is_near_the_end && ask == "take a+b";
            bench.reply(0, if refused { ":-2\r\n" } else { ":1\r\n" });
        }
        if let Some(done) = bench.completion() {
            assert!(matches!(done.result, Err(Error::Contended(_))), "{done:?}");
            assert_eq!(late, [""; 0]);
            return;
        }
        if is_near_the_end {
            bench.now = bench.now.max(give_up_at);
        } else {
            bench.pass(Duration::from_millis(1));
        }
    }
    panic!("the wait does not end");
}

/// A caller holds `b` by a single lock, and waits for `a` while it does.
#[test]
fn a_set_gives_its_first_key_up_now_and_then_for_a_caller_that_locks_out_of_order() {
    let mut bench = Bench::without_tracking(1).without_lines();
    lost_three_times(&mut bench);
    let (mut free, mut has) = (0, false);
    for _ in 0..3500 {
        for ask in asked(&mut bench) {
            match &ask[..] {
                "take a" => {
                    has = true;
                    bench.reply(0, ":1\r\n");
                }
                "take a+b" | "take a+b+c" => bench.reply(0, ":-2\r\n"),
                _ => {
                    has = false;
                    bench.reply(0, ":1\r\n");
                }
            }
        }
        free += u32::from(!has);
        bench.pass(Duration::from_millis(1));
    }
    assert!(free > 50, "`a` was free for {free} of 3,500 ms");
}
