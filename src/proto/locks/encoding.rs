//! The bytes of a record's questions, and the phase of the record in which each may be written.
//!
//! [`Locks::ask_as`](super::Locks) encodes a question after it has looked at the phase; the last
//! words of a client that ends are encoded without a look.

use std::iter;

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::key::KeyPrefix;
use crate::proto::lock::LockToken;
use crate::proto::locks::line::votes::Line;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::{Kind, Names};
use crate::proto::wire::command::{self, Form};
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::line::{self as lines, Channel, MarkKey, Member};
use crate::proto::wire::sets::{self, SetKeys};

/// A question about a lock, as far as its caller decides about it. Which keys it concerns is the
/// record's, and which scripts a node knows is the connection's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub kind: Kind,
    /// By a script that also touches the fencing counters. That is decided node by node: not every
    /// node counts for fencing numbers.
    pub counts: bool,
    /// Of a script: by its SHA1 if the node knows it, or in any case by its source. Or a native
    /// command in place of the script.
    pub form: Form,
}

impl Question {
    /// The question without counters, whose answer is read.
    #[inline]
    pub fn of(kind: Kind) -> Question {
        Question { kind, counts: false, form: Form::Sha }
    }

    /// Which keys it names at these nodes. A lock that is handed over asks nodes together only if
    /// the user may use the line on all of them, or on none.
    #[inline]
    pub fn names(self, record: &Record, nodes: NodeSet) -> Names {
        if self.counts {
            return Names::AllKeysAndCounters;
        }
        let in_line = record.hands_over() && self.kind.names_the_line();
        let in_line = in_line && record.plain().common(nodes).is_empty();
        let several = record.set().is_some();
        match (in_line, self.kind) {
            // A waiter stands in the line of one of its keys at a time.
            (true, Kind::Join) => Names::KeyAndLine,
            (true, _) if several => Names::AllKeysAndLines,
            (true, _) => Names::KeyAndLine,
            (false, Kind::Adopt) => Names::AllKeys,
            (false, _) if several => Names::AllKeys,
            (false, _) => Names::Key,
        }
    }

    /// How it is sent to these nodes, and which of them do not know its script: these get the
    /// source instead.
    #[inline]
    pub fn forms(self, names: Names, nodes: NodeSet, cluster: &Cluster) -> (Option<Form>, NodeSet) {
        if names == Names::Key && self.kind == Kind::Acquire {
            return (None, NodeSet::EMPTY);
        }
        let script = ScriptName::of(self.kind, names);
        let form = match (self.kind, script, self.form) {
            (Kind::Adopt, ..) => Some(Form::Source),
            (_, None, _) => None,
            // A heal is rare, so its source is sent each time.
            (Kind::Heal, ..) => Some(Form::Source),
            // A native command has one key.
            (_, _, Form::Native(_)) if names != Names::Key => Some(Form::Source),
            (_, _, form) => Some(form),
        };
        let unknown = match (script, form) {
            (Some(name), Some(Form::Sha)) => cluster.unknowing(nodes, name),
            _ => NodeSet::EMPTY,
        };
        (form, unknown)
    }
}

/// The only phase of a record in which a question of this kind may be written.
#[inline]
pub(super) fn phase_of(kind: Kind) -> Phase {
    match kind {
        Kind::Acquire | Kind::Adopt | Kind::WriteBack | Kind::Join | Kind::Claim => Phase::Asking,
        Kind::Extend | Kind::Heal => Phase::Held,
        Kind::Release | Kind::Exists => Phase::Ending,
    }
}

/// Encodes a question about the lock of a record, by the key alone. The key has its prefix.
pub(super) fn encode(
    out: &mut BytesMut,
    key: &[u8],
    record: &Record,
    (kind, form): (Kind, Form),
    now: Instant,
) {
    let (token, ttl) = (&record.token, record.round.ttl);
    match kind {
        Kind::Acquire => command::acquire(out, key, token, ttl),
        Kind::Extend | Kind::Claim => command::extend(out, form, key, token, ttl),
        Kind::Release => command::release(out, form, key, token),
        Kind::Heal => command::acquire(out, key, token, left_to_heal(record, now)),
        Kind::Exists => command::encode(out, &[b"EXISTS", key]),
        Kind::Adopt | Kind::WriteBack | Kind::Join => {
            unreachable!("{kind:?} names more than a key")
        }
    }
}

/// What is left of a lock that is healed.
fn left_to_heal(record: &Record, now: Instant) -> Ttl {
    record.ttl_left(now).expect("a heal is asked only while some is left")
}

/// The token that a lock is adopted by.
fn given_away_with(record: &Record) -> &LockToken {
    record.taken_up().expect("it is set before the nodes are asked")
}

/// As [`encode`], by the script over all keys, or over all keys and their counters if it counts.
pub(super) fn encode_all(
    out: &mut BytesMut,
    prefix: &KeyPrefix,
    record: &Record,
    (kind, form): (Kind, Form),
    counts: bool,
    now: Instant,
) {
    let (token, ttl) = (&record.token, record.round.ttl);
    let only = [record.key.len() as u32];
    let ends = record.set().map_or(&only[..], |set| set.ends());
    let keys = SetKeys { prefix, bytes: &record.key, ends };
    let counting = counts.then(|| record.counting(!matches!(kind, Kind::Acquire | Kind::Claim)));
    match kind {
        Kind::Acquire => {
            let ends = record.set().map_or(ends, |set| set.asked_ends());
            sets::acquire(out, form, SetKeys { ends, ..keys }, (token, ttl), counting);
        }
        Kind::Heal => {
            sets::acquire(out, form, keys, (token, left_to_heal(record, now)), counting);
        }
        Kind::Extend | Kind::Claim => {
            sets::extend(out, form, keys, (token, Some(ttl)), counting);
        }
        Kind::WriteBack => sets::extend(out, form, keys, (token, None), counting),
        Kind::Release => sets::release(out, form, keys, token),
        Kind::Adopt => sets::adopt(out, keys, given_away_with(record), token, ttl),
        other => unreachable!("{other:?} is not asked about all keys"),
    }
}

/// How a waiter of this client stands in the line of one node.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    node: NodeId,
    /// By which channel the node notifies the waiter, if it does.
    channel: Option<Channel>,
    /// The secret by which the client makes its marks.
    marks: &'a MarkKey,
}

impl<'a> Place<'a> {
    /// The place of this record at a node; nothing if it never stood in line.
    pub fn of(
        record: &Record,
        node: NodeId,
        cluster: &Cluster,
        marks: Option<&'a MarkKey>,
    ) -> Option<Place<'a>> {
        let (line, marks) = (record.line()?, marks?);
        let channel = cluster.channel(node).filter(|_| !line.is_silent(node));
        Some(Place { node, channel, marks })
    }

    fn member(self, record: &'a Record, line: &Line, number: u16) -> Member<'a> {
        let Place { node, channel, marks } = self;
        let mark = marks.mark(&record.token, node, number);
        Member { token: &record.token, ttl: line.ttl, short_ttl: line.short_ttl, channel, mark }
    }

    /// Whether the token may stand in a line of the node, or may be put there yet: by a join in
    /// flight, or by one of a lost connection.
    fn may_be_taken(self, record: &Record, line: &Line) -> bool {
        let (node, pending) = (self.node, &record.pending);
        pending.is_asked(node) || pending.unproven().contains(node) || line.may_stand(node)
    }

    /// The member that the last join put into the line.
    fn last(self, record: &'a Record, line: &Line) -> Member<'a> {
        self.member(record, line, line.mark_at(self.node))
    }

    /// The members with earlier marks, of which one may be there instead.
    fn earlier(
        self,
        record: &'a Record,
        line: &'a Line,
    ) -> impl ExactSizeIterator<Item = Member<'a>> {
        line.earlier_marks(self.node).map(move |number| self.member(record, line, number))
    }

    /// All of these, and those that may stand in the line of another key of the lock.
    pub fn members(
        self,
        record: &'a Record,
        line: &'a Line,
    ) -> impl ExactSizeIterator<Item = Member<'a>> {
        let first = line.oldest_mark(self.node);
        (first..=line.mark_at(self.node)).map(move |number| self.member(record, line, number))
    }
}

/// As [`encode`], for a question that names the line. A record that is in line has a place of its
/// own at each node, so each is asked by itself.
pub(super) fn encode_for_line(
    out: &mut BytesMut,
    key: &[u8],
    record: &Record,
    (kind, form): (Kind, Form),
    place: Option<Place<'_>>,
) {
    let token = &record.token;
    match (kind, record.line().zip(place)) {
        (Kind::Join, Some((line, place))) => {
            let earlier = place.earlier(record, line);
            let again = line.has_place_at(place.node);
            lines::join(out, form, key, place.last(record, line), again, earlier);
        }
        (Kind::Release, None) => {
            lines::hand_over(out, form, key, token, iter::empty(), &[]);
        }
        (Kind::Release, Some((line, place))) => {
            let successor = line.successor();
            if place.may_be_taken(record, line) {
                lines::hand_over(out, form, key, token, place.members(record, line), successor);
            } else {
                lines::hand_over(out, form, key, token, iter::empty(), successor);
            }
        }
        (other, _) => unreachable!("{other:?} names no line"),
    }
}

/// As [`encode_for_line`], for the release of several keys.
pub(super) fn encode_for_lines(
    out: &mut BytesMut,
    prefix: &KeyPrefix,
    record: &Record,
    form: Form,
    place: Option<Place<'_>>,
) {
    let Some(set) = record.set() else { return };
    let (keys, token) = (SetKeys { prefix, bytes: &record.key, ends: set.ends() }, &record.token);
    match record.line().zip(place) {
        Some((line, place)) if place.may_be_taken(record, line) => {
            lines::hand_over_all(out, form, keys, token, place.members(record, line));
        }
        _ => lines::hand_over_all(out, form, keys, token, iter::empty()),
    }
}
