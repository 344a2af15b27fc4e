//! A node that restarts with the data of another node. It may have this client's key, although it
//! has granted the key to another client since. So the grant of a node in quarantine counts in an
//! extend only as long as the client has proof that the node never lost the key. The proof lasts
//! for the ttl, less drift, from when the client sent the last request that the node granted.

use super::*;
use redlatch::proto::Action;
use redlatch::{Lock, NodeId};

/// With this `max_ttl` a quarantine lasts longer than the ttl of the locks in these tests.
const MAX_TTL: Duration = Duration::from_secs(60);

fn bench() -> Bench {
    Bench::with(3, |settings| settings.max_ttl = MAX_TTL)
}

/// The client connects to the node again. Another process runs there, with keys that the client did
/// not send to it.
fn come_back(bench: &mut Bench, node: usize, run: &str) {
    bench.set_info(node, &INFO_OLD.replace("RRR", run));
    bench.actions();
    loop {
        bench.pass(millis(100));
        let actions = bench.actions();
        if actions.contains(&Action::Connect(NodeId::new(node))) {
            bench.put_back(actions);
            break;
        }
    }
    bench.connect(node);
    assert!(matches!(bench.node_state(node), NodeState::Quarantined(_)));
}

/// The process of the node ends, and another one starts in its place.
fn replace_process(bench: &mut Bench, node: usize, run: &str) {
    bench.lose(node);
    come_back(bench, node, run);
}

/// Answers everything that these nodes were sent.
fn answer(bench: &mut Bench, nodes: &[usize]) {
    nodes.iter().for_each(|&node| bench.answer_all(node, |_| ":1\r\n"));
}

/// These nodes grant an extend. Returns whether it is won.
fn extended_by(bench: &mut Bench, lock: &Lock, nodes: &[usize]) -> bool {
    bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    answer(bench, nodes);
    bench.completion().is_some_and(|done| done.result.is_ok())
}

/// Extends the lock each second, for this long, with the grants of nodes 0 and 1.
fn renew_without_2(bench: &mut Bench, lock: &Lock, length: Duration) {
    for _ in 0..length.as_secs() {
        bench.pass(Duration::from_secs(1));
        answer(bench, &[0, 1]);
        assert!(extended_by(bench, lock, &[0, 1]));
    }
}

#[test]
fn restored_node_does_not_count_if_its_key_may_have_ended() {
    let (mut bench, lock) = bench().with_lock_everywhere();
    bench.lose(2);
    // The key ends on node 2, which may then grant it to another client. After that node 2 starts
    // from a copy of node 1, so it has this client's token again.
    renew_without_2(&mut bench, &lock, TTL);
    come_back(&mut bench, 2, "SSS");
    assert!(!extended_by(&mut bench, &lock, &[1, 2]), "the other client has nodes 0 and 2");
}

#[test]
fn restored_node_does_not_count_if_it_was_in_quarantine_already() {
    let (mut bench, lock) = bench().with_lock_everywhere();
    // Node 2 restarts with its keys, and grants an extend while the proof holds, so it counts.
    replace_process(&mut bench, 2, "SSS");
    assert!(extended_by(&mut bench, &lock, &[0, 2]));
    // Node 2 has no connection for longer than the ttl, so the key ends there. For another client
    // the quarantine of the node may be over, so the node may grant the key to that client. Then it
    // starts from a copy of node 1.
    bench.lose(2);
    renew_without_2(&mut bench, &lock, TTL);
    come_back(&mut bench, 2, "TTT");
    assert!(!extended_by(&mut bench, &lock, &[1, 2]));
}

#[test]
fn extend_in_quarantine_counts_only_if_it_is_read_before_the_proof_ends() {
    // The proof of node 2 ends 9.898 s after the acquire.
    for (read_at, counts) in [(9_880, true), (9_899, false)] {
        let mut bench = Bench::with(3, |settings| {
            settings.max_ttl = MAX_TTL;
            settings.node_timeout = Duration::from_secs(20);
        });
        let lock = bench.hold_everywhere();
        bench.reply(2, FLUSH);
        bench.pass(millis(5_000));
        assert!(extended_by(&mut bench, &lock, &[0, 1]));
        bench.pass(millis(4_000));
        assert!(!extended_by(&mut bench, &lock, &[1]));
        // Node 2 answers both extends late.
        bench.pass(millis(read_at - 9_000));
        answer(&mut bench, &[2]);
        let won = bench.completion().is_some_and(|done| done.result.is_ok());
        assert_eq!(won, counts, "read at {read_at} ms");
    }
}

#[test]
fn quarantine_does_not_end_a_lock_that_is_renewed() {
    let (mut bench, lock) = bench().with_lock_everywhere();
    replace_process(&mut bench, 1, "SSS");
    replace_process(&mut bench, 2, "TTT");
    // For five ttls only nodes in quarantine answer. Each of their grants comes while the proof by
    // the earlier one holds.
    for _ in 0..15 {
        bench.pass(TTL / 3);
        answer(&mut bench, &[0, 1, 2]);
        assert!(extended_by(&mut bench, &lock, &[1, 2]));
        assert!(matches!(bench.node_state(1), NodeState::Quarantined(_)));
    }
}

#[test]
fn node_that_forgets_again_in_quarantine_counts_while_its_proof_holds() {
    let (mut bench, lock) = bench().with_lock_everywhere();
    for run in ["SSS", "TTT", "UUU"] {
        replace_process(&mut bench, 2, run);
        assert!(extended_by(&mut bench, &lock, &[1, 2]));
    }
}

#[test]
fn end_of_a_quarantine_does_not_prove_a_key_that_was_granted_in_it() {
    let mut bench = Bench::short_quarantine(3);
    bench.reply(2, FLUSH);
    let lock = bench.hold_everywhere();
    for _ in 0..2 {
        bench.pass(millis(5_100));
        answer(&mut bench, &[0, 1, 2]);
        let trusted = bench.node_state(2) == NodeState::Ready;
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        assert_eq!(bench.names(2), ["EVALSHA"]);
        // In the second round the client trusts the node when it asks it, but the node is flushed
        // before it answers. So this grant does not count either.
        let flush = if trusted { FLUSH } else { "" };
        bench.reply(2, &format!("{flush}:1\r\n"));
        answer(&mut bench, &[1]);
        assert!(bench.completion().is_none(), "trusted: {trusted}");
        answer(&mut bench, &[0]);
        assert!(bench.completion().is_some_and(|done| done.result.is_ok()));
    }
}

/// A bench whose node timeout is longer than the tests last.
fn patient() -> Bench {
    Bench::with(3, |settings| {
        settings.max_ttl = MAX_TTL;
        settings.node_timeout = Duration::from_secs(20);
    })
}

/// Asserts that the node was sent only a request of this name, and leaves it unanswered.
fn leave_unanswered(bench: &mut Bench, node: usize, name: &str) {
    let asked = bench.names(node);
    assert_eq!(asked.iter().filter(|it| **it != "TIME").collect::<Vec<_>>(), [name]);
}

#[test]
fn late_answer_to_an_earlier_extend_proves_the_key_for_that_extend_only() {
    let (mut bench, lock) = patient().with_lock_everywhere();
    for asked_at in [1, 4] {
        bench.pass(Duration::from_secs(if asked_at == 1 { 1 } else { 3 }));
        assert!(extended_by(&mut bench, &lock, &[0, 1]));
        leave_unanswered(&mut bench, 2, "EVALSHA");
    }
    // Node 2 grants the first extend, and its process ends before it executes the second.
    bench.reply(2, ":1\r\n");
    bench.lose(2);
    // So node 2 had the key until 10.898 s, by the first extend, and not until 13.898 s, by the
    // second. It is back at 11 s, and does not count.
    bench.pass(Duration::from_secs(7));
    answer(&mut bench, &[0, 1]);
    come_back(&mut bench, 2, "SSS");
    assert!(!extended_by(&mut bench, &lock, &[1, 2]));
}

#[test]
fn late_grant_proves_the_key_for_the_acquire_only() {
    let (mut bench, lock) = patient().with_lock(&[0, 1]);
    leave_unanswered(&mut bench, 2, "SET");
    bench.pass(Duration::from_secs(4));
    assert!(extended_by(&mut bench, &lock, &[0, 1]));
    leave_unanswered(&mut bench, 2, "EVALSHA");
    // Node 2 executed the SET at once, and its process ends before it executes the extend.
    bench.reply(2, "+OK\r\n");
    bench.lose(2);
    bench.pass(Duration::from_secs(7));
    answer(&mut bench, &[0, 1]);
    come_back(&mut bench, 2, "SSS");
    assert!(!extended_by(&mut bench, &lock, &[1, 2]));
}

#[test]
fn grant_in_quarantine_is_a_new_proof_also_after_the_majority() {
    let (mut bench, lock) = bench().with_lock_everywhere();
    replace_process(&mut bench, 2, "SSS");
    for _ in 0..9 {
        bench.pass(TTL / 3);
        answer(&mut bench, &[0, 1, 2]);
        assert!(extended_by(&mut bench, &lock, &[0, 1]));
        answer(&mut bench, &[2]);
    }
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
    assert!(extended_by(&mut bench, &lock, &[1, 2]));
}

#[test]
fn healed_key_is_proven_for_what_was_left_of_the_lock() {
    // The lock ends at 14.898 s. The heal gives the key the time that was left of the lock, less
    // 102 ms of drift and 1 ms of rounding.
    for (read_at, counts) in [(14_760, true), (14_810, false)] {
        let (mut bench, lock) = patient().with_lock_everywhere();
        bench.pass(millis(5_000));
        answer(&mut bench, &[0, 1, 2]);
        assert!(extended_by(&mut bench, &lock, &[0, 1]));
        bench.answer_to(["EVALSHA"], [2], ":0\r\n");
        assert_eq!(bench.names(2), ["SET"], "it is healed");
        bench.reply(2, "+OK\r\n");
        bench.reply(2, FLUSH);
        bench.pass(millis(5_000));
        answer(&mut bench, &[0, 1]);
        assert!(extended_by(&mut bench, &lock, &[0, 1]));
        bench.pass(millis(4_500));
        answer(&mut bench, &[0, 1]);
        assert!(!extended_by(&mut bench, &lock, &[1]));
        bench.pass(millis(read_at - 14_500));
        answer(&mut bench, &[2]);
        let won = bench.completion().is_some_and(|done| done.result.is_ok());
        assert_eq!(won, counts, "read at {read_at} ms");
    }
}
