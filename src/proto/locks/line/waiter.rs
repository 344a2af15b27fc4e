//! The course of a request for a key that others hold: joining the lines, polls, splits, and the
//! claim before the lock is handed out.
//!
//! A waiter in line pauses: its record is asking, and its token is in the lines of the nodes. The
//! hazard is a token that is sent after its withdrawal: the line would hand the key to a waiter
//! that is gone. So a join is written only while the record is asking, and each attempt has a token
//! of its own, which no `SET NX` ever carries.

use std::time::Duration;

use rand::RngExt;

use crate::proto::error::{ConfigError, Error, NodeError, NodeReply};
use crate::proto::ids::{Op, RecordId};
use crate::proto::lock::LONGEST_TOKEN;
use crate::proto::locks::Locks;
use crate::proto::locks::line::votes::{Line, Split};
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::course::Part;
use crate::proto::locks::round::failure::{Refusals, Tried, classify};
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Ballot;
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::line::{Channel, MarkKey};

/// The shortest and the longest pause between two polls of a waiter near the front. A waiter that
/// follows a frozen one gets the key by its poll, so this is a part of the time that a frozen
/// waiter costs.
const POLLS: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(90));
/// For each so many waiters before it, a waiter adds one such pause.
const NEAR_THE_FRONT: u64 = 16;
/// The longest pause between two polls, however long the line is.
const LONGEST_POLL: Duration = Duration::from_secs(2);
/// How soon a waiter polls that has the key on some nodes only. The pauses double from here.
const EARLY_POLL: Duration = Duration::from_millis(4);

/// After the nodes refused the line to the user, no request joins for so long: each would only be
/// refused again. A user that gets the right meanwhile waits in line from then on.
const NO_LINES: Duration = Duration::from_secs(10);

/// How often a request gives nodes up for another waiter. Its pauses before it joins again double.
const YIELDS: u32 = 6;

/// The number of attempts in a row that a set may lose before it pauses when it begins anew.
const QUICK_TRIES: u32 = 3;

/// Whether a node refused the script of the line for a reason that may last. The key of the line
/// may be no line, and a command may be missing there.
fn refuses_lines(reply: NodeReply) -> bool {
    use NodeError::{NoPermission, Other, UnknownCommand, WrongType};
    matches!(reply, NodeReply::Failed(NoPermission | WrongType | UnknownCommand | Other))
}

/// Whether the reason does not depend on the key: another one would be refused, too.
fn is_refused_to_the_user(reply: NodeReply) -> bool {
    matches!(reply, NodeReply::Failed(NodeError::NoPermission | NodeError::UnknownCommand))
}

impl Locks {
    /// Whether the nodes let this user stand in line, as far as the client knows.
    pub fn has_lines(&self, now: Instant) -> bool {
        now >= self.no_lines_until
    }

    /// The nodes refuse the line to this user.
    pub fn note_no_lines(&mut self, now: Instant) {
        self.no_lines_until = now.saturating_add(NO_LINES);
    }

    /// A request of the client waits in line: the client listens to a channel of its own from now
    /// on.
    fn prepare_line(&mut self, now: Instant) {
        if !self.cluster.is_listening() {
            self.marks = Some(MarkKey::random(self.random.rng()));
            let channel = Channel::of(self.random.rng().random());
            self.cluster.listen_to(channel, now);
            self.act_on_changes(now);
        }
    }

    /// The ttl of a key that is handed over to a waiter that wants `ttl`, and may have stopped.
    pub(in crate::proto::locks) fn hand_over_ttl(&self, ttl: Ttl) -> Ttl {
        let longest = self.cluster.settings().hand_over_ttl();
        Ttl::new(ttl.duration().min(longest), ttl.duration()).unwrap_or(ttl)
    }

    /// The request stands in line from now on, with the token of its next attempt; `last` is the
    /// error of its last attempt.
    pub fn stand_in_line(&mut self, op: Op, id: RecordId, last: Error, now: Instant) {
        self.prepare_line(now);
        let nodes = self.cluster.size();
        let ttl = self.records.get(id).ttl;
        let short_ttl = self.hand_over_ttl(ttl);
        let yields = self.ops.get(op).map_or(0, |request| request.yields);
        // A waiter that yields no more gets keys with the short ttl, so that its share of a split
        // ends soon.
        let ttls = if yields < YIELDS { (ttl, short_ttl) } else { (short_ttl, short_ttl) };
        let goes_on = self.goes_on_in_line(id);
        if !goes_on {
            let record = self.records.get_mut(id);
            debug_assert!(record.round.ballot().grants().is_empty(), "the token is fresh");
            let line = Line::new(nodes, ttls, record.round.number);
            record.trouble_mut().line = Some(Box::new(line));
            self.cluster.stats_mut().joined += 1;
        }
        // A set may be refused for ever although each line hands its key over: a majority of the
        // nodes has each key, and none has all.
        let begun_anew = self.records.get(id).set().map_or(0, SetOfKeys::begun_anew);
        let pauses = if goes_on { 0 } else { yields.max(begun_anew.saturating_sub(QUICK_TRIES)) };
        let length = EARLY_POLL.saturating_mul(1 << pauses.min(YIELDS));
        let at = now.saturating_add(self.random.pause(length / 2, length));
        self.ops.pause(op, id, at, last);
        self.poll_from(op, at);
        if pauses == 0 {
            self.ops.interrupt(op);
            self.poll_line(op, id, now);
        }
    }

    /// The timer of a waiter in line came due.
    pub fn on_poll_due(&mut self, op: Op, now: Instant) {
        if let Some(id) = self.ops.pauses_before(op) {
            if !self.gives_way(op, id, now) && !self.renew_kept(op, id, now) {
                self.poll_line(op, id, now);
            }
        }
    }

    /// A node reported a write to the key, or said that it is gone: the waiter asks that node
    /// again.
    pub fn on_key_written(&mut self, op: Op, node: NodeId, now: Instant) {
        let Some(id) = self.ops.attempt_of(op) else { return };
        let line = self.records.get_mut(id).line_mut();
        let was_registered = line.is_some_and(|line| line.end_registration(node));
        // A waiter that claims polls all nodes if it loses.
        if was_registered && self.ops.pauses_before(op) == Some(id) {
            self.poll_at(node, id, now);
        }
    }

    /// Asks every node that may be asked whether the key is the waiter's, and for a place in its
    /// line; then sets the timer of the waiter, which must not run.
    fn poll_line(&mut self, op: Op, id: RecordId, now: Instant) {
        let (mut nodes, mut silent) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let mut permanent = 0;
        for node in self.cluster.all_nodes().iter() {
            let useless = self.why_useless(id, node);
            permanent += usize::from(useless.is_some_and(NodeError::is_permanent));
            match (self.cluster.may_ask(node), self.cluster.notifies(node)) {
                (Err(_), _) => {}
                // The node is joined when it is known whether it notifies.
                (Ok(()), None) => {}
                (Ok(()), Some(_)) if self.records.get(id).pending.is_asked(node) => {}
                (Ok(()), Some(notifies)) => {
                    nodes.insert(node);
                    if !notifies {
                        silent.insert(node);
                    }
                }
            }
        }
        if permanent > self.cluster.spare_nodes() {
            self.end_in_line(op, id, now);
            return;
        }
        let untrusted = self.cluster.untrusted(nodes);
        let record = self.records.get_mut(id);
        let Some(line) = record.line_mut() else { return };
        let rank = if line.rank == u64::MAX { 0 } else { line.rank };
        let early = !line.holds(now).is_empty();
        line.silent = line.silent.union(silent.minus(line.joined));
        line.begin_poll(nodes, untrusted, now);
        let at = if early { self.next_early_poll(id, now) } else { self.next_poll(rank, now) };
        if let Some(waiting) = self.ops.waiting_mut(op) {
            waiting.forget_free_at();
            waiting.polled_at = now;
        }
        let record = self.records.get_mut(id);
        record.round.number = record.round.number.wrapping_add(1);
        self.ask_all(nodes, id, Kind::Join, now);
        self.poll_from(op, self.renews_kept_at(id).map_or(at, |renews_at| at.min(renews_at)));
    }

    /// A node may be asked for a place in its lines from now on.
    pub(in crate::proto::locks) fn join_at(&mut self, node: NodeId, now: Instant) {
        if self.ops.has_no_waiters() {
            return;
        }
        let silent = self.cluster.notifies(node) == Some(false);
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            let waits = record.phase == Phase::Asking && !record.pending.is_asked(node);
            let Some(line) = record.line_mut().filter(|_| waits) else { continue };
            if self.cluster.may_ask(node).is_err() {
                return;
            }
            if silent && !line.joined.contains(node) {
                line.silent.insert(node);
            }
            line.poll_more(node.into(), self.cluster.untrusted(node.into()), now);
            self.ask(node, id, Kind::Join, now);
        }
    }

    fn next_poll(&mut self, rank: u64, now: Instant) -> Instant {
        let times = u32::try_from(1 + rank / NEAR_THE_FRONT).unwrap_or(u32::MAX);
        let pause = self.random.pause(POLLS.0, POLLS.1);
        now.saturating_add(pause.saturating_mul(times).min(LONGEST_POLL))
    }

    /// The moment of the next poll of a waiter that has the key on some nodes only.
    fn next_early_poll(&mut self, id: RecordId, now: Instant) -> Instant {
        let Some(line) = self.records.get_mut(id).line_mut() else { return now };
        let pause = EARLY_POLL.saturating_mul(1 << line.early_polls.min(8)).min(POLLS.0);
        line.early_polls = line.early_polls.saturating_add(1);
        now.saturating_add(self.random.pause(pause / 2, pause))
    }

    /// Too many nodes refuse for a lasting reason: the request ends.
    fn end_in_line(&mut self, op: Op, id: RecordId, now: Instant) {
        let reply = |node| self.why_useless(id, node).map_or(NodeReply::Nothing, NodeReply::Failed);
        let report = self.report_of_record(id, reply, now);
        let error = Error::Config(ConfigError::Nodes(report));
        self.cluster.stats_mut().note_lost_attempt(&error);
        self.note_attempt(id, Some(&error));
        self.records.get_mut(id).op = None;
        self.end(id, now);
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// Why a node cannot help the waiter to its lock at this moment, if it cannot.
    fn why_useless(&self, id: RecordId, node: NodeId) -> Option<NodeError> {
        let refuses = || self.cluster.refuses_fence(node).filter(|_| self.records.get(id).fenced);
        self.cluster.may_ask(node).err().or_else(refuses)
    }

    /// The error of a waiter in line whose attempt failed, or whose wait is over.
    pub(in crate::proto::locks) fn refusal_in_line(&self, id: RecordId, now: Instant) -> Error {
        let reply = |node| self.why_useless(id, node).map_or(NodeReply::Held, NodeReply::Failed);
        let away = self.cluster.all_nodes().iter().filter(|&n| self.why_useless(id, n).is_some());
        let report = self.report_of_record(id, reply, now);
        let (spare, failed) = (self.cluster.spare_nodes(), away.count());
        classify(Tried::Acquire, Refusals { spare, failed, ..Refusals::default() }).error(report)
    }

    /// A node answered a join.
    pub(in crate::proto::locks) fn on_join(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let asked_at = self.cluster.asked_at(node);
        let standing = self.cluster.standing(node).clone();
        let id = ask.record;
        let record = self.records.get_mut(id);
        if record.line().is_some_and(|line| !line.is_asked_in(ask.round)) {
            // The answer is about a line that the set has left for that of another key.
            return;
        }
        let waits = record.phase == Phase::Asking;
        let mine = reply == NodeReply::Granted;
        let current = ask.round == record.round.number;
        let late = record.pending.unproven().contains(node);
        if let (Some(line), NodeReply::Granted | NodeReply::Held) = (record.line_mut(), reply) {
            line.note_standing(node, mine, &standing, asked_at, current);
            line.refused.remove(node);
            if late {
                // A join of an earlier connection may put the token into the line yet.
                line.note_possible_place(node);
            } else {
                line.note_only_last_mark(node);
            }
        } else if let Some(line) = record.line_mut() {
            // The script may have failed after it had put the token into the line.
            line.note_possible_place(node);
        }
        if mine && self.cluster.is_trusted(node) {
            self.records.get_mut(id).prove_in_line(node);
        }
        if mine && waits {
            self.count_at(node, id, now);
        }
        if waits && reply == NodeReply::Held && self.cluster.reports_writes(node) {
            let line = self.records.get_mut(id).line_mut();
            if line.is_some_and(|line| line.registers_at(node, standing.rank)) {
                self.register_at(id, node.into(), now);
            }
        }
        if waits && reply == NodeReply::Held {
            self.note_time_left(node, id, standing.left, now);
        }
        if waits && refuses_lines(reply) {
            self.on_line_refused(node, id, reply, now);
        } else if waits {
            self.judge_line(id, now);
        }
    }

    /// A node said to a waiter how long the key of another lives there. An expiry sends no push in
    /// time, so the waiters at the front poll when the key can have expired on a majority.
    fn note_time_left(&mut self, node: NodeId, id: RecordId, left: i64, now: Instant) {
        let quorum = self.cluster.quorum();
        let record = self.records.get(id);
        let (Some(op), Some(line)) = (record.op, record.line()) else { return };
        let is_near = line.is_near_the_front();
        let Some(waiting) = self.ops.waiting_mut(op) else { return };
        waiting.note_left(node, Some(left), now);
        // A node that answers "0 ms" for ever is not asked without end.
        let at = waiting.free_on(quorum).max(waiting.polled_at.saturating_add(EARLY_POLL));
        if is_near && at < waiting.poll_at {
            self.poll_from(op, at);
        }
    }

    /// The waiter polls at this moment, if it still pauses then.
    fn poll_from(&mut self, op: Op, at: Instant) {
        if let Some(waiting) = self.ops.waiting_mut(op) {
            waiting.poll_at = at;
        }
        self.ops.pause_on(op, at);
    }

    /// A node refuses the script of the line. If that leaves no quorum, the request asks again and
    /// again: it would never get a place, and may get the key.
    fn on_line_refused(&mut self, node: NodeId, id: RecordId, reply: NodeReply, now: Instant) {
        let spare = self.cluster.spare_nodes();
        let record = self.records.get_mut(id);
        let (Some(op), Some(line)) = (record.op, record.line_mut()) else { return };
        line.refused.insert(node);
        let refused = line.refused;
        let away = self.cluster.all_nodes().iter().filter(|&it| self.cluster.may_ask(it).is_err());
        let without = refused.union(away.collect());
        if without.len() <= spare || self.ops.pauses_before(op) != Some(id) {
            return;
        }
        if let Some(request) = self.ops.get_mut(op) {
            request.joins = false;
        }
        if is_refused_to_the_user(reply) {
            self.note_no_lines(now);
        }
        self.ops.interrupt(op);
        self.on_attempt_lost(id, now);
    }

    /// Looks whether the waiter has the key on a majority, and what it has to do if not.
    pub(in crate::proto::locks) fn judge_line(&mut self, id: RecordId, now: Instant) {
        let quorum = self.cluster.quorum();
        let record = self.records.get(id);
        let (Some(op), Some(line)) = (record.op, record.line()) else { return };
        if self.ops.pauses_before(op) != Some(id) {
            // The waiter is claiming.
            return;
        }
        let holds = line.holds(now);
        if record.set().is_some() && holds.len() >= quorum {
            self.ask_for_all_keys(op, id, now);
            return;
        }
        if let Some(deadline) = line.deadline(quorum, now) {
            // A hand-over brings no vote for a fencing number: a claim does.
            let is_long = deadline.saturating_since(now) >= record.ttl.usable() / 2;
            if is_long && !record.fenced {
                self.on_votes_of_line_won(op, id, deadline, now);
            } else {
                self.claim(op, id, holds, now);
            }
            return;
        }
        if holds.len() >= quorum {
            // The votes do not count, but the answers to a claim may.
            self.claim(op, id, holds, now);
            return;
        }
        if holds.is_empty() {
            return;
        }
        let mut buffer = [0; LONGEST_TOKEN];
        match line.judge(record.token.write_to(&mut buffer), quorum, now) {
            Split::Yield(token) if self.may_yield(op) => self.yield_to(op, id, token, now),
            Split::Yield(_) | Split::Keep => {}
            Split::Unknown if line.early_polls == 0 => {
                // The others may follow at once. If not, the nodes are polled.
                let at = self.next_early_poll(id, now);
                self.poll_from(op, at);
            }
            Split::Unknown => {}
        }
    }

    /// The votes are enough, and give the lock for long enough.
    fn on_votes_of_line_won(&mut self, op: Op, id: RecordId, deadline: Instant, now: Instant) {
        self.ops.interrupt(op);
        let record = self.records.get_mut(id);
        record.deadline = deadline;
        // The lock counts from the join by which its deadline was reckoned. So the lengths of its
        // timers are those of other locks. A claim whose answers came too late may have given the
        // keys more time than a hand-over does; the timers do not wait for that.
        let usable = record.line().map_or(record.ttl, |line| line.ttl).usable();
        record.round.start = deadline.saturating_sub(usable).min(now);
        // Nor does an answer to such a claim prove anything.
        record.round.number = record.round.number.wrapping_add(1);
        self.on_line_won(id, NodeSet::EMPTY, now);
    }

    /// The lock was won, by the votes of the line or by a claim that these nodes granted.
    fn on_line_won(&mut self, id: RecordId, claimed: NodeSet, now: Instant) {
        let record = self.records.get_mut(id);
        record.settle_proof(claimed);
        let tracked = record.tracked;
        let skipped = record.line().map_or(0, |line| line.skipped);
        let holds = record.line().map_or(NodeSet::EMPTY, |line| line.holds(now));
        let alone = record.line().is_some_and(|line| !line.met_others);
        if let Some(waiting) = record.op.and_then(|op| self.ops.waiting_mut(op)) {
            waiting.was_alone = alone;
        }
        let stats = self.cluster.stats_mut();
        stats.handed_over += 1;
        stats.skipped = stats.skipped.saturating_add(skipped);
        self.on_attempt_won(id, now);
        if tracked && self.is_held(id) {
            // The joins did not register the key.
            self.register_at(id, holds, now);
        }
    }

    /// Whether a waiter may give its nodes up again. The other waiter may be gone: no message says
    /// so. So a waiter yields a few times only, and keeps its place afterwards. What waiters then
    /// have of a real split ends with the short ttl.
    fn may_yield(&self, op: Op) -> bool {
        self.ops.get(op).is_some_and(|request| request.yields < YIELDS)
    }

    /// Claims the nodes that have the key for this waiter. Where too few nodes count for fencing
    /// numbers, a fenced lock cannot be won by any claim: the waiter gives the key up, or it would
    /// keep it from all others.
    fn claim(&mut self, op: Op, id: RecordId, holds: NodeSet, now: Instant) {
        let fenced = self.records.get(id).fenced;
        let refuses = |node: &NodeId| fenced && self.cluster.refuses_fence(*node).is_some();
        let counting = self.cluster.all_nodes().iter().filter(|node| !refuses(node));
        let (counting, quorum): (NodeSet, _) = (counting.collect(), self.cluster.quorum());
        if holds.common(counting).len() >= quorum {
            self.begin_claim(op, id, now);
        } else if counting.len() < quorum {
            self.leave_and_join_again(op, id, now);
        }
        // Else the other nodes may still hand the key over.
    }

    /// The waiter gives the key up on the nodes where it has it, for the one that is to get it, and
    /// joins again.
    fn yield_to(&mut self, op: Op, id: RecordId, token: bytes::Bytes, now: Instant) {
        self.cluster.stats_mut().splits += 1;
        if let Some(line) = self.records.get_mut(id).line_mut() {
            line.successor = token;
        }
        self.leave_and_join_again(op, id, now);
    }

    /// The waiter leaves its lines, gives up what it has, and joins again after a pause that
    /// doubles each time.
    fn leave_and_join_again(&mut self, op: Op, id: RecordId, now: Instant) {
        if let Some(request) = self.ops.get_mut(op) {
            request.yields = request.yields.saturating_add(1);
        }
        self.ops.interrupt(op);
        self.on_attempt_lost(id, now);
    }

    /// Asks the nodes that have the key for this waiter to extend it to the whole ttl, and for
    /// their votes if the lock is fenced.
    fn begin_claim(&mut self, op: Op, id: RecordId, now: Instant) {
        if self.ops.has_waited_enough(op, now) {
            // The wait is over, and its timer is due.
            return;
        }
        let last = self.ops.end_pause(op);
        let ballot = Ballot::of_majority(self.cluster.size());
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round.follow(Purpose::Claim, ballot, now, ttl);
        let Some(line) = record.line_mut() else { return };
        line.last = last.or(line.last.take());
        let holds = line.holds(now);
        self.cluster.stats_mut().claims += 1;
        let length = self.cluster.settings().node_timeout.min(ttl.usable());
        let part_of = |_: &mut Locks, node| match holds.contains(node) {
            true => Part::Asked,
            false => Part::Votes(NodeReply::Held),
        };
        let ask = |locks: &mut Locks, nodes| {
            if locks.records.get(id).fenced {
                locks.ask_for_votes(id, nodes, Kind::Claim, now);
            } else {
                locks.records.get_mut(id).uncounted = locks.cluster.untrusted(nodes);
                locks.ask_all(nodes, id, Kind::Claim, now);
            }
        };
        let nodes = self.cluster.all_nodes();
        self.begin_round(id, (nodes, length), part_of, ask, now);
    }

    /// A node answered a claim.
    pub(in crate::proto::locks) fn on_claim(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let trusted = self.cluster.is_trusted(node);
        let record = self.records.get_mut(ask.record);
        let granted = reply == NodeReply::Granted && trusted;
        if granted && record.phase == Phase::Asking {
            record.prove_in_line(node);
        } else if granted && !record.pending.is_asked(node) {
            // The other nodes' answers have won the lock before.
            record.prove(node, ask);
        }
        if let (NodeReply::Held | NodeReply::Absent, Some(line)) = (reply, record.line_mut()) {
            line.note_loss_of(node);
        }
        self.on_grant(node, ask, reply, now);
    }

    /// A majority has extended the key.
    pub(in crate::proto::locks) fn on_claim_won(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        record.deadline = record.ttl.deadline(record.round.start);
        let claimed = record.round.ballot().grants();
        self.on_line_won(id, claimed, now);
    }

    /// Too few nodes have extended the key: the waiter is in line as before. Its round stays, and
    /// is decided: late answers change nothing.
    pub(in crate::proto::locks) fn on_claim_lost(&mut self, id: RecordId, now: Instant) {
        let error = self.refusal_in_line(id, now);
        let record = self.records.get_mut(id);
        let last = record.line_mut().and_then(|line| line.last.take()).unwrap_or(error);
        let Some(op) = record.op else { return };
        let at = self.next_early_poll(id, now);
        self.ops.pause(op, id, at, last);
        self.poll_from(op, at);
    }
}
