//! The course of a request for a key that others hold: it joins the lines, polls, resolves splits,
//! and claims the key before the lock is handed out.
//!
//! A waiter in line is a request in `Pausing` with a record in `Asking`, whose token stands in the
//! lines of the nodes. The hazard is a join that is written after the release took the token out:
//! the node would hand the key over to a waiter that is gone. So a join is written only while the
//! record is in `Asking`. Each attempt has a token of its own, and no `SET NX` has the token of a
//! waiter.

use std::time::Duration;

use rand::RngExt;

use crate::proto::error::{ConfigError, Error, NodeError, NodeReply};
use crate::proto::ids::{Op, RecordId};
use crate::proto::lock::LONGEST_TOKEN;
use crate::proto::locks::Locks;
use crate::proto::locks::line::rest::{POLLS, line_ttl};
use crate::proto::locks::line::votes::{AT_THE_FRONT, Line, Split};
use crate::proto::locks::random::Random;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::course::Role;
use crate::proto::locks::round::failure::{Refusals, Tried, classify};
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::line::{Channel, MarkKey};

/// The pause between the polls of a waiter grows with its place in line: for each group of so many
/// waiters before it, by one pause of a waiter at the front.
const NEAR_THE_FRONT: u64 = 16;
/// The longest pause between two polls of a waiter that does not rest, however long the line is.
const LONGEST_POLL: Duration = Duration::from_secs(2);
/// The first pause before the next poll of a waiter that has the key on some nodes only. It doubles
/// with each such poll.
const EARLY_POLL: Duration = Duration::from_millis(4);

/// For how long no request joins a line after the nodes refused lines to the user. After that the
/// next request tries again, because the user may have got the right meanwhile.
const NO_LINES: Duration = Duration::from_secs(10);

/// So many times a request *yields* whenever it should: it gives up the nodes that it has, because
/// another waiter should get the key. The pause before it joins again doubles each time.
const YIELDS: u32 = 6;

/// After that it yields in one of this many cases, by chance. Lines with different orders would
/// otherwise hand their keys to different waiters for ever.
const YIELDS_AGAIN: usize = 4;

/// How often a set begins anew without a pause.
const QUICK_TRIES: u32 = 3;

/// The first eight digits of a token.
fn first_digits(token: &[u8]) -> u32 {
    let digits = token.get(..8).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// Whether a node refused the script of the line for a reason that may last: for example, the key
/// of the line is no sorted set, or a command is missing.
fn refuses_lines(reply: NodeReply) -> bool {
    use NodeError::{NoLua, NoPermission, Other, UnknownCommand, WrongType};
    matches!(reply, NodeReply::Failed(NoPermission | WrongType | UnknownCommand | Other | NoLua))
}

/// Whether the reason holds for the line of every key.
fn is_refused_to_the_user(reply: NodeReply) -> bool {
    use NodeError::{NoLua, NoPermission, UnknownCommand};
    matches!(reply, NodeReply::Failed(NoPermission | UnknownCommand | NoLua))
}

impl Locks {
    /// Whether the nodes let this user stand in line, as far as the client knows.
    pub fn has_lines(&self, now: Instant) -> bool {
        now >= self.no_lines_until
    }

    /// The nodes refuse lines to this user: no request joins one for a while.
    pub fn note_no_lines(&mut self, now: Instant) {
        self.no_lines_until = now.saturating_add(NO_LINES);
    }

    /// Called before a request joins a line. At the first time the client makes its secret for
    /// marks, and begins to listen to its channel.
    fn prepare_line(&mut self, now: Instant) {
        if !self.cluster.is_listening() {
            self.marks = Some(MarkKey::random(self.random.rng()));
            let channel = Channel::of(self.random.rng().random());
            self.cluster.listen_to(channel, now);
            self.act_on_changes(now);
        }
    }

    /// The ttl of a hand-over to a waiter that wants `ttl`, if the waiter may have stopped.
    pub(in crate::proto::locks) fn hand_over_ttl(&self, ttl: Ttl) -> Ttl {
        let longest = self.cluster.settings().hand_over_ttl();
        Ttl::new(ttl.duration().min(longest), ttl.duration()).unwrap_or(ttl)
    }

    /// From now on the request stands in line, with the token of its next attempt, whose record is
    /// `id`. `last` is the error of its last attempt.
    pub fn stand_in_line(&mut self, op: Op, id: RecordId, last: Error, now: Instant) {
        self.prepare_line(now);
        let nodes = self.cluster.size();
        let ttl = self.records.get(id).ttl;
        let short_ttl = self.hand_over_ttl(ttl);
        let yields = self.ops.get(op).map_or(0, |request| request.yields);
        // A waiter that has yielded so often seldom does so again. It asks for the short ttl, so
        // that the keys that it has in a split expire soon.
        let ttls = if yields < YIELDS { (ttl, short_ttl) } else { (short_ttl, short_ttl) };
        let goes_on = self.move_on_in_line(id);
        if !goes_on {
            let record = self.records.get_mut(id);
            debug_assert!(record.round.ballot().grants().is_empty(), "the token is fresh");
            let line = Line::new(nodes, ttls, record.round.number);
            record.trouble_mut().line = Some(Box::new(line));
            self.cluster.stats_mut().joined += 1;
        }
        // A set that began anew several times pauses first. It could be refused for ever although
        // each line hands its key over: if each key is free on a majority, but all keys together on
        // no majority.
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
            if !self.give_way_by_chance(op, id, now) && !self.renew_kept(op, id, now) {
                self.poll_line(op, id, now);
            }
        }
    }

    /// A node reported a write to the key of a waiter, which asks that node again if it had
    /// registered the key there, or rests.
    pub fn on_key_written(&mut self, op: Op, node: NodeId, now: Instant) {
        let Some(id) = self.ops.attempt_of(op) else { return };
        let Some(line) = self.records.get_mut(id).line_mut() else { return };
        let asks = line.end_registration(node) || line.rest.is_resting();
        // Not while it claims: if the claim is lost, it polls all nodes.
        if asks && self.ops.pauses_before(op) == Some(id) {
            self.poll_at(node, id, now);
        }
    }

    /// Polls: asks every node that may be asked whether it has the key for the waiter, and else for
    /// a place in its line. Then sets the timer of the waiter, which must not be set.
    fn poll_line(&mut self, op: Op, id: RecordId, now: Instant) {
        self.cluster.check_lists(now);
        let (mut nodes, mut silent) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let (mut permanent, mut reports_writes) = (0, true);
        let too_new = self.left_to_the_holder(id, now);
        for node in self.cluster.voters().iter() {
            let useless = self.why_useless(id, node);
            permanent += usize::from(useless.is_some_and(NodeError::is_permanent));
            match (self.cluster.may_ask(node), self.cluster.notifies(node)) {
                (Err(_), _) => {}
                (Ok(()), _) if too_new.contains(node) => {}
                // `join_at` asks this node once it has answered the subscription to the channel.
                (Ok(()), None) => {}
                (Ok(()), Some(_)) if self.records.get(id).pending.is_asked(node) => {}
                (Ok(()), Some(notifies)) => {
                    nodes.insert(node);
                    reports_writes &= self.cluster.reports_writes(node);
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
        let (untrusted, quorum) = (self.cluster.untrusted(nodes), self.cluster.quorum());
        // A set that keeps keys of others does not rest, because others wait for these.
        let renews_at = self.renews_kept_at(id);
        let record = self.records.get_mut(id);
        let Some(line) = record.line_mut() else { return };
        let rank = line.rank;
        let early = !line.holds(now).is_empty();
        let silent = silent.union(line.note_silent(silent).common(nodes));
        let notified = reports_writes && silent.is_empty() && renews_at.is_none();
        line.rest.begin_poll(nodes, notified, nodes.len() >= quorum, self.ops.waiters());
        line.begin_poll(nodes, untrusted, now);
        let at = match early {
            true => self.next_early_poll(id, now),
            false => self.next_poll(id, rank, now),
        };
        if let Some(line) = self.records.get_mut(id).line_mut() {
            line.lives = line.lives.max(line_ttl(at.saturating_since(now)));
        }
        if let Some(waiting) = self.ops.waiting_mut(op) {
            waiting.forget_free_at();
            waiting.polled_at = now;
        }
        let record = self.records.get_mut(id);
        record.round.number = record.round.number.wrapping_add(1);
        self.ask_all(nodes, id, Kind::Join, now);
        self.poll_from(op, renews_at.map_or(at, |renews_at| at.min(renews_at)));
    }

    /// The nodes that a waiter does not ask yet, so that the holder gets the key there first: those
    /// that are joining the list, until one more vote would be a majority.
    fn left_to_the_holder(&self, id: RecordId, now: Instant) -> NodeSet {
        let holds = self.records.get(id).line().map_or(0, |line| line.holds(now).len());
        if holds + 1 >= self.cluster.quorum() { NodeSet::EMPTY } else { self.cluster.joining() }
    }

    /// From now on a node may be asked for a place in its lines: all waiters join there.
    pub(in crate::proto::locks) fn join_at(&mut self, node: NodeId, now: Instant) {
        if self.ops.has_no_waiters() {
            return;
        }
        self.cluster.check_lists(now);
        let silent = self.cluster.notifies(node) == Some(false);
        for id in self.records.ids() {
            let too_new = self.left_to_the_holder(id, now).contains(node);
            let record = self.records.get_mut(id);
            let asking = record.phase == Phase::Asking && !too_new;
            let waits = asking && !record.pending.is_asked(node);
            let Some(line) = record.line_mut().filter(|_| waits) else { continue };
            if self.cluster.may_ask(node).is_err() {
                return;
            }
            if silent {
                line.note_silent(node.into());
            }
            line.poll_more(node.into(), self.cluster.untrusted(node.into()), now);
            self.ask(node, id, Kind::Join, now);
        }
    }

    /// When a waiter of this rank polls again.
    fn next_poll(&mut self, id: RecordId, rank: u64, now: Instant) -> Instant {
        // Its first poll is not answered yet.
        let rank = if rank == u64::MAX { 0 } else { rank };
        let times = u32::try_from(1 + rank / NEAR_THE_FRONT).unwrap_or(u32::MAX);
        let pause = self.random.pause(POLLS.0, POLLS.1);
        let by_place = pause.saturating_mul(times).min(LONGEST_POLL);
        let rests = self.records.get(id).line().map_or(1, |line| line.rest.times());
        now.saturating_add(by_place.max(pause.saturating_mul(rests)))
    }

    /// If a waiter rested until a node reported something new, it polls as soon as if it had not
    /// rested.
    pub(in crate::proto::locks) fn end_rest(&mut self, id: RecordId, now: Instant) {
        let Some(line) = self.records.get_mut(id).line_mut() else { return };
        let rank = line.rank;
        if line.rest.take_wake_up() {
            let at = self.next_poll(id, rank, now);
            self.poll_before(id, at);
        }
    }

    /// A waiter polls at this moment, or before it if it would poll sooner.
    fn poll_before(&mut self, id: RecordId, at: Instant) {
        let Some(op) = self.records.get(id).op else { return };
        if self.ops.waiting_mut(op).is_some_and(|waiting| at < waiting.poll_at) {
            self.poll_from(op, at);
        }
    }

    /// For a waiter that has the key on some nodes only: counts an early poll, and returns the
    /// moment of the next one.
    fn next_early_poll(&mut self, id: RecordId, now: Instant) -> Instant {
        let Some(line) = self.records.get_mut(id).line_mut() else { return now };
        let pause = EARLY_POLL.saturating_mul(1 << line.early_polls.min(8)).min(POLLS.0);
        line.early_polls = line.early_polls.saturating_add(1);
        now.saturating_add(self.random.pause(pause / 2, pause))
    }

    /// Too many nodes refuse for a lasting reason: the request ends with an error.
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

    /// Why the vote of a node could not count for the waiter now; nothing if it could.
    fn why_useless(&self, id: RecordId, node: NodeId) -> Option<NodeError> {
        let refuses = || self.cluster.refuses_fence(node).filter(|_| self.records.get(id).fenced);
        self.cluster.may_ask(node).err().or_else(refuses)
    }

    /// Whether the node had no vote in the last claim because too few replicas have the key.
    fn lacked_replicas(&self, id: RecordId, node: NodeId) -> Option<NodeError> {
        let claimed = self.records.get(id).round.purpose == Purpose::Claim;
        (claimed && self.cluster.lacks_replicas(node)).then_some(NodeError::NoReplicas)
    }

    /// The error of a waiter in line that gives up, or whose time to wait is over.
    pub(in crate::proto::locks) fn refusal_in_line(&self, id: RecordId, now: Instant) -> Error {
        let useless = |node| self.why_useless(id, node).or_else(|| self.lacked_replicas(id, node));
        let reply = |node| useless(node).map_or(NodeReply::Held, NodeReply::Failed);
        let away = self.cluster.voters().iter().filter(|&node| useless(node).is_some());
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
            // The answer is about the line of an earlier key of the set.
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
                // The node may still execute a join of an earlier connection, which puts the token
                // into the line.
                line.note_possible_place(node);
            } else {
                line.note_only_last_mark(node);
            }
        } else if let Some(line) = record.line_mut() {
            // The join failed: its script may have put the token into the line before.
            line.note_possible_place(node);
        }
        if mine && self.cluster.is_trusted(node) {
            self.records.get_mut(id).prove_in_line(node);
        }
        if mine && waits {
            self.raise_counter_at(node, id, now);
        }
        if waits && reply == NodeReply::Held && self.cluster.reports_writes(node) {
            let line = self.records.get_mut(id).line_mut();
            if line.is_some_and(|line| line.registers_at(node, standing.rank, now)) {
                self.register_at(id, node.into(), now);
            }
        }
        let lacks = |line: &mut Line| line.lacks_reports_of(node, standing.rank);
        if waits && self.records.get_mut(id).line_mut().is_some_and(lacks) {
            let at = now.saturating_add(self.random.pause(POLLS.0, POLLS.1));
            self.poll_before(id, at);
        }
        self.end_rest(id, now);
        if waits && reply == NodeReply::Held {
            self.note_time_left(node, id, standing.left, now);
        }
        if waits && refuses_lines(reply) {
            self.on_line_refused(node, id, reply, now);
        } else if waits {
            self.judge_line(id, now);
        }
    }

    /// A node reported to a waiter how long the key lives there for its holder. No message comes in
    /// time when the key expires, so the waiters at the front poll when it may have expired on a
    /// majority.
    fn note_time_left(&mut self, node: NodeId, id: RecordId, left: i64, now: Instant) {
        let quorum = self.cluster.quorum();
        let record = self.records.get(id);
        let (Some(op), Some(line)) = (record.op, record.line()) else { return };
        let (rank, rests) = (line.rank, line.rest.is_resting());
        let Some(waiting) = self.ops.waiting_mut(op) else { return };
        waiting.note_left(node, Some(left), now);
        // Not before `EARLY_POLL` after the last poll, because a node may answer "0 ms" again and
        // again.
        let at = waiting.free_on(quorum).max(waiting.polled_at.saturating_add(EARLY_POLL));
        // A resting waiter further back polls a little later, as it would if it did not rest,
        // because the waiters before it may be gone.
        let behind = u32::try_from(rank.saturating_sub(AT_THE_FRONT - 1)).unwrap_or(u32::MAX);
        let at = at.saturating_add(POLLS.1.saturating_mul(behind));
        if (behind == 0 || rests) && at < waiting.poll_at {
            self.poll_from(op, at);
        }
    }

    /// Sets the moment of the next poll of a waiter.
    fn poll_from(&mut self, op: Op, at: Instant) {
        if let Some(waiting) = self.ops.waiting_mut(op) {
            waiting.poll_at = at;
        }
        self.ops.pause_on(op, at);
    }

    /// A node refuses the script of the line. If the other nodes are no quorum, no line can give
    /// the waiter the key: it asks again after pauses instead.
    fn on_line_refused(&mut self, node: NodeId, id: RecordId, reply: NodeReply, now: Instant) {
        let spare = self.cluster.spare_nodes();
        let record = self.records.get_mut(id);
        let (Some(op), Some(line)) = (record.op, record.line_mut()) else { return };
        line.refused.insert(node);
        let refused = line.refused;
        let away = self.cluster.voters().iter().filter(|&it| self.cluster.may_ask(it).is_err());
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

    /// Acts on what the nodes have answered to the waiter so far: if it has the key on a majority,
    /// the lock is won or claimed; otherwise a split may have to be resolved.
    pub(in crate::proto::locks) fn judge_line(&mut self, id: RecordId, now: Instant) {
        let quorum = self.cluster.quorum();
        let record = self.records.get(id);
        let (Some(op), Some(line)) = (record.op, record.line()) else { return };
        if self.ops.pauses_before(op) != Some(id) {
            // A claim is in flight: its round decides.
            return;
        }
        let holds = line.holds(now);
        if record.set().is_some() && holds.len() >= quorum {
            self.ask_for_all_keys(op, id, now);
            return;
        }
        if let Some(deadline) = line.deadline(quorum, now) {
            // A hand-over brings no vote for the fencing number, and no replica has confirmed it.
            let needs_claim = record.fenced || self.cluster.settings().replicas > 0;
            let is_long = deadline.saturating_since(now) >= record.ttl.usable() / 2;
            if is_long && !needs_claim {
                self.on_votes_of_line_won(op, id, deadline, now);
            } else {
                self.claim(op, id, holds, now);
            }
            return;
        }
        if holds.len() >= quorum {
            // Not enough of these votes count, but the answers to a claim may count.
            self.claim(op, id, holds, now);
            return;
        }
        if holds.is_empty() {
            return;
        }
        let mut buffer = [0; LONGEST_TOKEN];
        match line.judge(record.token.write_to(&mut buffer), quorum, now) {
            Split::Yield(token) => {
                if self.may_yield_to(op, &token) {
                    self.yield_to(op, id, token, now);
                }
            }
            Split::Keep => {}
            Split::Unknown if line.early_polls == 0 => {
                // The other nodes usually hand the key over a moment later. If they do not, the
                // waiter polls early.
                let at = self.next_early_poll(id, now);
                self.poll_from(op, at);
            }
            Split::Unknown => {}
        }
    }

    /// The votes of the lines are enough, and their deadline leaves enough time: the lock is won
    /// without a claim.
    fn on_votes_of_line_won(&mut self, op: Op, id: RecordId, deadline: Instant, now: Instant) {
        self.ops.interrupt(op);
        let record = self.records.get_mut(id);
        record.deadline = deadline;
        // The start is set so that the deadline is a whole ttl after it: then the lengths of its
        // timers are those of other locks. It is not later than now, although a claim that was
        // answered too late may have given the keys more time than a hand-over does.
        let usable = record.line().map_or(record.ttl, |line| line.ttl).usable();
        record.round.start = deadline.saturating_sub(usable).min(now);
        // The number of a new round, so that a late answer to such a claim proves nothing.
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
            // Joins do not register the key for the auto-extended lock.
            self.register_at(id, holds, now);
        }
    }

    /// Whether a waiter may give its nodes up again, now for the one with this token. The other
    /// waiter may be dead, which no message says, so a waiter yields a few times, and then seldom
    /// and not for the same one. Mostly it keeps its nodes, and the short ttl ends a split with a
    /// dead waiter.
    fn may_yield_to(&mut self, op: Op, token: &[u8]) -> bool {
        let Some(request) = self.ops.get(op) else { return false };
        let is_another = request.yielded_to != first_digits(token);
        let drawn = |random: &mut Random| random.index(YIELDS_AGAIN) == YIELDS_AGAIN - 1;
        request.yields < YIELDS || (is_another && drawn(&mut self.random))
    }

    /// Begins a claim if the nodes that have the key for this waiter can win it. If the counters of
    /// too few nodes count, no claim can win a fenced lock: then the waiter gives the key up,
    /// because it would only keep it from others.
    fn claim(&mut self, op: Op, id: RecordId, holds: NodeSet, now: Instant) {
        let fenced = self.records.get(id).fenced;
        let refuses = |node: &NodeId| fenced && self.cluster.refuses_fence(*node).is_some();
        let counting = self.cluster.voters().iter().filter(|node| !refuses(node));
        let (counting, quorum): (NodeSet, _) = (counting.collect(), self.cluster.quorum());
        if holds.common(counting).len() >= quorum {
            self.begin_claim(op, id, now);
        } else if counting.len() < quorum {
            self.leave_and_join_again(op, id, now);
        }
        // Otherwise the waiter waits, because further nodes may hand the key over.
    }

    /// The waiter gives its nodes up for the waiter with this token, and joins again.
    fn yield_to(&mut self, op: Op, id: RecordId, token: bytes::Bytes, now: Instant) {
        self.cluster.stats_mut().splits += 1;
        if let Some(request) = self.ops.get_mut(op) {
            request.yielded_to = first_digits(&token);
        }
        if let Some(line) = self.records.get_mut(id).line_mut() {
            line.successor = token;
        }
        self.leave_and_join_again(op, id, now);
    }

    /// The waiter leaves its lines, releases the key where it has it, and joins again after a pause
    /// that doubles each time.
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
            // The time to wait is over: its timer, which is due, ends the request.
            return;
        }
        let last = self.ops.end_pause(op);
        let ballot = self.cluster.ballot();
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round.follow(Purpose::Claim, ballot, now, ttl);
        let Some(line) = record.line_mut() else { return };
        line.last = last.or(line.last.take());
        let holds = line.holds(now);
        self.cluster.stats_mut().claims += 1;
        let length = self.cluster.settings().node_timeout.min(ttl.usable());
        let role_of = |_: &mut Locks, node| match holds.contains(node) {
            true => Role::Asked,
            false => Role::Votes(NodeReply::Held),
        };
        let ask = |locks: &mut Locks, nodes| {
            if locks.records.get(id).fenced {
                locks.ask_for_votes(id, nodes, Kind::Claim, now);
            } else {
                locks.records.get_mut(id).uncounted = locks.cluster.untrusted(nodes);
                locks.ask_all(nodes, id, Kind::Claim, now);
            }
        };
        let nodes = self.cluster.voters();
        self.begin_round(id, (nodes, length), role_of, ask, now);
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
            // The claim was won before this answer.
            record.prove(node, ask);
        }
        if let (NodeReply::Held | NodeReply::Absent, Some(line)) = (reply, record.line_mut()) {
            line.note_loss_of(node);
        }
        self.on_grant(node, ask, reply, now);
    }

    /// A majority granted the claim.
    pub(in crate::proto::locks) fn on_claim_won(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        record.deadline = record.ttl.deadline(record.round.start);
        let claimed = record.round.ballot().grants();
        self.on_line_won(id, claimed, now);
    }

    /// Too few nodes granted the claim: the waiter pauses in line as before. Late answers to the
    /// claim change nothing, because its round is decided.
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
