//! A node that became a replica while the client was connected: its answers are no votes, and the
//! client asks it for nothing until a new handshake shows that it is a master.

use super::*;

const READONLY: &str = "-READONLY You cannot write against a read only replica.\r\n";

/// How servers before Redis 7 report the same error from inside a script.
const WRAPPED: &str = "-ERR Error running script (call to f_af1a383f): \
    @user_script:1: @user_script: 1: -READONLY You cannot write against a read only replica. \r\n";

#[track_caller]
fn assert_rejected(bench: &Bench, node: usize) {
    assert_eq!(bench.node_state(node), NodeState::Rejected(NodeError::Replica), "n{node}");
}

#[test]
fn a_node_that_refuses_a_set_as_a_replica_is_rejected_until_it_is_examined_again() {
    let mut bench = Bench::new(3).with_request();
    bench.assert_sent(0..3, ["SET"]);
    bench.reply(2, READONLY);
    assert_rejected(&bench, 2);
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "+OK\r\n");
    assert!(bench.completion().expect("two of three granted").result.is_ok());
    // The next handshake reads the role of the node, which is still a replica.
    bench.set_info(2, &INFO_OLD.replace("role:master", "role:slave"));
    bench.pass(millis(600));
    bench.open(2);
    while bench.node_state(2) == NodeState::Handshake {
        let asked = bench.sent(2);
        let replies: String = asked.iter().map(|it| bench.handshake_reply(2, it)).collect();
        bench.reply(2, &replies);
    }
    assert_rejected(&bench, 2);
}

#[test]
fn extend_does_not_count_a_node_that_became_a_replica() {
    for refusal in [READONLY, WRAPPED] {
        let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
        bench.core.extend(&lock, TTL, 2, bench.now).expect("it is held");
        bench.assert_sent(0..3, ["EVALSHA"]);
        bench.reply(0, ":1\r\n");
        bench.reply(1, refusal);
        assert_rejected(&bench, 1);
        bench.reply(2, refusal);
        assert_rejected(&bench, 2);
        assert!(bench.completion().is_none(), "one master of three is no majority");
        bench.pass(TTL);
        let error = bench.refused();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
}

#[test]
fn a_report_has_the_words_of_a_node_that_refused_and_of_one_that_became_a_replica() {
    let mut bench = Bench::quiet(3);
    bench.acquire();
    let replies = [
        "-OOM command not allowed\r\n",
        "-READONLY You cannot write against a read only replica.\r\n",
        "_\r\n",
    ];
    bench.answer_each(replies.into_iter().enumerate());
    let report = bench.no_quorum();
    let details: Vec<_> = report.nodes.iter().map(|node| node.detail.as_deref()).collect();
    let oom = "OOM command not allowed";
    let replica = "READONLY You cannot write against a read only replica.";
    assert_eq!(details, [Some(oom), Some(replica), None]);
    // A later report must not explain the lost connection of node 0 by its earlier error.
    bench.lose(0);
    bench.acquire();
    let report = bench.no_quorum();
    let details: Vec<_> = report.nodes.iter().map(|node| node.detail.as_deref()).collect();
    assert_eq!(details, [Some("reset"), Some(replica), None]);
}

#[test]
fn a_report_does_not_explain_an_answer_by_the_loss_of_the_connection_after_it() {
    let mut bench = Bench::quiet(3);
    bench.acquire();
    bench.answer([0], "-OOM command not allowed\r\n");
    bench.lose(0);
    bench.answer([1], "-OOM command not allowed\r\n");
    let report = bench.no_quorum();
    assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::OutOfMemory));
    assert_ne!(report.nodes[0].detail.as_deref(), Some("reset"));
}
