//! Drives the cluster by hand, without locks and records. The test plays the node.

use std::time::Duration;

use super::*;
use crate::proto::cluster::state::NodeState;
use crate::proto::error::NodeReply;
use crate::proto::settings::NodeSettings;
use crate::proto::wire::ask::{Encoding, Kind, Names};
use crate::proto::wire::command;

const FLUSHED: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

fn only() -> NodeId {
    NodeId::new(0)
}

/// The first two words of every command that was written to the node.
pub fn commands(cluster: &mut Cluster, node: NodeId, now: Instant) -> Vec<String> {
    let text = String::from_utf8(cluster.output(node).to_vec()).unwrap();
    cluster.handle_sent(node, text.len(), now);
    let mut lines = text.split("\r\n");
    let mut commands = Vec::new();
    while let Some(count) = lines.next().and_then(|line| line.strip_prefix('*')) {
        let words: Vec<&str> = (0..count.parse().unwrap()).map(|_| lines.nth(1).unwrap()).collect();
        commands.push(words[..words.len().min(2)].join(" "));
    }
    commands
}

/// What a healthy node answers to a command of the handshake. It reports writes to keys.
pub fn reply_to(command: &str, (run_id, uptime): (char, u64), now: Instant) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match command.split(' ').next().unwrap() {
        "HELLO" => "%1\r\n$2\r\nid\r\n:7\r\n".into(),
        "INFO" => {
            let run_id = run_id.to_string().repeat(40);
            let info = format!("run_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\nrole:master\r\n");
            bulk(&info)
        }
        "TIME" => {
            let seconds = (now.as_nanos() / 1_000_000_000).to_string();
            format!("*2\r\n{}{}", bulk(&seconds), bulk("0"))
        }
        "GET" => "-NOPERM no\r\n".into(),
        "SCRIPT" => bulk("0123456789012345678901234567890123456789"),
        "EVAL" => "-ERR Lua redis lib command arguments must be strings\r\n".into(),
        "COMMAND" => "*2\r\n_\r\n_\r\n".into(),
        _ => "+OK\r\n".into(),
    }
}

/// A cluster of one node, and the moment.
struct Bench {
    cluster: Cluster,
    now: Instant,
    run_id: char,
    uptime: u64,
    received: Vec<Received>,
}

impl Bench {
    fn new() -> Bench {
        let now = Instant::from_nanos(1_000_000_000_000);
        let settings = Settings::new(vec![NodeSettings::new("n0")]);
        let cluster = Cluster::new(settings, now);
        Bench { cluster, now, run_id: 'a', uptime: 86_400, received: Vec::new() }
    }

    /// A node that is admitted, and has answered its first `TIME`.
    fn ready() -> Bench {
        let mut bench = Bench::new();
        assert_eq!(bench.cluster.poll_action(), Some(Action::Connect(only())));
        bench.cluster.handle_connected(only(), bench.now);
        let changes = bench.answer_all();
        assert!(matches!(changes[..], [Change::Vetted]), "{changes:?}");
        bench.cluster.admit(only(), bench.now);
        bench.cluster.start_probing(only(), bench.now);
        assert!(bench.answer_all().is_empty());
        bench
    }

    /// The changes that these bytes cause; answers and pushes are in `received`.
    fn receive(&mut self, bytes: &str) -> Vec<Change> {
        let mut input = bytes.as_bytes();
        let mut changes = Vec::new();
        while let Some(received) = self.cluster.receive(only(), &mut input, self.now) {
            changes.extend(self.changes());
            self.received.push(received);
        }
        changes
    }

    /// Answers all that was written to the node as a healthy node does.
    fn answer_all(&mut self) -> Vec<Change> {
        let replies: String =
            self.commands().iter().map(|command| self.reply_to(command)).collect();
        self.receive(&replies)
    }

    fn commands(&mut self) -> Vec<String> {
        commands(&mut self.cluster, only(), self.now)
    }

    fn reply_to(&self, command: &str) -> String {
        reply_to(command, (self.run_id, self.uptime), self.now)
    }

    /// A question about record 5 that may create its key.
    fn ask(&mut self) {
        let (record, kind) = (RecordId::of(5), Kind::Acquire);
        let sent = Encoding { form: None, names: Names::Key };
        let ask = Ask::Lock(LockAsk { record, round: 1, kind, sent });
        self.cluster.ask(only(), ask, self.now, |out| command::encode(out, &[b"SET", b"key"]));
    }

    fn changes(&mut self) -> Vec<Change> {
        std::iter::from_fn(|| self.cluster.poll_change()).map(|(_, change)| change).collect()
    }

    /// Lets time pass, and handles what is due.
    fn pass(&mut self, by: Duration) -> Vec<Change> {
        self.now = self.now.saturating_add(by);
        while self.cluster.handle_timeout(self.now) {}
        self.changes()
    }
}

#[test]
fn handshake_that_is_over_waits_for_its_node_to_be_admitted() {
    let mut bench = Bench::new();
    bench.cluster.handle_connected(only(), bench.now);
    assert!(matches!(bench.answer_all()[..], [Change::Vetted]));
    assert_eq!(bench.cluster.node_state(only()), NodeState::Handshake);
    assert!(bench.cluster.may_ask(only()).is_err());
    bench.cluster.admit(only(), bench.now);
    assert_eq!(bench.cluster.node_state(only()), NodeState::Ready);
    assert!(bench.commands().is_empty(), "pending releases are to be the first words");
    bench.cluster.start_probing(only(), bench.now);
    assert_eq!(bench.commands(), ["TIME"]);
}

#[test]
fn answer_about_a_record_comes_out_with_its_question() {
    let mut bench = Bench::ready();
    bench.ask();
    bench.received.clear();
    assert!(bench.receive("+OK\r\n").is_empty());
    let [Received::Lock(ask, NodeReply::Granted)] = bench.received[..] else {
        panic!("{:?}", bench.received)
    };
    assert_eq!((ask.record, ask.round, ask.kind), (RecordId::of(5), 1, Kind::Acquire));
    assert_eq!(bench.cluster.stats().nodes[0].grants, 1);
}

#[test]
fn lost_connection_gives_back_what_was_asked_about_records_and_nothing_else() {
    let mut bench = Bench::ready();
    bench.pass(Duration::from_secs(10));
    bench.ask();
    assert!(bench.commands().contains(&"TIME".into()), "a question of the cluster's own");
    bench.ask();
    bench.cluster.handle_disconnected(only(), "reset", bench.now);
    let changes = bench.changes();
    let [Change::Lost { ref asks, provable: true, .. }] = changes[..] else {
        panic!("{changes:?}")
    };
    assert!(asks.iter().all(|ask| matches!(ask, Ask::Lock(_))), "{asks:?}");
    assert_eq!(asks.len(), 2);
}

#[test]
fn lost_connection_is_replaced_when_its_owner_planned_it() {
    let mut bench = Bench::ready();
    bench.cluster.handle_disconnected(only(), "reset", bench.now);
    assert!(bench.pass(Duration::from_secs(60)).len() == 1, "only the loss");
    assert_eq!(bench.cluster.poll_action(), None);
    bench.cluster.plan_reconnect(only(), 0, bench.now);
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.cluster.poll_action(), Some(Action::Connect(only())));
}

#[test]
fn silence_ends_with_an_answer_or_a_reset() {
    let mut bench = Bench::ready();
    let timeout = bench.cluster.settings().node_timeout;
    bench.ask();
    bench.commands();
    assert!(bench.pass(timeout).is_empty());
    assert_eq!(bench.cluster.node_state(only()), NodeState::Suspect);
    assert!(bench.receive("+OK\r\n").is_empty());
    bench.cluster.on_all_received(only(), bench.now);
    assert!(matches!(bench.changes()[..], [Change::CaughtUp]));
    bench.ask();
    bench.commands();
    bench.pass(timeout);
    let reset_after = bench.cluster.settings().reset_after;
    let changes = bench.pass(reset_after);
    assert!(matches!(changes[..], [Change::Lost { cause: NodeError::Silent, .. }]), "{changes:?}");
}

#[test]
fn silence_is_a_node_timeout_after_the_write_and_not_after_another_timeout() {
    let mut bench = Bench::ready();
    let timeout = bench.cluster.settings().node_timeout;
    bench.ask();
    // The question is written some microseconds later.
    let late = Duration::from_micros(20);
    bench.pass(late);
    bench.commands();
    bench.pass(timeout - late);
    assert_eq!(bench.cluster.node_state(only()), NodeState::Ready);
    bench.pass(late);
    assert_eq!(bench.cluster.node_state(only()), NodeState::Suspect);
}

#[test]
fn flush_is_reported_after_the_distrust_that_it_causes() {
    let mut bench = Bench::ready();
    let received = bench.cluster.receive(only(), &mut FLUSHED.as_bytes(), bench.now);
    assert!(matches!(received, Some(Received::Flushed)), "{received:?}");
    assert!(matches!(bench.changes()[..], [Change::Distrusted(_)]));
    assert!(!bench.cluster.is_trusted(only()));
    assert!(bench.cluster.may_ask(only()).is_ok(), "it may deny and release");
    // The node is in quarantine already: a second flush changes nothing.
    assert!(bench.receive(FLUSHED).is_empty());
}

#[test]
fn another_process_proves_that_nothing_comes_late() {
    for (run_id, uptime, distrusted) in [('a', 86_500, false), ('b', 1, true)] {
        let mut bench = Bench::ready();
        bench.ask();
        bench.cluster.handle_disconnected(only(), "reset", bench.now);
        assert_eq!(bench.changes().len(), 1);
        bench.cluster.plan_reconnect(only(), 0, bench.now);
        bench.pass(Duration::from_secs(60));
        (bench.run_id, bench.uptime) = (run_id, uptime);
        bench.cluster.handle_connected(only(), bench.now);
        let changes = bench.answer_all();
        if distrusted {
            let distrusted = Change::Distrusted(QuarantineReason::Restarted);
            let expected = [Change::OtherProcess, distrusted, Change::Vetted];
            assert_eq!(format!("{changes:?}"), format!("{expected:?}"));
        } else {
            assert!(matches!(changes[..], [Change::Vetted]), "{changes:?}");
        }
        bench.cluster.admit(only(), bench.now);
        let kills = bench.commands().iter().any(|command| command == "CLIENT KILL");
        assert_eq!(kills, !distrusted, "the earlier connection of the same process is ended");
    }
}

#[test]
fn usual_answer_is_taken_without_the_decoder_while_the_node_is_connected() {
    let mut bench = Bench::ready();
    bench.ask();
    bench.commands();
    let mut input = &b"+OK\r\n"[..];
    let taken = bench.cluster.receive_plain(only(), &mut input, bench.now);
    let expected = PlainAnswers { kind: Kind::Acquire, reply: NodeReply::Granted, count: 1 };
    assert_eq!((taken, input.len()), (Some(expected), 0));
    let ask = bench.cluster.take_answered(only());
    assert_eq!(ask.map(|ask| ask.record), Some(RecordId::of(5)));
    assert_eq!(bench.cluster.stats().nodes[0].round_trips.count(), 1);
    assert_eq!(bench.cluster.stats().nodes[0].grants, 1);
}
