//! Kept locks whose keys another client wrote to: the checks that the coordinator starts for that,
//! in addition to the caller's requests.

use super::*;
use redlatch::{AutoExtend, Lock, LockUpdateKind, LostReason};

pub const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";
/// The notification that another client wrote to the key.
pub const WRITTEN: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";

/// The bench with a kept lock on all three nodes, which have answered everything.
pub fn kept(mut bench: Bench, keep: AutoExtend) -> (Bench, Lock) {
    let lock = bench.hold_everywhere();
    bench.core.auto_extend(&lock, keep, bench.now).unwrap();
    bench.answer_to(["CLIENT", "PTTL"], 0..3, "+OK\r\n:9999\r\n");
    (bench, lock)
}

/// Every node answers what it was sent, an extend by its reply in `said`. Returns how many extends
/// there were.
pub fn answer(bench: &mut Bench, said: [&str; 3]) -> usize {
    let mut extends = 0;
    for (node, said) in said.into_iter().enumerate() {
        for command in bench.sent(node) {
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

/// A majority reports a write, and the terms of the renewal are replaced before the check begins.
#[test]
fn foreign_write_is_checked_also_if_the_terms_of_the_renewal_are_replaced() {
    let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    (0..2).for_each(|node| bench.reply(node, WRITTEN));
    bench.core.auto_extend(&lock, AutoExtend::extensions(0), bench.now).unwrap();
    bench.pass(millis(1));
    let asked = answer(&mut bench, [":0\r\n"; 3]);
    assert!(asked >= 3, "the nodes are asked at once, and then released");
    let update = bench.core.poll_lock_update().expect("it is lost");
    let LockUpdateKind::Lost(Error::Lost { reason, .. }) = update.kind else {
        panic!("{update:?}")
    };
    assert_eq!(reason, LostReason::Gone);
}

#[test]
fn foreign_write_check_does_not_disturb_an_extend_that_pauses() {
    let (mut bench, lock) = kept(
        Bench::with(3, |settings| settings.node_timeout = millis(600)),
        AutoExtend::at_most(TTL * 100),
    );
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    assert_eq!(answer(&mut bench, [BUSY, BUSY, ":1\r\n"]), 3);
    // The client repeats the extend after 600 ms. Before that another client writes to the key,
    // which the client checks after 500 ms.
    bench.reply(2, WRITTEN);
    bench.pass(millis(500));
    answer(&mut bench, [BUSY; 3]);
    bench.pass(millis(100));
    assert_eq!(bench.names(0), ["EVALSHA", "CLIENT", "PTTL"], "its pause is over");
    // The nodes answer the check only after the extend was repeated.
    bench.pass(millis(500));
    answer(&mut bench, [":1\r\n"; 3]);
    let done = bench.completion().unwrap();
    assert!(matches!((done.data, &done.result), (2, Ok(Outcome::Extended { .. }))), "{done:?}");
}

#[test]
fn writes_do_not_prolong_a_lock_beyond_its_extensions() {
    for refuses in [false, true] {
        let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::extensions(1));
        let start = bench.now;
        let mut told = Vec::new();
        // Another client writes to the key all the time. (A node that drops the registration of the
        // key sends the same notification.)
        for _ in 0..60 {
            bench.reply(2, WRITTEN);
            bench.pass(millis(500));
            // In the second run the nodes also refuse extends for a while after the renewal.
            let renewed = bench.core.stats().renewed == 1;
            let busy = refuses && renewed && bench.core.remaining(&lock, bench.now) > TTL / 2;
            answer(&mut bench, [if busy { BUSY } else { ":1\r\n" }; 3]);
            let notice = bench.notice().map(|it| it.kind);
            told.extend(notice.map(|kind| (bench.now.saturating_since(start), kind)));
        }
        let moments: Vec<Duration> = told.iter().map(|(moment, _)| *moment).collect();
        println!("told after {moments:?}; {} renewals", bench.core.stats().renewed);
        assert_eq!(bench.core.stats().renewed, 1);
        assert_eq!(told.len(), 2, "a warning, and the loss: {told:?}");
        let LockUpdateKind::Lost(Error::Lost { reason, .. }) = told[1].1 else {
            panic!("{told:?}")
        };
        assert_eq!(reason, LostReason::Extensions);
        assert!(moments[1] > TTL && moments[1] < 2 * TTL, "{moments:?}");
    }
}

#[test]
fn an_extend_that_prolongs_nothing_puts_no_renewal_off() {
    let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    for _ in 0..16 {
        bench.pass(millis(600));
        answer(&mut bench, [":1\r\n"; 3]);
        bench.core.extend(&lock, millis(700), 2, bench.now).unwrap();
        answer(&mut bench, [":1\r\n"; 3]);
        assert!(bench.completion().unwrap().result.is_ok());
    }
    let left = bench.core.remaining(&lock, bench.now);
    println!("{left:?} are left after {} renewals", bench.core.stats().renewed);
    assert!(left > TTL / 2, "it was not renewed at a third of its ttl: {left:?} are left");
}

#[test]
fn a_warning_comes_once_for_a_deadline() {
    let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL));
    bench.pass(millis(7_000));
    answer(&mut bench, [":1\r\n"; 3]);
    let warning = bench.core.poll_lock_update().unwrap();
    assert!(matches!(warning.kind, LockUpdateKind::Expiring { .. }), "{warning:?}");
    bench.reply(2, WRITTEN);
    bench.pass(millis(500));
    assert_eq!(answer(&mut bench, [":1\r\n"; 3]), 3, "the write is looked after");
    bench.pass(Duration::ZERO);
    assert!(bench.notice().is_none(), "it was reported before");
    assert!(!bench.core.remaining(&lock, bench.now).is_zero());
}

#[test]
fn write_by_the_same_client_is_checked_by_its_locks() {
    for how in ["delete", "take up", "release"] {
        let (mut bench, lock) = kept(Bench::new(3), AutoExtend::at_most(TTL * 100));
        let token = lock.token();
        // Nodes do not notify a client of its own writes, so the core has to do that itself.
        let asked = match how {
            "delete" => bench.core.force_release(b"k", 3, bench.now),
            "take up" => bench.core.adopt(b"k", token, TTL, 3, bench.now),
            _ => bench.core.release_token(b"k", token, 3, bench.now),
        };
        asked.unwrap();
        for node in 0..3 {
            assert_eq!(bench.names(node).len(), 1);
            bench.reply(node, ":1\r\n");
        }
        assert_eq!(bench.completion().unwrap().data, 3);
        bench.pass(Duration::ZERO);
        let gone = if how == "take up" { ":-1\r\n" } else { ":0\r\n" };
        assert!(answer(&mut bench, [gone; 3]) >= 3, "{how} is not looked after");
        assert_eq!(bench.loss(), (1, LostReason::Gone));
    }
}

#[test]
fn foreign_write_to_a_key_that_is_being_healed_starts_no_check() {
    let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for node in 0..3 {
        assert_eq!(bench.names(node), ["EVALSHA", "CLIENT", "PTTL"]);
        let said = if node < 2 { ":1\r\n+OK\r\n:9999\r\n" } else { ":0\r\n+OK\r\n:-2\r\n" };
        bench.reply(node, said);
    }
    assert!(bench.completion().unwrap().result.is_ok());
    bench.answer_to(["SET", "CLIENT", "PTTL"], [2], "+OK\r\n+OK\r\n:9999\r\n");
    bench.pass(TTL / 10);
    assert_eq!(answer(&mut bench, [":1\r\n"; 3]), 0, "there is nothing to be found out");
}

/// Lets five ttls pass. Node 2, if it is one of the nodes, lacks the key and has no memory to set
/// it again. Returns how many extends each other node got in a ttl.
fn extends_in_a_ttl(bench: &mut Bench, nodes: &[usize]) -> usize {
    let end = bench.now.saturating_add(TTL * 5);
    let mut extends = 0;
    while bench.now < end {
        bench.pass(millis(20));
        for &node in nodes {
            for command in bench.sent(node) {
                let is_the_third = node == 2;
                extends += usize::from(command[0] == "EVALSHA" && !is_the_third);
                bench.reply(
                    node,
                    match (command[0].as_str(), is_the_third) {
                        ("CLIENT", _) => "+OK\r\n",
                        ("SET", _) => {
                            "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
                        }
                        ("PTTL", true) => ":-2\r\n",
                        ("PTTL", false) => ":9999\r\n",
                        (_, true) => ":0\r\n",
                        (_, false) => ":1\r\n",
                    },
                );
            }
        }
    }
    assert!(bench.notice().is_none(), "it is renewed in time");
    extends / 2 / 5
}

#[test]
fn foreign_write_checks_end_if_the_node_cannot_be_asked() {
    let (mut bench, _lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    bench.reply(2, WRITTEN);
    bench.lose(2);
    let extends = extends_in_a_ttl(&mut bench, &[0, 1]);
    assert!((2..=4).contains(&extends), "{extends} extends in a ttl");
}

#[test]
fn foreign_write_checks_end_if_the_node_refuses_the_heal() {
    let (mut bench, _lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    bench.reply(2, WRITTEN);
    let extends = extends_in_a_ttl(&mut bench, &[0, 1, 2]);
    assert!((2..=4).contains(&extends), "{extends} extends in a ttl");
}

#[test]
fn a_node_that_refused_to_be_healed_counts_as_one_that_has_not_the_key() {
    let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::at_most(TTL * 100));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    answer(&mut bench, [":0\r\n", ":1\r\n", ":1\r\n"]);
    assert_eq!(bench.names(0), ["SET", "CLIENT", "PTTL"], "its key is gone");
    bench.reply(0, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    bench.completion().unwrap().result.unwrap();
    // In the next extend node 1 has lost the key, too, so no majority is left.
    bench.core.extend(&lock, TTL, 3, bench.now).unwrap();
    answer(&mut bench, [BUSY, ":0\r\n", ":1\r\n"]);
    let mut ends = std::iter::from_fn(|| bench.completion()).map(|done| done.result);
    assert!(ends.any(|end| matches!(end, Err(Error::Lost { reason: LostReason::Gone, .. }))));
}
