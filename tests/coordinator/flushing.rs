//! Nodes that report flushes again and again: how often the client acts on them, and that it does
//! not miss the last one.

use super::foreign_writes::{answer, kept};
use super::*;
use redlatch::{AutoExtend, NodeId, RestartGuard};

/// On how many flushes of the node the client has acted.
fn flushes(bench: &Bench, node: usize) -> u64 {
    bench.core.stats().nodes[node].flushes
}

#[test]
fn flushes_in_a_thousand_reads_are_acted_on_together() {
    let mut bench = Bench::quiet(3);
    for _ in 0..1_000 {
        bench.reply(0, FLUSH);
    }
    assert_eq!(flushes(&bench, 0), 1, "the first is acted on at once");
    bench.pass(millis(50));
    assert_eq!(flushes(&bench, 0), 2, "and the others together");
    bench.pass(millis(500));
    assert_eq!(flushes(&bench, 0), 2, "nothing is left of them");
    // One flush each millisecond.
    for _ in 0..1_000 {
        bench.reply(0, FLUSH);
        bench.pass(millis(1));
    }
    assert!((20..=22).contains(&(flushes(&bench, 0) - 2)), "{}", flushes(&bench, 0));
    // The flushes of one node do not delay those of another.
    bench.reply(1, FLUSH);
    assert_eq!((flushes(&bench, 1), flushes(&bench, 2)), (1, 0));
}

#[test]
fn the_last_flush_of_many_checks_a_lock_that_was_granted_between_them() {
    for connection_is_lost in [false, true] {
        // With the restart guard on, two of the nodes would be in quarantine, and no lock granted.
        let mut bench = Bench::with(3, |settings| {
            settings.probe_interval = TTL * 100;
            settings.restart_guard = RestartGuard::Off;
        });
        (0..2).for_each(|node| bench.reply(node, FLUSH));
        let (mut bench, lock) = kept(bench, AutoExtend::at_most(TTL * 100));
        (0..2).for_each(|node| bench.reply(node, FLUSH));
        bench.pass(Duration::ZERO);
        assert_eq!(answer(&mut bench, [":1\r\n"; 3]), 0, "it waits a little");
        if connection_is_lost {
            bench.lose(0);
        }
        bench.pass(millis(50));
        let asked = if connection_is_lost { 2 } else { 3 };
        assert_eq!(answer(&mut bench, [":1\r\n"; 3]), asked, "the nodes are asked");
        assert!(!bench.core.remaining(&lock, bench.now).is_zero());
    }
}

#[test]
fn flush_that_no_other_follows_sets_no_timer() {
    let mut bench = Bench::quiet(3);
    let before = bench.core.open_timers();
    bench.reply(0, FLUSH);
    assert_eq!(bench.core.open_timers(), before + 1, "the end of its quarantine");
    assert_eq!(bench.node_state(1), NodeState::Ready);
    assert!(matches!(bench.core.node_state(NodeId::new(0)), NodeState::Quarantined(_)));
}
