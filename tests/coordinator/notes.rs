//! Notes: texts that a client writes beside the key of a lock, on every node, and reads there.

use redlatch::proto::Note;
use redlatch::{ConfigError, Inspection, KeyState, KeySummary, Op};

use super::*;

const GRANTED: NodeReply = NodeReply::Granted;

fn write(bench: &mut Bench) -> Op {
    let now = bench.now;
    bench.core.write_note(b"k", Note::Leader, b"a b", TTL, 7, now).expect("it can be written")
}

/// What each node answered to the write that ends next.
#[track_caller]
fn noted(bench: &mut Bench) -> Vec<NodeReply> {
    let done = bench.completion().expect("it has ended");
    assert_eq!(done.data, 7);
    let Ok(Outcome::Noted(report)) = done.result else { panic!("{:?}", done.result) };
    assert_eq!(&*report.key, b"k");
    report.nodes.iter().map(|node| node.reply).collect()
}

/// What the read that ends next has seen.
#[track_caller]
fn seen(bench: &mut Bench) -> Inspection {
    match bench.completion().map(|done| done.result) {
        Some(Ok(Outcome::Inspected(seen))) => *seen,
        other => panic!("no inspection: {other:?}"),
    }
}

#[test]
fn note_is_set_on_every_node_and_read_there_under_a_name_of_its_own() {
    for (note, prefix, key) in [
        (Note::Leader, "", "redlatch:leader:{k}"),
        (Note::Resign, "", "redlatch:resign:{k}"),
        (Note::Leader, "app:", "redlatch:leader:{app:k}"),
        (Note::Resign, "app:", "redlatch:resign:{app:k}"),
    ] {
        let mut bench = Bench::with(3, |settings| settings.key_prefix = prefix.into());
        bench.core.write_note(b"k", note, b"a b", TTL * 2, 7, bench.now).unwrap();
        for node in 0..3 {
            assert_eq!(bench.sent(node), [["SET", key, "a b", "PX", "20000"]]);
            assert!(bench.completion().is_none(), "n{node} has not answered");
            bench.reply(node, "+OK\r\n");
        }
        assert_eq!(noted(&mut bench), [GRANTED; 3]);
        bench.core.read_note(b"k", note, 8, bench.now).unwrap();
        for node in 0..3 {
            let sent = bench.sent(node);
            assert_eq!(sent[0], ["GETRANGE", key, "0", "159"]);
            assert_eq!((sent[1..].to_vec()), [["PTTL", key]]);
            bench.reply(node, "$3\r\na b\r\n:500\r\n");
        }
        let seen = seen(&mut bench);
        assert_eq!(&*seen.key, key.as_bytes());
        let KeySummary::Held { value, nodes: 3, left } = seen.summary() else { panic!("{seen:?}") };
        assert_eq!((value.as_bytes(), left), (&b"a b"[..], Some(millis(500))));
        bench.assert_idle();
    }
}

#[test]
fn note_write_reports_each_node_that_fails_and_needs_no_majority() {
    let mut bench = Bench::quiet(5);
    bench.lose(0);
    write(&mut bench);
    assert!(bench.sent(0).is_empty(), "it is not connected");
    bench.answer_to(["SET"], [1], "+OK\r\n");
    bench.answer_to(["SET"], [2], "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    bench.answer_to(["SET"], [3], "-NOPERM no\r\n");
    assert!(bench.completion().is_none());
    bench.lose(4);
    let failed = |cause| NodeReply::Failed(cause);
    let [full, refused] = [NodeError::OutOfMemory, NodeError::NoPermission].map(failed);
    let lost = failed(NodeError::Lost);
    assert_eq!(noted(&mut bench), [lost, GRANTED, full, refused, lost]);
    bench.assert_idle();
}

#[test]
fn note_write_without_any_node_ends_at_once() {
    let mut bench = Bench::quiet(3);
    (0..3).for_each(|node| bench.lose(node));
    write(&mut bench);
    assert_eq!(noted(&mut bench), [NodeReply::Failed(NodeError::Lost); 3]);
    bench.assert_idle();
}

#[test]
fn note_write_ends_at_the_node_timeout_once() {
    let mut bench = Bench::quiet(3);
    write(&mut bench);
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, "+OK\r\n");
    bench.pass(millis(49));
    assert!(bench.completion().is_none());
    bench.pass(millis(1));
    let silent = NodeReply::Failed(NodeError::Silent);
    assert_eq!(noted(&mut bench), [GRANTED, silent, silent]);
    bench.reply(1, "+OK\r\n");
    bench.reply(2, "-LOADING no\r\n");
    assert!(bench.completion().is_none(), "it was reported");
    bench.assert_idle();
}

#[test]
fn note_write_that_is_cancelled_has_no_completion() {
    let mut bench = Bench::quiet(3);
    let op = write(&mut bench);
    bench.answer([0], "+OK\r\n");
    bench.core.cancel(op, bench.now);
    bench.answer([1], "+OK\r\n");
    bench.sent(2);
    bench.lose(2);
    assert!(bench.completion().is_none());
    bench.assert_idle();
}

#[test]
fn note_write_takes_no_other_answer_than_ok() {
    for reply in [":1\r\n", "_\r\n", "$2\r\nOK\r\n", "+QUEUED\r\n"] {
        let mut bench = Bench::quiet(1);
        write(&mut bench);
        bench.answer([0], reply);
        assert_eq!(noted(&mut bench), [NodeReply::Failed(NodeError::Garbage)], "{reply:?}");
        bench.assert_idle();
    }
}

#[test]
fn note_may_outlive_every_lock_but_not_be_without_a_ttl() {
    let mut bench = Bench::short_quarantine(3);
    let now = bench.now;
    for ttl in [Duration::ZERO, Duration::MAX] {
        let error = bench.core.write_note(b"k", Note::Leader, b"", ttl, 1, now).unwrap_err();
        assert!(matches!(error, Error::Config(ConfigError::Ttl(_))), "{error}");
    }
    assert!(bench.sent(0).is_empty());
    bench.core.write_note(b"k", Note::Leader, b"", TTL * 2, 1, now).unwrap();
    assert_eq!(bench.sent(0)[0][4], "20000");
}

#[test]
fn note_that_is_read_has_no_line_whatever_it_says() {
    let mut bench = Bench::quiet(3);
    bench.core.read_note(b"k", Note::Leader, 8, bench.now).unwrap();
    let token = "0123456789".repeat(4);
    bench.answer_to(["GETRANGE", "PTTL"], [0], &format!("$40\r\n{token}\r\n:500\r\n"));
    assert!(bench.sent(0).is_empty(), "no ZRANGE");
    bench.answer_to(["GETRANGE", "PTTL"], [1], "_\r\n:-2\r\n");
    bench.sent(2);
    bench.pass(millis(50));
    let states: Vec<KeyState> = seen(&mut bench).nodes.iter().map(|node| node.state).collect();
    assert!(matches!(states[0], KeyState::Held { .. }));
    assert_eq!(states[1..], [KeyState::Absent, KeyState::Failed(NodeError::Silent)]);
}
