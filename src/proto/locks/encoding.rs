//! The bytes of a record's questions, and the phase of the record in which each may be written.
//!
//! Only [`Locks::ask_all`](super::Locks) encodes a question, after it has looked at the phase.

use std::iter;

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::key::KeyPrefix;
use crate::proto::locks::line::Line;
use crate::proto::locks::records::{Phase, Record};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::Kind;
use crate::proto::wire::command::{self, Form};
use crate::proto::wire::fenced_sets;
use crate::proto::wire::fencing;
use crate::proto::wire::line::{self as lines, Channel, MarkKey, Member};
use crate::proto::wire::sets::{self as sets_wire, SetKeys};

/// The only phase of a record in which a question of this kind may be written.
#[inline]
pub(super) fn phase_of(kind: Kind) -> Phase {
    match kind {
        Kind::Acquire | Kind::Adopt | Kind::AcquireFenced(_) | Kind::WriteBack(_) => Phase::Asking,
        Kind::AcquireSet(_) | Kind::AdoptSet | Kind::Join(_) | Kind::Claim(_) => Phase::Asking,
        Kind::AcquireFencedSet(_) | Kind::WriteBackSet(_) => Phase::Asking,
        Kind::Extend(_) | Kind::Heal | Kind::ExtendFenced(_) | Kind::HealFenced => Phase::Held,
        Kind::ExtendSet(_) | Kind::HealSet => Phase::Held,
        Kind::ExtendFencedSet(_) | Kind::HealFencedSet => Phase::Held,
        Kind::Release(_) | Kind::ReleaseSet(_) | Kind::Exists => Phase::Ending,
    }
}

/// Encodes a question about the lock of a record. The key has its prefix.
pub(super) fn encode(out: &mut BytesMut, key: &[u8], record: &Record, kind: Kind, now: Instant) {
    let (token, ttl) = (&record.token, record.round.ttl);
    match kind {
        Kind::Acquire => command::acquire(out, key, token, ttl),
        Kind::Extend(form) | Kind::Claim(form) => command::extend(out, form, key, token, ttl),
        Kind::Release(form) => command::release(out, form, key, token),
        Kind::Heal => {
            let left = record.ttl_left(now).expect("a heal is asked only while some is left");
            command::acquire(out, key, token, left);
        }
        Kind::Adopt => {
            let old = record.taken_up().expect("it is set before the nodes are asked");
            command::adopt(out, key, old, token, ttl);
        }
        Kind::Exists => command::encode(out, &[b"EXISTS", key]),
        Kind::Join(_) => unreachable!("only a fair lock joins"),
        Kind::AcquireFenced(_) | Kind::ExtendFenced(_) | Kind::HealFenced | Kind::WriteBack(_) => {
            encode_fenced(out, key, record, kind, now);
        }
        other => unreachable!("{other:?} is about several keys"),
    }
}

/// As [`encode`], for a lock over several keys.
pub(super) fn encode_set(
    out: &mut BytesMut,
    prefix: &KeyPrefix,
    record: &Record,
    kind: Kind,
    now: Instant,
) {
    let (token, ttl) = (&record.token, record.round.ttl);
    let ends = record.set().map_or(&[][..], |set| set.ends());
    let keys = SetKeys { prefix, bytes: &record.key, ends };
    if kind.is_of_fenced_set() {
        return encode_fenced_set(out, keys, record, kind, now);
    }
    match kind {
        Kind::AcquireSet(form) => {
            let asked = record.set().map_or(ends, |set| set.asked_ends());
            sets_wire::acquire(out, form, SetKeys { ends: asked, ..keys }, token, ttl);
        }
        Kind::ExtendSet(form) => sets_wire::extend(out, form, keys, token, ttl),
        Kind::ReleaseSet(form) => sets_wire::release(out, form, keys, token),
        Kind::AdoptSet => {
            let old = record.taken_up().expect("it is set before the nodes are asked");
            sets_wire::adopt(out, keys, old, token, ttl);
        }
        _ => {
            let left = record.ttl_left(now).expect("a heal is asked only while some is left");
            sets_wire::acquire(out, Form::Source, keys, token, left);
        }
    }
}

/// As [`encode`], for a fenced lock over several keys.
fn encode_fenced_set(
    out: &mut BytesMut,
    keys: SetKeys<'_>,
    record: &Record,
    kind: Kind,
    now: Instant,
) {
    let (token, ttl) = (&record.token, record.round.ttl);
    let counting = record.counting();
    let fences = record.fences();
    match kind {
        Kind::AcquireFencedSet(form) => {
            fenced_sets::acquire(out, form, keys, (token, ttl), counting);
        }
        Kind::ExtendFencedSet(form) => {
            fenced_sets::extend(out, form, keys, (token, Some(ttl)), counting, fences);
        }
        Kind::WriteBackSet(form) => {
            fenced_sets::extend(out, form, keys, (token, None), counting, fences);
        }
        _ => {
            let left = record.ttl_left(now).expect("a heal is asked only while some is left");
            fenced_sets::heal(out, keys, (token, left), counting, fences);
        }
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
        Member { token: &record.token, ttl: line.ttl, channel, mark }
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

    /// All of these.
    pub fn members(
        self,
        record: &'a Record,
        line: &'a Line,
    ) -> impl ExactSizeIterator<Item = Member<'a>> {
        // The first mark has the number 1.
        let first = line.earlier_marks(self.node).start.max(1);
        (first..=line.mark_at(self.node)).map(move |number| self.member(record, line, number))
    }
}

/// As [`encode`], for a question that names the line. A record that is in line has a place of its
/// own at each node, so each is asked by itself.
pub(super) fn encode_for_line(
    out: &mut BytesMut,
    key: &[u8],
    record: &Record,
    kind: Kind,
    place: Option<Place<'_>>,
) {
    let token = &record.token;
    match (kind, record.line().zip(place)) {
        (Kind::Join(form), Some((line, place))) => {
            let earlier = place.earlier(record, line);
            lines::join(out, form, key, place.last(record, line), earlier, record.round.number);
        }
        (Kind::Release(form), None) => {
            lines::hand_over(out, form, key, token, iter::empty(), &[]);
        }
        (Kind::Release(form), Some((line, place))) => {
            // A join in flight, or one of a lost connection, may be executed yet.
            let node = place.node;
            let late = record.pending.is_asked(node) || record.pending.unproven().contains(node);
            let successor = line.successor();
            if late || line.may_stand(node) {
                lines::hand_over(out, form, key, token, place.members(record, line), successor);
            } else {
                lines::hand_over(out, form, key, token, iter::empty(), successor);
            }
        }
        (other, _) => unreachable!("{other:?} names no line"),
    }
}

/// As [`encode`], for a fenced lock.
fn encode_fenced(out: &mut BytesMut, key: &[u8], record: &Record, kind: Kind, now: Instant) {
    let (token, ttl) = (&record.token, record.round.ttl);
    let counting = record.counting();
    match kind {
        Kind::AcquireFenced(form) => fencing::acquire(out, form, key, token, ttl, counting),
        Kind::ExtendFenced(form) => fencing::extend(out, form, key, token, Some(ttl), counting),
        Kind::WriteBack(form) => fencing::extend(out, form, key, token, None, counting),
        _ => {
            let left = record.ttl_left(now).expect("a heal is asked only while some is left");
            fencing::heal(out, key, token, left, counting);
        }
    }
}
