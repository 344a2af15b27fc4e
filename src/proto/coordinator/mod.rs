//! Owns everything that proto knows, and routes between its parts: what comes in by `handle_*`,
//! what goes out by `poll_*`. It decides little itself, and never looks at a clock or a socket.
//!
//! The hazard is order. Whoever drives it reads what the sockets hold before it lets a timeout be
//! believed ([`handle_timeout`](Coordinator::handle_timeout)), and takes the time anew behind the
//! reads and before a lock is handed out ([`poll_completion`](Coordinator::poll_completion)).

mod acquire;
mod adopt;
mod closing;
mod events;
mod flushes;
mod heal;
mod hold;
mod inspect;
mod keep;
mod nodes;
mod payments;
mod queue;
mod reports;
mod starting;
mod trust;
mod vouch;
mod wait;
mod watch;

use std::collections::VecDeque;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::ballot::{Ballot, Verdict, majority};
use super::command::{self, Form};
use super::error::{Busy, Cause, ConfigError, Error, Loss, Said};
use super::keeper::{Keep, Keeper};
use super::link::{Answer, Ask, Incoming, Kind};
use super::lock::{Lock, Token};
use super::node::{NodeId, NodeSet};
use super::ops::{Completion, Op, Ops, Outcome, Stage};
use super::quarantine::Distrust;
use super::records::{Phase, Record, Records};
use super::round::Purpose;
use super::settings::{LONGEST_KEY, Settings};
use super::standing::Standing;
use super::stats::Stats;
use super::time::{BadTtl, Instant, Ttl};
use super::timers::{Timer, Timers};
use super::waiters::{Crowds, Queues, RoundTrip};

pub use events::Event;
use events::Events;
use nodes::Node;

/// What whoever owns the sockets has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to the node; what comes of it goes to
    /// [`handle_connected`](Coordinator::handle_connected) or
    /// [`handle_disconnected`](Coordinator::handle_disconnected).
    Connect(NodeId),
    /// Close the node's connection, or what is being opened. Nothing has to be told of it.
    Disconnect(NodeId),
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The round's time is over: who has not answered is silent.
    Round { record: u32 },
    /// The lock's deadline.
    Deadline { record: u32 },
    /// The pause before the next attempt or round is over.
    Retry { op: Op },
    /// The wait behind others of this client is over.
    GiveUp { op: Op },
    /// The pause before the next connection is over.
    Reconnect { node: NodeId },
    /// The connection took too long to become ready.
    Connecting { node: NodeId },
    /// A kept lock comes near its deadline.
    Warn { record: u32 },
    /// Look whether the node is silent.
    Silence { node: NodeId },
    /// The suspect connection stays silent.
    Reset { node: NodeId },
    /// Ask the node for its time.
    Probe { node: NodeId },
    /// The node's quarantine is over.
    Trust { node: NodeId },
    /// Pay what the node is owed.
    Payment { node: NodeId },
    /// Act on the flushes that the node reported since they were last acted on.
    Flushes { node: NodeId },
    /// The node was away too long to be owed anything.
    GivingUp { node: NodeId },
}

/// What prolongs a kept lock when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prolong {
    /// The lock is renewed.
    Renew { record: u32 },
    /// The nodes are asked, because a key of the lock may be gone.
    Look { record: u32 },
}

/// The core: locks over N nodes, without a socket and without a clock.
#[derive(Debug)]
pub struct Coordinator {
    settings: Settings,
    quorum: usize,
    /// The first handshakes are not over: requests for locks are held.
    starting: bool,
    nodes: Vec<Node>,
    records: Records,
    ops: Ops,
    keeper: Keeper,
    queues: Queues,
    crowds: Crowds,
    /// Keys whose next waiter has its turn, and whether they were given back: none but while they
    /// are handed over.
    handing_over: Vec<(u32, bool)>,
    /// Records that a push is about: none but while they are told.
    found: Vec<u32>,
    /// About how long a node takes to answer.
    round_trip: RoundTrip,
    timers: Timers<Due>,
    /// Extends of kept locks. They have timers of their own because they come last in a turn.
    prolongs: Timers<Prolong>,
    actions: VecDeque<Action>,
    events: Events,
    stats: Stats,
    rng: StdRng,
}

impl Coordinator {
    /// A coordinator of these nodes. `seed` is secret: tokens are drawn from it.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(settings: Settings, seed: [u8; 32], now: Instant) -> Result<Self, ConfigError> {
        settings.validate()?;
        let mut coordinator = Coordinator {
            quorum: majority(settings.nodes.len()),
            starting: true,
            nodes: settings.nodes.iter().map(|_| Node::default()).collect(),
            records: Records::new(settings.limits.records),
            ops: Ops::default(),
            keeper: Keeper::new(),
            queues: Queues::new(),
            crowds: Crowds::default(),
            handing_over: Vec::new(),
            found: Vec::new(),
            round_trip: RoundTrip::default(),
            timers: Timers::new(),
            prolongs: Timers::new(),
            actions: VecDeque::new(),
            events: Events::default(),
            stats: Stats::of(settings.nodes.len()),
            rng: StdRng::from_seed(seed),
            settings,
        };
        for node in coordinator.all_nodes().iter() {
            coordinator.connect(node, now);
        }
        Ok(coordinator)
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What has to be done with the sockets.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether [`poll_action`](Coordinator::poll_action) has something.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What is to be written to a node. Empty while it is not connected.
    pub fn output(&self, node: NodeId) -> &[u8] {
        self.nodes[node.index()].link.output()
    }

    /// Takes note that the first `count` bytes of the output were written.
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.nodes[node.index()].link.sent(count, now);
    }

    /// Takes what was read from a node.
    pub fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        let (mut input, mut flushed) = (bytes, false);
        while self.nodes[node.index()].standing.is_connected() {
            match self.nodes[node.index()].link.next_incoming(&mut input, now) {
                Ok(Some(Incoming::Answer(ask, answer))) => self.route(node, ask, answer, now),
                Ok(Some(Incoming::Flushed)) => {
                    self.distrust(node, Distrust::Flushed, now);
                    flushed = true;
                }
                Ok(Some(Incoming::Written(key))) => self.was_written(node, key, now),
                Ok(None) => break,
                Err(fault) => {
                    self.break_off(node, fault, now);
                    break;
                }
            }
        }
        if flushed {
            self.was_flushed(node, now);
        }
        self.heard_of(node, now);
    }

    /// The earliest moment at which [`handle_timeout`](Coordinator::handle_timeout) has something
    /// to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.timers.next(), self.prolongs.next()].into_iter().flatten().min()
    }

    /// Does what is due, or much of it: then more is due at once. Call it only when everything the
    /// sockets hold was read: an answer that lies there is no silence.
    ///
    /// Losses come before renewals: of a late turn, all that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop_due(now) {
            match due {
                Due::Round { record } => self.round_is_over(record, now),
                Due::Deadline { record } => self.deadline_is_reached(record, now),
                Due::Retry { op } => self.pause_is_over(op, now),
                Due::GiveUp { op } => self.turn_never_came(op, now),
                Due::Reconnect { node } => self.connect(node, now),
                Due::Connecting { node } => self.connecting_took_too_long(node, now),
                Due::Warn { record } => self.warning_is_due(record),
                Due::Silence { node } => self.look_for_silence(node, now),
                Due::Reset { node } => self.reset_is_due(node, now),
                Due::Probe { node } => self.probe_is_due(node, now),
                Due::Trust { node } => self.trust_is_due(node),
                Due::Payment { node } => self.payment_is_due(node, now),
                Due::Flushes { node } => self.walk_is_due(node, now),
                Due::GivingUp { node } => self.give_up_debts(node, now),
            }
        }
        for _ in 0..keep::EXTENDS_A_TURN {
            match self.prolongs.pop_due(now) {
                Some(Prolong::Renew { record }) => self.renewal_is_due(record, now),
                Some(Prolong::Look { record }) => self.look_is_due(record, now),
                None => return,
            }
        }
    }

    /// The next request that came to its end. A lock is handed out only before its deadline:
    /// `now` is read last of all.
    pub fn poll_completion(&mut self, now: Instant) -> Option<Completion> {
        loop {
            let op = self.ops.pop_ready()?;
            if let Some(completion) = self.fetch(op, now) {
                return Some(completion);
            }
        }
    }

    /// The next request that came to its end, and its data, without the end itself: for those who
    /// are woken first and [`fetch`](Coordinator::fetch) it later. Each end is told once, here or
    /// by [`poll_completion`](Coordinator::poll_completion).
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        let op = self.ops.pop_ready()?;
        let data = self.ops.get_mut(op)?.data;
        Some((op, data))
    }

    /// What a request came to. `None` where it goes on: also one whose end was told goes on where
    /// its lock is over by now, and the wait is not. `now` is read last of all.
    pub fn fetch(&mut self, op: Op, now: Instant) -> Option<Completion> {
        if !self.ops.has_ended(op) {
            return None;
        }
        if let Some(&Stage::Granted { record }) = self.ops.get_mut(op).map(|r| &r.stage) {
            if now >= self.records.get(record).deadline {
                self.attempt_is_lost(record, now);
                return None;
            }
        }
        if let Some(completion) = self.told_of_kept(op, now) {
            return Some(completion);
        }
        let request = self.ops.close(op)?;
        let result = match request.stage {
            Stage::Granted { record } => Ok(Outcome::Acquired(self.hand_out(record))),
            Stage::Extended { record, generation } => self.told_of_extend(record, generation, now),
            // Fetched too late: what was prolonged by its token is over again.
            Stage::Over(Ok(Outcome::Extended { deadline })) if now >= deadline => {
                Err(self.lost_unasked(Loss::Expired, &[], now))
            }
            Stage::Over(result) => result,
            stage => unreachable!("{stage:?} is no end"),
        };
        Some(Completion { op, data: request.data, result })
    }

    /// By which error a request came to its end, before that is fetched.
    pub fn error(&self, op: Op) -> Option<&Error> {
        match &self.ops.get(op)?.stage {
            Stage::Over(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether [`poll_completion`](Coordinator::poll_completion) may have something.
    pub fn has_completions(&self) -> bool {
        self.ops.has_ready()
    }

    /// The nodes that may be asked, in quarantine or not.
    pub fn ready(&self) -> NodeSet {
        self.all_nodes().iter().filter(|&node| self.standing(node).is_usable()).collect()
    }

    /// The nodes whose connection was lost a moment ago, and which are connected to again without
    /// a pause.
    pub fn coming_back(&self) -> NodeSet {
        self.all_nodes().iter().filter(|&n| self.nodes[n.index()].is_coming_back()).collect()
    }

    /// Why a node could not be asked last.
    pub fn trouble(&self, node: NodeId) -> Cause {
        self.nodes[node.index()].trouble
    }

    /// What a node is to us at the moment.
    pub fn standing(&self, node: NodeId) -> Standing {
        self.nodes[node.index()].standing
    }

    /// How often in a row a node could not be made ready.
    pub fn failures(&self, node: NodeId) -> u32 {
        self.nodes[node.index()].failures
    }

    /// How many records are open: locks asked for, held, or not yet given back everywhere.
    pub fn open_records(&self) -> usize {
        self.records.len()
    }

    /// Whether a request is under way or waits to be handed out: that of a kept lock is, while the
    /// lock is.
    pub fn is_open(&self, op: Op) -> bool {
        self.ops.get(op).is_some()
    }

    /// How many requests are under way or wait to be handed out.
    pub fn open_ops(&self) -> usize {
        self.ops.len()
    }

    /// How many locks are kept.
    pub fn kept_locks(&self) -> usize {
        self.keeper.len()
    }

    /// How many timers are set, of whatever kind.
    pub fn open_timers(&self) -> usize {
        self.timers.len() + self.prolongs.len()
    }

    /// How many questions to a node are unanswered.
    pub fn unanswered(&self, node: NodeId) -> usize {
        self.nodes[node.index()].link.unanswered()
    }

    /// How many releases wait to be paid to a node.
    pub fn debts(&self, node: NodeId) -> usize {
        self.nodes[node.index()].debts.len()
    }

    /// How many debts were given up because their node was away, or refused them, for too long.
    pub fn debts_given_up(&self) -> u64 {
        self.stats.nodes.iter().map(|node| node.debts_given_up).sum()
    }

    /// What was counted so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    fn all_nodes(&self) -> NodeSet {
        NodeSet::first(self.nodes.len())
    }

    /// Nodes that may fail before the others are no quorum any more.
    fn spare_nodes(&self) -> usize {
        self.nodes.len() - self.quorum
    }

    /// Writes a question into a node's outbox: the one place where a record's bytes are encoded,
    /// and where its phase is looked at.
    fn ask(&mut self, node: NodeId, number: u32, kind: Kind, now: Instant) {
        let trusted = self.is_trusted(node);
        let record = self.records.get_mut(number);
        let phase = match kind {
            Kind::Acquire | Kind::Adopt => Phase::Asking,
            Kind::Extend(_) | Kind::Heal => Phase::Held,
            Kind::Look | Kind::LookLeft | Kind::Delete => Phase::Given,
            _ => Phase::Ending,
        };
        assert_eq!(record.phase, phase, "{kind:?}");
        let prolongs = phase == Phase::Held;
        debug_assert!(!prolongs || now < record.deadline, "{kind:?} at or past the deadline");
        match kind {
            kind if kind.may_create() => {
                record.asked.add(node);
                if !record.borrowed {
                    record.owed.insert(node);
                }
                if kind.creates() {
                    record.unconfirmed.insert(node);
                    if !trusted {
                        record.doubtful.insert(node);
                    }
                }
            }
            Kind::Look | Kind::LookLeft => record.asked.add(node),
            _ => {
                record.releasing.insert(node);
            }
        }
        let names_it = record.tracked && kind.may_create();
        let ask = Ask::new(number, record.round.number, kind, now);
        let (key, token, ttl) = (&record.key, &record.token, record.round.ttl);
        self.nodes[node.index()].link.ask(ask, |out| match kind {
            Kind::Acquire => command::acquire(out, key, token, ttl),
            Kind::Extend(form) => command::extend(out, form, key, token, ttl),
            Kind::Release(form) => command::release(out, form, key, token),
            Kind::Heal => command::acquire(out, key, token, heal::ttl_of(record, now)),
            Kind::Adopt => {
                let old = record.taken_up.as_ref().expect("it is set before the nodes are asked");
                command::adopt(out, key, old, token, ttl);
            }
            Kind::Exists => command::encode(out, &[b"EXISTS", key]),
            Kind::Delete => command::encode(out, &[b"DEL", key]),
            Kind::Look => inspect::ask_what_is_there(out, key),
            Kind::LookLeft => command::encode(out, &[b"PTTL", key]),
            Kind::Greet(_)
            | Kind::Probe
            | Kind::Mark
            | Kind::Vouch
            | Kind::LastWord
            | Kind::Kill { .. }
            | Kind::Caching
            | Kind::Register => unreachable!("{kind:?} belongs to no record"),
        });
        if names_it {
            // What we write to a key ends that it is named, so it is named behind each write.
            self.register(node, number, now);
        }
        self.watch_for_silence(node, now);
    }

    /// Whether a node may be asked something new, or why not.
    fn may_ask(&self, node: NodeId) -> Result<(), Cause> {
        let node = &self.nodes[node.index()];
        match node.standing {
            Standing::Ready | Standing::Quarantined(_) => {
                if node.link.has_room(&self.settings.limits) { Ok(()) } else { Err(Cause::Full) }
            }
            Standing::Suspect => Err(Cause::Silent),
            _ => Err(node.trouble),
        }
    }

    /// Gives an answer to the record it is about.
    fn route(&mut self, node: NodeId, ask: Ask, answer: Answer, now: Instant) {
        if let Answer::Said(said) = answer {
            let took = now.saturating_since(ask.asked_at);
            self.stats.answered(node, ask.kind == Kind::Acquire, said, took);
            // Who answers behind the majority is waited for by nobody.
            if ask.kind == Kind::Acquire && self.records.get(ask.record).is_deciding() {
                self.round_trip.add(took);
            }
        }
        match (ask.kind, answer) {
            (Kind::Greet(step), Answer::Fact) => self.greeted(node, step, now),
            (Kind::Acquire, Answer::Said(said)) => self.acquire_answered(node, ask, said, now),
            (Kind::Extend(form), Answer::Said(said)) => {
                self.extend_answered(node, ask, form, said, now);
            }
            (Kind::Release(form), Answer::Said(said)) => {
                self.release_answered(node, ask, form, said, now);
            }
            (Kind::Heal, Answer::Said(said)) => self.heal_answered(node, ask, said, now),
            (Kind::Adopt, Answer::Said(said)) => self.adopt_answered(node, ask, said, now),
            (Kind::Delete, Answer::Said(said)) => self.delete_answered(node, ask, said, now),
            (Kind::Look, Answer::Value(value)) => self.value_seen(node, ask, value, now),
            (Kind::LookLeft, Answer::Left(left)) => self.left_seen(node, ask, left),
            (Kind::Register, Answer::Left(left)) => self.registered(node, ask, left, now),
            (Kind::Caching, Answer::Heard) => {}
            (Kind::Exists, Answer::Said(said)) => self.exists_answered(node, ask, said, now),
            (Kind::LastWord, Answer::Heard) => {}
            (Kind::Mark, Answer::Heard) => self.nodes[node.index()].marking = false,
            (Kind::Vouch, Answer::Said(said)) => self.vouch_answered(node, ask, said, now),
            (Kind::Probe, Answer::Time(micros)) => self.time_told(node, ask, micros, now),
            (Kind::Kill { client_id }, Answer::Gone(gone)) => {
                self.kill_answered(node, client_id, gone, now);
            }
            _ => unreachable!("the link reads each reply by its question"),
        }
    }

    /// Casts what a node said in the record's round, and settles what that decides.
    fn cast(&mut self, number: u32, node: NodeId, said: Said, now: Instant) {
        let record = self.records.get_mut(number);
        let open = record.is_deciding() && record.round.ballot().verdict() == Verdict::Undecided;
        if open && record.round.cast(node, said) != Verdict::Undecided {
            self.settle(number, now);
        }
    }

    /// Acts on a verdict: the one function that hands out, retries, extends or ends.
    fn settle(&mut self, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        self.timers.clear_in(&mut record.round_timer);
        match (record.round.purpose, record.round.ballot().verdict()) {
            (Purpose::Acquire | Purpose::Adopt, Verdict::Won) => self.attempt_is_won(number, now),
            (Purpose::Acquire | Purpose::Adopt, _) => self.attempt_is_lost(number, now),
            (Purpose::Extend, Verdict::Won) => self.extend_is_won(number, now),
            (Purpose::Extend, _) => self.extend_is_lost(number, now),
            (Purpose::Release, _) => self.release_is_over(number),
            (Purpose::Inspect, _) => self.inspection_is_over(number),
            (Purpose::Vouch, _) => self.vouching_is_over(number, now),
        }
    }

    /// Ends the round: who has not answered by now is silent.
    fn round_is_over(&mut self, number: u32, now: Instant) {
        let timeout = self.settings.node_timeout;
        let record = self.records.get_mut(number);
        record.round_timer = None;
        // Questions that were written late have not been silent for a node timeout: they are
        // waited for, though not beyond the deadline.
        let links = &self.nodes;
        let undecided = record.round.ballot().undecided();
        // An inspection casts no votes: of the undecided, only some were asked.
        let (inspects, asked) = (record.round.purpose == Purpose::Inspect, record.asked);
        let waited_for = undecided.iter().filter(|&node| !inspects || asked.contains(node));
        let written = waited_for.filter_map(|node| links[node.index()].link.oldest_ask());
        let until = written.max().map_or(now, |written| written.saturating_add(timeout));
        let until = until.min(record.deadline);
        if until > now {
            record.round_timer = Some(self.timers.set_at(until, Due::Round { record: number }));
            return;
        }
        match record.round.purpose {
            Purpose::Inspect => return self.inspection_is_over(number),
            Purpose::Vouch => return self.vouching_is_over(number, now),
            _ => {}
        }
        let generation = record.generation;
        for node in record.round.ballot().undecided().iter() {
            if self.records.is_open(number, generation) {
                self.stats.failed(node, Cause::Silent);
                self.cast(number, node, Said::Failed(Cause::Silent), now);
            }
        }
    }

    /// Closes the record if nothing of it is open any more.
    fn finish(&mut self, number: u32, generation: u64) {
        if !self.records.is_open(number, generation) {
            return;
        }
        let record = self.records.get_mut(number);
        if record.is_finished() {
            self.timers.clear_in(&mut record.round_timer);
            self.timers.clear_in(&mut record.deadline_timer);
            self.records.close(number);
        }
    }
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.len() > LONGEST_KEY {
        let (given, most) = (key.len(), LONGEST_KEY);
        return Err(ConfigError::KeyTooLong { given, most }.into());
    }
    Ok(())
}

fn busy(busy: Busy) -> Error {
    Error::Busy(busy)
}

fn handle_of(number: u32, record: &Record) -> Lock {
    Lock { record: number, generation: record.generation, token: record.token }
}

fn draw(rng: &mut StdRng) -> Token {
    Token::draw(rng)
}
