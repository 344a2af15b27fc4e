//! `Bench`: a coordinator, and nodes whose replies the test writes.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use redlatch::proto::command::MARK;
use redlatch::proto::{Action, Coordinator, Instant, NodeSettings, Settings};
use redlatch::{
    AutoExtend, Completion, Error, Keys, Lock, LockOptions, LockUpdate, LockUpdateKind, LostReason,
    NodeId, NodeState, Op, Outcome, ReleaseOutcome, Report,
};

pub const TTL: Duration = Duration::from_secs(10);

/// The node timeout of the tests, unless they set another.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// The core reports the loss of a kept lock this long before its deadline.
pub const LOSS_BEFORE: Duration = Duration::from_millis(2);

/// The core assumes that, this long after a connection was lost, no node receives any more bytes
/// of it.
pub const GONE_AFTER: Duration = Duration::from_secs(16 * 60);

/// With this message a node reports that it was flushed.
pub const FLUSH: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// `INFO` of a server that has been up for a day.
pub const INFO_OLD: &str = "run_id:RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR0\r\n\
                            uptime_in_seconds:86400\r\nrole:master\r\n";

/// `INFO_OLD` with a replication id.
pub const INFO_REPLID: &str = "run_id:RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR0\r\n\
                               uptime_in_seconds:86400\r\nrole:master\r\n\
                               master_replid:HHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH\r\n";

/// The words of a command, as text.
pub type Command = Vec<String>;

pub struct Bench {
    pub core: Coordinator,
    pub now: Instant,
    /// The reply of the nodes to `COMMAND INFO DELIFEQ DELEX`.
    pub native: &'static str,
    /// The reply of each node to `INFO`.
    info: Vec<String>,
    /// The node marker of each node: `None` if the client may not read it, empty if there is none.
    pub markers: Vec<Option<String>>,
    /// Actions that the core asked for and that the test has not done yet.
    pending: Vec<Action>,
    /// How many connections were opened: the id of the newest connection.
    connections: i64,
    /// Replies to `HELLO` have no connection id.
    pub has_no_connection_ids: bool,
    /// How many keys `acquire` has used.
    keys: usize,
    /// The reply of the nodes to `CLIENT TRACKING`, which asks them to report writes to keys.
    tracking: &'static str,
    /// How far the clock of each node is ahead of the client's, in microseconds.
    pub skew_micros: Vec<i64>,
    /// For each node, its unanswered probes: the commands of each that follow its `TIME`.
    probes: Vec<VecDeque<Vec<Command>>>,
}

impl Bench {
    /// Nodes that are connected, have passed the handshake, and have been up for a day.
    pub fn new(nodes: usize) -> Bench {
        Bench::with(nodes, |_| {})
    }

    pub fn with(nodes: usize, change: impl FnOnce(&mut Settings)) -> Bench {
        Bench::of(nodes, INFO_OLD, "*2\r\n_\r\n_\r\n", change)
    }

    /// Nodes that are not probed in the course of a test.
    pub fn quiet(nodes: usize) -> Bench {
        Bench::with(nodes, |settings| settings.probe_interval = TTL * 300)
    }

    /// Nodes whose quarantine lasts for the ttl of the locks and its drift.
    pub fn short_quarantine(nodes: usize) -> Bench {
        Bench::with(nodes, |settings| settings.max_ttl = TTL)
    }

    /// Nodes that refuse to report writes to keys.
    pub fn without_tracking(nodes: usize) -> Bench {
        let refused = "-NOPERM no\r\n";
        Bench::with_replies(nodes, INFO_OLD, "*2\r\n_\r\n_\r\n", refused, |_| {})
    }

    /// Nodes that do not permit this user the scripts of the line. The client has already asked
    /// and knows it.
    pub fn without_lines(mut self) -> Bench {
        let options = LockOptions::new(TTL).wait(TTL);
        let op = self.core.acquire(b"x", options, 0, self.now).expect("it can be asked for");
        while (0..self.info.len()).fold(false, |moved, node| self.refuse_lines(node) | moved) {}
        self.core.cancel(op, self.now);
        while (0..self.info.len()).fold(false, |moved, node| self.refuse_lines(node) | moved) {}
        assert!(self.core.poll_completion(self.now).is_none());
        self
    }

    /// Answers everything that was sent to the node, and refuses the commands of the line. Returns
    /// whether there was anything.
    fn refuse_lines(&mut self, node: usize) -> bool {
        let sent = self.sent(node);
        for command in &sent {
            let reply = match command[0].as_str() {
                "SET" => "_\r\n",
                "CLIENT" => "+OK\r\n",
                "PTTL" => ":9000\r\n",
                "SUBSCRIBE" => "-NOPERM no permissions to run the 'subscribe' command\r\n",
                "SCRIPT" => "-NOPERM no\r\n",
                "EVAL" | "EVALSHA" if command.iter().any(|word| word.contains("redlatch:line")) => {
                    "-NOPERM no\r\n"
                }
                _ => ":0\r\n",
            };
            self.reply(node, reply);
        }
        !sent.is_empty()
    }

    /// Nodes that answer `INFO` by `info` and `COMMAND INFO DELIFEQ DELEX` by `native`.
    pub fn of(
        nodes: usize,
        info: &str,
        native: &'static str,
        change: impl FnOnce(&mut Settings),
    ) -> Bench {
        Bench::with_replies(nodes, info, native, "+OK\r\n", change)
    }

    fn with_replies(
        nodes: usize,
        info: &str,
        native: &'static str,
        tracking: &'static str,
        change: impl FnOnce(&mut Settings),
    ) -> Bench {
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.node_timeout = NODE_TIMEOUT;
        change(&mut settings);
        let now = Instant::from_nanos(1_000_000_000_000);
        let core = Coordinator::new(settings, [9; 32], now).expect("good settings");
        let info = (0..nodes).map(|node| info.replace("RR0", &format!("RR{node}"))).collect();
        let mut bench = Bench::unconnected(core, now, native, info, tracking);
        for node in 0..nodes {
            bench.connect(node);
        }
        bench
    }

    /// Nodes that have been up for a day, before the client connects to any of them.
    pub fn not_connected(nodes: usize) -> Bench {
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut settings = Settings::new(labels.collect());
        settings.node_timeout = NODE_TIMEOUT;
        let core = Coordinator::new(settings, [9; 32], now);
        let info = (0..nodes).map(|node| INFO_OLD.replace("RR0", &format!("RR{node}"))).collect();
        let core = core.expect("good settings");
        Bench::unconnected(core, now, "*2\r\n_\r\n_\r\n", info, "+OK\r\n")
    }

    /// A new client process of nodes that an earlier bench had: the nodes have these markers, and
    /// the time is `now`. No node is connected yet.
    pub fn with_markers(markers: &[Option<String>], now: Instant) -> Bench {
        let nodes = markers.len();
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        Bench::of_settings(Settings::new(labels.collect()), markers, now)
    }

    /// As `with_markers`, with other settings.
    pub fn of_settings(mut settings: Settings, markers: &[Option<String>], now: Instant) -> Bench {
        let nodes = markers.len();
        // With replicas no shorter one is allowed than 200 ms.
        settings.node_timeout = if settings.replicas > 0 { 4 * NODE_TIMEOUT } else { NODE_TIMEOUT };
        let core = Coordinator::new(settings, [8; 32], now).expect("good settings");
        let info =
            (0..nodes).map(|node| INFO_REPLID.replace("RR0", &format!("RR{node}"))).collect();
        let mut bench = Bench::unconnected(core, now, "*2\r\n_\r\n_\r\n", info, "+OK\r\n");
        bench.markers = markers.to_vec();
        bench
    }

    fn unconnected(
        core: Coordinator,
        now: Instant,
        native: &'static str,
        info: Vec<String>,
        tracking: &'static str,
    ) -> Bench {
        Bench {
            core,
            now,
            native,
            markers: vec![None; info.len()],
            skew_micros: vec![0; info.len()],
            probes: vec![VecDeque::new(); info.len()],
            info,
            pending: Vec::new(),
            connections: 0,
            has_no_connection_ids: false,
            keys: 0,
            tracking,
        }
    }

    /// Sets the node's reply to `INFO`, which the client reads in its next handshake.
    pub fn set_info(&mut self, node: usize, info: &str) {
        self.info[node] = info.to_string();
    }

    /// Opens the connection that the core asked for and answers the handshake. Returns the commands
    /// that the core writes after the handshake. A `TIME` at their end is left out: if it is the
    /// only command, it is answered.
    pub fn connect(&mut self, node: usize) -> Vec<Command> {
        self.open(node);
        let mut sent = self.sent(node);
        assert_eq!(sent[0][0], "HELLO", "{sent:?}");
        self.connections += 1;
        // The handshake takes one round trip, or two if the node marker has to be written.
        while !self.core.node_state(NodeId::new(node)).is_usable() && !sent.is_empty() {
            let replies: String = sent.iter().map(|c| self.handshake_reply(node, c)).collect();
            self.reply(node, &replies);
            sent = self.sent(node);
        }
        if sent.last().is_some_and(|last| last[0] == "TIME") {
            sent.pop();
            // If other commands were written before TIME, the test has to answer those first.
            if sent.is_empty() {
                self.answer_time(node);
            }
        }
        sent
    }

    /// Opens the connection that the core asked for, and answers the first round trip of the
    /// handshake.
    pub fn shake_hands(&mut self, node: usize) {
        self.open(node);
        let sent = self.sent(node);
        let replies: String = sent.iter().map(|c| self.handshake_reply(node, c)).collect();
        self.reply(node, &replies);
    }

    /// Opens the connection that the core asked for, and leaves the handshake unanswered.
    pub fn open(&mut self, node: usize) {
        self.expect_connect(node);
        self.probes[node].clear();
        self.core.handle_connected(NodeId::new(node), self.now);
    }

    /// Returns the node marker as the script `MARK` leaves it; empty if the node then has none.
    fn run_mark(
        &self,
        node: usize,
        found: &str,
        [prefix, how, end]: [&str; 3],
        start: &[&str],
    ) -> String {
        let same = !found.is_empty() && found.starts_with(prefix);
        let tail = found.get(84..).unwrap_or_default();
        let (since, word) = tail.split_once(' ').unwrap_or((tail, ""));
        let is_known =
            found.len() > 84 && found.starts_with("1 ") && ["", "vouched"].contains(&word);
        let now = self.micros(self.skew_micros[node]).to_string();
        let now = start.first().map_or(now, |start| (*start).to_owned());
        match how {
            _ if !found.is_empty() && !is_known => found.into(),
            _ if same && (how.is_empty() || !start.is_empty()) => found.into(),
            "keep" if !found.is_empty() => format!("{prefix}{since}"),
            "tail" if !found.is_empty() => format!("{prefix}{tail}"),
            "" | "keep" | "tail" | "new" => format!("{prefix}{now}{end}"),
            expected if since == expected => format!("{prefix}{now}{end}"),
            _ => found.into(),
        }
    }

    /// Returns the node's reply to a command of the handshake.
    pub fn handshake_reply(&mut self, node: usize, command: &Command) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["HELLO", ..] if self.has_no_connection_ids => "%0\r\n".into(),
            ["HELLO", ..] => format!("%1\r\n$2\r\nid\r\n:{}\r\n", self.connections),
            ["INFO"] | ["INFO", "memory"] => bulk(&self.info[node]),
            ["TIME"] => self.time_reply(self.skew_micros[node]),
            ["GET", _] => match &self.markers[node] {
                None => "-NOPERM no\r\n".into(),
                Some(marker) if marker.is_empty() => "_\r\n".into(),
                Some(marker) => bulk(marker),
            },
            ["EVAL", source, "1", _, prefix, how, end, ref start @ ..] if source == MARK => {
                match self.markers[node].take() {
                    None => "-ERR The user executing the script can't run this\r\n".into(),
                    Some(found) => {
                        let written = self.run_mark(node, &found, [prefix, how, end], start);
                        self.markers[node] = Some(written.clone());
                        if written.is_empty() { "_\r\n".into() } else { bulk(&written) }
                    }
                }
            }
            ["SCRIPT", ..] => bulk("0123456789012345678901234567890123456789"),
            ["EVAL", ..] => "-ERR Lua redis lib command arguments must be strings\r\n".into(),
            ["COMMAND", ..] => self.native.into(),
            ["CLIENT", "TRACKING", ..] => self.tracking.into(),
            _ => "+OK\r\n".into(),
        }
    }

    /// Asserts that the core asks for a connection to this node, and takes that action.
    fn expect_connect(&mut self, node: usize) {
        let mut actions = self.actions();
        let wanted = Action::Connect(NodeId::new(node));
        let found = actions.iter().position(|&action| action == wanted);
        actions.remove(found.unwrap_or_else(|| panic!("n{node} is not connected to: {actions:?}")));
        self.pending = actions;
    }

    /// Takes the actions that the core asked for and that are not done yet.
    pub fn actions(&mut self) -> Vec<Action> {
        let mut actions = std::mem::take(&mut self.pending);
        actions.extend(std::iter::from_fn(|| self.core.poll_action()));
        actions
    }

    /// Puts back actions that `actions` took out, for another part of the test to do.
    pub fn put_back(&mut self, actions: Vec<Action>) {
        self.pending.extend(actions);
    }

    /// Answers the node's oldest probe, with the client's time plus the node's `skew_micros`.
    pub fn answer_time(&mut self, node: usize) {
        self.answer_time_with_skew(node, self.skew_micros[node]);
    }

    /// Answers the node's oldest probe, with the client's time plus this skew.
    pub fn answer_time_with_skew(&mut self, node: usize, skew_micros: i64) {
        let rest = self.probes[node].pop_front().unwrap_or_default();
        let rest: String = rest.iter().map(|c| self.handshake_reply(node, c)).collect();
        let reply = self.time_reply(skew_micros) + &rest;
        self.reply(node, &reply);
    }

    /// The time of a node whose clock has this skew, in microseconds since 1970.
    pub fn micros(&self, skew_micros: i64) -> u64 {
        let ours = 1_700_000_000_000_000 + self.now.as_nanos() / 1000;
        ours.saturating_add_signed(skew_micros)
    }

    fn time_reply(&self, skew_micros: i64) -> String {
        let micros = self.micros(skew_micros);
        let (seconds, rest) = ((micros / 1_000_000).to_string(), (micros % 1_000_000).to_string());
        format!("*2\r\n{}{}", bulk(&seconds), bulk(&rest))
    }

    /// Takes the commands that the core wants to send to the node, as if they were written. Of a
    /// probe only `TIME` is returned: `answer_time` answers the other commands of the probe, too.
    pub fn sent(&mut self, node: usize) -> Vec<Command> {
        let id = NodeId::new(node);
        let bytes = self.core.output(id).to_vec();
        self.core.handle_sent(id, bytes.len(), self.now);
        let said = parse(&bytes);
        if self.core.node_state(id) == NodeState::Handshake {
            return said;
        }
        let mut shown: Vec<Command> = Vec::new();
        for command in said {
            let rest = ["GET", "INFO"].contains(&command[0].as_str());
            match self.probes[node].back_mut().filter(|_| rest) {
                Some(probe) => probe.push(command),
                None => {
                    if command[0] == "TIME" {
                        self.probes[node].push_back(Vec::new());
                    }
                    shown.push(command);
                }
            }
        }
        shown
    }

    /// Takes the commands as `sent` does, and returns their names.
    pub fn names(&mut self, node: usize) -> Vec<String> {
        self.sent(node).into_iter().map(|command| command[0].clone()).collect()
    }

    pub fn reply(&mut self, node: usize, bytes: &str) {
        self.core.handle_bytes(NodeId::new(node), bytes.as_bytes(), self.now);
    }

    /// Each of these nodes takes what was sent to it, whatever that is, and replies.
    pub fn answer(&mut self, nodes: impl IntoIterator<Item = usize>, bytes: &str) {
        self.answer_each(nodes.into_iter().map(|node| (node, bytes)));
    }

    /// The node answers everything that it was sent: a probe as usual, and any other command as
    /// `reply` says.
    pub fn answer_all<'a>(&mut self, node: usize, reply: impl Fn(&Command) -> &'a str) {
        for command in self.sent(node) {
            match command[0].as_str() {
                "TIME" => self.answer_time(node),
                _ => self.reply(node, reply(&command)),
            }
        }
    }

    /// As `answer`, with a reply for each node.
    pub fn answer_each<'a>(&mut self, replies: impl IntoIterator<Item = (usize, &'a str)>) {
        for (node, bytes) in replies {
            self.sent(node);
            self.reply(node, bytes);
        }
    }

    /// Asserts that these commands, and no others, were sent to each of these nodes, which then
    /// reply.
    #[track_caller]
    pub fn answer_to<const N: usize>(
        &mut self,
        names: [&str; N],
        nodes: impl IntoIterator<Item = usize>,
        bytes: &str,
    ) {
        for node in nodes {
            self.assert_sent([node], names);
            self.reply(node, bytes);
        }
    }

    /// Asserts that these commands, and no others, were sent to each of these nodes.
    #[track_caller]
    pub fn assert_sent<const N: usize>(
        &mut self,
        nodes: impl IntoIterator<Item = usize>,
        names: [&str; N],
    ) {
        for node in nodes {
            assert_eq!(self.names(node), names, "n{node}");
        }
    }

    pub fn lose(&mut self, node: usize) {
        self.core.handle_disconnected(NodeId::new(node), "reset", self.now);
    }

    /// Loses the connection, and opens the next one after the back-off, as `connect` does.
    pub fn reconnect(&mut self, node: usize) -> Vec<Command> {
        self.lose_and_back_off(node);
        self.connect(node)
    }

    /// Loses the connection, and lets the back-off pass.
    pub fn lose_and_back_off(&mut self, node: usize) {
        self.lose(node);
        self.pass(Duration::from_millis(600));
    }

    /// Lets time pass, and then lets the core act on the timers that are due.
    pub fn pass(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
        self.core.handle_timeout(self.now);
    }

    pub fn node_state(&self, node: usize) -> NodeState {
        self.core.node_state(NodeId::new(node))
    }

    /// Asks once for a key that was not used yet: `k`, then `k1`, `k2` and so on.
    pub fn acquire(&mut self) -> Op {
        self.keys += 1;
        let number = self.keys - 1;
        let key = if number == 0 { "k".to_string() } else { format!("k{number}") };
        let key = key.as_bytes();
        self.core.acquire(key, LockOptions::once(TTL), 1, self.now).expect("it can be asked for")
    }

    /// Asks for the key `k`.
    #[track_caller]
    pub fn ask(&mut self, data: u64, options: LockOptions) -> Op {
        self.ask_for(b"k", data, options)
    }

    /// Asks for these keys.
    #[track_caller]
    pub fn ask_for(&mut self, keys: impl Keys, data: u64, options: LockOptions) -> Op {
        self.core.acquire(keys, options, data, self.now).expect("it can be asked for")
    }

    /// Extends the lock with the grants of these nodes.
    #[track_caller]
    pub fn extend(&mut self, lock: &Lock, ttl: Duration, granting: Range<usize>) {
        self.core.extend(lock, ttl, 2, self.now).expect("it is held");
        self.answer(granting, ":1\r\n");
        self.extended();
    }

    /// Asserts that the next request to end is an extend that was won.
    #[track_caller]
    pub fn extended(&mut self) {
        let done = self.completion().expect("a majority granted it");
        assert!(matches!(done.result, Ok(Outcome::Extended { .. })), "{done:?}");
    }

    pub fn completion(&mut self) -> Option<Completion> {
        self.core.poll_completion(self.now)
    }

    /// The next update of a lock that is a warning or a loss. Reports of renewals are skipped.
    pub fn notice(&mut self) -> Option<LockUpdate> {
        let mut updates = std::iter::from_fn(|| self.core.poll_lock_update());
        updates.find(|it| !matches!(it.kind, LockUpdateKind::Extended { .. }))
    }

    /// Asserts that the next notice is a loss. Returns the data of the lock, and the reason.
    #[track_caller]
    pub fn loss(&mut self) -> (u64, LostReason) {
        let update = self.notice().expect("the loss is reported");
        match update.kind {
            LockUpdateKind::Lost(Error::Lost { reason, .. }) => (update.data, reason),
            _ => panic!("no loss: {update:?}"),
        }
    }

    /// Acquires the next key with the grants of these nodes. The other nodes have not answered yet.
    pub fn hold(&mut self, granting: &[usize]) -> Lock {
        self.acquire();
        for &node in granting {
            assert_eq!(self.names(node), ["SET"]);
            self.reply(node, "+OK\r\n");
        }
        self.won()
    }

    /// As `hold`, with the grants of a majority, after which the other nodes grant it, too.
    pub fn hold_everywhere(&mut self) -> Lock {
        let (nodes, majority) = (self.info.len(), self.info.len() / 2 + 1);
        let lock = self.hold(&Vec::from_iter(0..majority));
        self.answer_to(["SET"], majority..nodes, "+OK\r\n");
        lock
    }

    /// Asks for `k`, to be kept. All nodes grant it, and answer the registration of the key, too.
    #[track_caller]
    pub fn hold_kept(&mut self, keep: AutoExtend) -> Lock {
        let op = self.ask(7, LockOptions::once(TTL).auto_extend(keep));
        // In one write.
        let registered = "+OK\r\n+OK\r\n:9999\r\n";
        self.answer_to(["SET", "CLIENT", "PTTL"], 0..self.info.len(), registered);
        match self.completion() {
            Some(Completion {
                op: ended, data: 7, result: Ok(Outcome::Acquired(lock)), ..
            }) => {
                assert!(ended == op && !self.core.is_open(op), "the request is complete");
                lock
            }
            other => panic!("no lock: {other:?}"),
        }
    }

    /// These nodes and a kept lock, as `hold_kept` acquires it.
    pub fn with_kept_lock(mut self, keep: AutoExtend) -> (Bench, Lock) {
        let lock = self.hold_kept(keep);
        (self, lock)
    }

    /// These nodes, and a request as `acquire` makes it.
    pub fn with_request(mut self) -> Bench {
        self.acquire();
        self
    }

    /// These nodes and a lock, as `hold` acquires it.
    pub fn with_lock(mut self, granting: &[usize]) -> (Bench, Lock) {
        let lock = self.hold(granting);
        (self, lock)
    }

    /// These nodes and a lock, as `hold_everywhere` acquires it.
    pub fn with_lock_everywhere(mut self) -> (Bench, Lock) {
        let lock = self.hold_everywhere();
        (self, lock)
    }

    /// The lock that the next request to end has brought.
    #[track_caller]
    pub fn won(&mut self) -> Lock {
        match self.completion().map(|done| done.result) {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    /// The outcome of the release that ends next.
    #[track_caller]
    pub fn released(&mut self) -> ReleaseOutcome {
        match self.completion().map(|done| done.result) {
            Some(Ok(Outcome::Released(outcome))) => outcome,
            other => panic!("no release: {other:?}"),
        }
    }

    /// The error with which the next request to end has failed.
    #[track_caller]
    pub fn refused(&mut self) -> Error {
        self.completion().expect("it has ended").result.expect_err("it is refused")
    }

    /// The report of the next request to end, which too few nodes answered.
    #[track_caller]
    pub fn no_quorum(&mut self) -> Report {
        match self.refused() {
            Error::NoQuorum(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that no record, pending release or request is left.
    pub fn assert_idle(&self) {
        assert_eq!((self.core.open_records(), self.core.open_ops()), (0, 0));
    }
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn parse(mut bytes: &[u8]) -> Vec<Command> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let count = number(&mut bytes, b'*');
        let mut command = Vec::new();
        for _ in 0..count {
            let length = number(&mut bytes, b'$');
            command.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            bytes = &bytes[length + 2..];
        }
        commands.push(command);
    }
    commands
}

fn number(bytes: &mut &[u8], kind: u8) -> usize {
    assert_eq!(bytes[0], kind);
    let end = bytes.iter().position(|&byte| byte == b'\r').expect("a line ends");
    let digits = std::str::from_utf8(&bytes[1..end]).expect("digits");
    *bytes = &bytes[end + 2..];
    digits.parse().expect("a number")
}
