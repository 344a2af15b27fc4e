//! The bytes of a record's questions, and the phase of the record in which each may be written.
//!
//! [`Locks::ask_as`](super::Locks) checks the phase before it encodes a question. The last commands
//! of a client that ends are encoded without that check.

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
use crate::proto::wire::transaction;

/// A command to a node, as far as the code that asks decides it. The record decides which keys it
/// names, and the connection whether the node knows the script.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub kind: Kind,
    /// The script also uses the fencing counters of the keys. Decided for each node, because the
    /// counters of some nodes do not count.
    pub with_counters: bool,
    /// `Sha`: by the SHA1 of the script, or by its source where the node does not know it.
    /// `Source`: always by its source. `Native`: by a command of the server's own in place of the
    /// script. `Transaction`: by a transaction in its place. A node that runs no scripts gets its
    /// own command whatever the form is, if it has one.
    pub form: Form,
}

impl Question {
    /// The question without counters, in the form for an answer that the client reads.
    #[inline]
    pub fn of(kind: Kind) -> Question {
        Question { kind, with_counters: false, form: Form::Sha }
    }

    /// Which keys the question names at these nodes. If the release of the lock hands the key over,
    /// the caller asks only such nodes together where the user may use the line on all of them, or
    /// on none.
    #[inline]
    pub fn names(self, record: &Record, nodes: NodeSet) -> Names {
        if self.with_counters {
            return Names::AllKeysAndCounters;
        }
        let in_line = record.hands_over() && self.kind.names_the_line();
        let in_line = in_line && record.plain().common(nodes).is_empty();
        let several = record.set().is_some();
        match (in_line, self.kind) {
            // A waiter joins the line of one of its keys at a time.
            (true, Kind::Join) => Names::KeyAndLine,
            (true, _) if several => Names::AllKeysAndLines,
            (true, _) => Names::KeyAndLine,
            (false, Kind::Adopt) if !several && matches!(self.form, Form::Native(_)) => Names::Key,
            (false, Kind::Adopt) => Names::AllKeys,
            (false, _) if several => Names::AllKeys,
            (false, _) => Names::Key,
        }
    }

    /// Whether a node that runs no scripts has a command of its own for the question.
    pub fn has_command(self, names: Names, record: &Record) -> bool {
        match self.kind {
            Kind::Extend | Kind::Claim | Kind::Release => names == Names::Key,
            Kind::Adopt => record.set().is_none(),
            Kind::Acquire | Kind::Heal | Kind::Exists | Kind::WriteBack | Kind::Join => false,
        }
    }

    /// The form in which the question is sent to these nodes, and those of them that get another
    /// one, because they do not know its script, or run none: the caller asks them apart.
    #[inline]
    pub fn forms(
        self,
        names: Names,
        nodes: NodeSet,
        record: &Record,
        cluster: &Cluster,
    ) -> (Option<Form>, NodeSet) {
        if names == Names::Key && self.kind == Kind::Acquire {
            return (None, NodeSet::EMPTY);
        }
        let script = ScriptName::of(self.kind, names);
        let form = match (self.kind, script, self.form) {
            (Kind::Adopt, _, Form::Native(native)) if names == Names::Key => {
                Some(Form::Native(native))
            }
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
            (_, Some(Form::Source)) if self.has_command(names, record) => {
                cluster.without_scripts(nodes)
            }
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

/// Encodes a question about the lock of a record that names only the key. `key` has the prefix of
/// the client.
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
        Kind::Extend | Kind::Claim if matches!(form, Form::Native(_)) => {
            command::replace(out, key, token, token, record.ttl_of_replacement(now));
        }
        Kind::Adopt if matches!(form, Form::Native(_)) => {
            command::replace(out, key, given_away_with(record), token, ttl);
        }
        Kind::Extend | Kind::Claim => command::extend(out, form, key, token, ttl),
        Kind::Release => command::release(out, form, key, token),
        Kind::Heal => command::acquire(out, key, token, left_to_heal(record, now)),
        Kind::Exists => command::encode(out, &[b"EXISTS", key]),
        Kind::Adopt | Kind::WriteBack | Kind::Join => {
            unreachable!("{kind:?} names more than a key")
        }
    }
}

/// The ttl of a heal: the time until the deadline of the lock.
fn left_to_heal(record: &Record, now: Instant) -> Ttl {
    record.ttl_left(now).expect("a heal is asked only while some is left")
}

/// The token that the adopted lock was given away with.
fn given_away_with(record: &Record) -> &LockToken {
    record.taken_up().expect("it is set before the nodes are asked")
}

/// As [`encode`], by the script that names all keys, and also their counters if `with_counters`.
pub(super) fn encode_all(
    out: &mut BytesMut,
    prefix: &KeyPrefix,
    record: &Record,
    (kind, form): (Kind, Form),
    with_counters: bool,
    now: Instant,
) {
    let (token, ttl) = (&record.token, record.round.ttl);
    let only = [record.key.len() as u32];
    let ends = record.set().map_or(&only[..], |set| set.ends());
    let keys = SetKeys { prefix, bytes: &record.key, ends };
    let counting =
        with_counters.then(|| record.counting(!matches!(kind, Kind::Acquire | Kind::Claim)));
    match kind {
        Kind::Acquire if form == Form::Transaction => {
            let lives = record.counting(false).lives;
            transaction::acquire(out, (prefix.as_bytes(), &record.key), token, ttl, lives);
        }
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

/// What is needed to encode a member: the waiter as it stands in the line of one node.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    node: NodeId,
    /// The channel on which the node notifies the waiter, if it does.
    channel: Option<Channel>,
    /// The secret from which the client makes its marks.
    marks: &'a MarkKey,
}

impl<'a> Place<'a> {
    /// The waiter of this record in the line of a node; nothing if the record never stood in line.
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

    /// Whether the token may stand in a line of the node, or may still come into one: by a join in
    /// flight, or by a join of a lost connection.
    fn may_stand_in_line(self, record: &Record, line: &Line) -> bool {
        let (node, pending) = (self.node, &record.pending);
        pending.is_asked(node)
            || pending.unproven().contains(node)
            || line.is_possibly_in_line(node)
    }

    /// The member with the mark that the node was given last.
    fn last(self, record: &'a Record, line: &Line) -> Member<'a> {
        self.member(record, line, line.mark_at(self.node))
    }

    /// The members with earlier marks: one of them may stand in the line instead of the last.
    fn earlier(
        self,
        record: &'a Record,
        line: &'a Line,
    ) -> impl ExactSizeIterator<Item = Member<'a>> {
        line.earlier_marks(self.node).map(move |number| self.member(record, line, number))
    }

    /// The last member, the earlier ones, and those that may stand in the line of another key of
    /// the lock.
    pub fn members(
        self,
        record: &'a Record,
        line: &'a Line,
    ) -> impl ExactSizeIterator<Item = Member<'a>> {
        let first = line.oldest_mark(self.node);
        (first..=line.mark_at(self.node)).map(move |number| self.member(record, line, number))
    }
}

/// As [`encode`], for a question that names the key and its line. A waiter has another mark on each
/// node, so `place` is that of one node.
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
            lines::join(out, form, key, place.last(record, line), line.lives, again, earlier);
        }
        (Kind::Release, None) => {
            lines::hand_over(out, form, key, token, iter::empty(), &[]);
        }
        (Kind::Release, Some((line, place))) => {
            let successor = line.successor();
            if place.may_stand_in_line(record, line) {
                lines::hand_over(out, form, key, token, place.members(record, line), successor);
            } else {
                lines::hand_over(out, form, key, token, iter::empty(), successor);
            }
        }
        (other, _) => unreachable!("{other:?} names no line"),
    }
}

/// As [`encode_for_line`], for the release of several keys, which names the line of each.
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
        Some((line, place)) if place.may_stand_in_line(record, line) => {
            lines::hand_over_all(out, form, keys, token, place.members(record, line));
        }
        _ => lines::hand_over_all(out, form, keys, token, iter::empty()),
    }
}
