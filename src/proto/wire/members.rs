//! The list of masters as one node has it: a value under [`MEMBERS`] with the node's own id and the
//! ids of all members. By it a client notices that another client uses another list.
//!
//! The hazard is a list that some nodes have and others do not. So a list is proposed first: a node
//! takes no other proposal after that, and the list is agreed only when all its members have the
//! proposal. Ids are compared, never addresses: one server has several names.
//!
//! A value is `1 OWN_ID STAGE NAME EPOCH ID=ADDRESS ...`, with the members in the order of their
//! ids. `1` is the number of the format. While the list is changed, other parts may follow:
//! `; was ID=ADDRESS ...`, `; mark HEX`, `; promised NUMBER`, `; accepted NUMBER ID=ADDRESS ...`.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;

use crate::proto::node_set::MAX_NODES;
use crate::proto::quorum::majority;
use crate::proto::wire::command::{MEMBERS as SCRIPT, encode};
use crate::proto::wire::marker::ID_DIGITS;

/// The key of the list on every node. It has no prefix, as the node marker has none.
pub const MEMBERS: &str = "redlatch:members";

/// For how long a client counts by the list that it read from a node. A change of the list waits as
/// long, so that no client counts by a list that is two steps older than that of another one.
pub const LEASE: Duration = Duration::from_secs(15);

/// How many hex digits the id of a member has.
const DIGITS: usize = 16;

/// The id of a node in a list: the beginning of the `run_id` that the node had when it was proposed
/// first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId([u8; DIGITS]);

impl MemberId {
    /// The id of a node that has none yet, and whose process has this `run_id`.
    pub fn of_run_id(run_id: &[u8; ID_DIGITS]) -> MemberId {
        let mut id = [0; DIGITS];
        id.copy_from_slice(&run_id[..DIGITS]);
        MemberId(id)
    }

    fn read(text: &str) -> Option<MemberId> {
        let id = <[u8; DIGITS]>::try_from(text.as_bytes()).ok()?;
        id.iter().all(u8::is_ascii_hexdigit).then_some(MemberId(id))
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&digit| fmt::Write::write_char(f, char::from(digit)))
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A member of a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// The address at which the client that proposed the list had it.
    pub address: Box<str>,
}

/// A list of masters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemberList {
    /// The name of the list, made from the ids of its first members.
    name: u64,
    /// How often the list was changed, from 1 on.
    epoch: u64,
    /// In the order of their ids.
    members: Vec<Member>,
}

impl MemberList {
    /// A list that no node has yet, of these members.
    pub fn first(mut members: Vec<Member>) -> MemberList {
        members.sort_unstable();
        MemberList { name: name_of(&members), epoch: 1, members }
    }

    /// The members, in the order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether a node with this id is a member.
    pub fn has(&self, id: MemberId) -> bool {
        self.members.iter().any(|member| member.id == id)
    }

    /// The id of the member that had this address when the list was proposed.
    pub fn id_at(&self, address: &str) -> Option<MemberId> {
        self.members.iter().find(|member| &*member.address == address).map(|member| member.id)
    }

    /// Whether both are the same list at the same epoch. Only the ids count, because the addresses
    /// are those that one client had.
    pub fn is_same_as(&self, other: &MemberList) -> bool {
        let ids = |list: &'_ MemberList| {
            list.members.iter().map(|member| member.id).collect::<Vec<MemberId>>()
        };
        self.name == other.name && self.epoch == other.epoch && ids(self) == ids(other)
    }

    /// How often the list was changed, from 1 on.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many members are a majority.
    pub fn quorum(&self) -> usize {
        majority(self.members.len())
    }

    /// Whether the other list was made from this one by changes, or this one from the other.
    pub fn has_name_of(&self, other: &MemberList) -> bool {
        self.name == other.name
    }

    /// The list of the next epoch, of these members.
    #[must_use]
    pub fn next(&self, mut members: Vec<Member>) -> MemberList {
        members.sort_unstable();
        MemberList { name: self.name, epoch: self.epoch + 1, members }
    }

    /// Whether the members of the two lists differ by one node at most: then any majority of the
    /// one shares a node with any majority of the other.
    pub fn is_adjacent_to(&self, other: &MemberList) -> bool {
        let lacks = |list: &MemberList, of: &MemberList| {
            list.members.iter().filter(|member| !of.has(member.id)).count()
        };
        lacks(self, other) + lacks(other, self) <= 1
    }
}

/// The 64-bit FNV-1a hash of the ids: it is stored on the nodes, so it must never change.
fn name_of(members: &[Member]) -> u64 {
    let digits = members.iter().flat_map(|member| member.id.0);
    digits.fold(0xcbf2_9ce4_8422_2325, |hash, digit| {
        (hash ^ u64::from(digit)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// How far the list of a node is agreed, and what the node is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The node takes no other first list, and it is not known whether all members have this one.
    Proposed,
    /// All clients count by this list, or by a later one.
    Agreed,
    /// Some clients may still count by the list of the epoch before.
    Told,
    /// The node is not a member yet, and takes no other list.
    Learner,
    /// The node lost its data and got its place back. It does not vote on the list of the next
    /// epoch, because it may have forgotten an earlier vote.
    Returned,
}

const STAGES: [(Stage, &str); 5] = [
    (Stage::Proposed, "proposed"),
    (Stage::Agreed, "agreed"),
    (Stage::Told, "told"),
    (Stage::Learner, "learner"),
    (Stage::Returned, "returned"),
];

impl Stage {
    /// The word for it on the nodes.
    pub fn word(self) -> &'static str {
        STAGES.iter().find(|(stage, _)| *stage == self).map_or("", |(_, word)| word)
    }

    fn read(word: &str) -> Option<Stage> {
        STAGES.iter().find(|(_, known)| *known == word).map(|(stage, _)| *stage)
    }
}

/// The number of a ballot about the list of the next epoch. Ballots of two tools never have the
/// same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BallotNumber {
    /// Greater than that of each earlier ballot that the tool has seen.
    pub count: u64,
    /// Drawn at random by the tool.
    pub tool: u64,
}

impl BallotNumber {
    fn read(text: &str) -> Option<BallotNumber> {
        let (count, tool) = text.split_once('.')?;
        Some(BallotNumber { count: count.parse().ok()?, tool: u64::from_str_radix(tool, 16).ok()? })
    }
}

impl fmt::Display for BallotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.count, self.tool)
    }
}

/// The list as one node has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The id of the node.
    pub id: MemberId,
    /// How far the list is agreed.
    pub stage: Stage,
    /// The list.
    pub list: MemberList,
    /// The members of the epoch before, while the stage is [`Told`](Stage::Told).
    pub previous: Vec<Member>,
    /// Drawn anew by each write of [`Told`](Stage::Told), so that a node that was told twice, with
    /// a loss of its data in between, is seen.
    pub mark: Option<u64>,
    /// The greatest ballot about the next epoch that the node takes part in.
    pub promised: Option<BallotNumber>,
    /// The members that the node accepted for the next epoch, and in which ballot.
    pub accepted: Option<(BallotNumber, Vec<Member>)>,
}

/// What a node has under [`MEMBERS`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum MembersState {
    /// The user may not read or write the key, or another program uses it; or the node was not
    /// asked. No list is checked there.
    #[default]
    Unavailable,
    /// Nothing: the node is in no list, or it lost its data.
    Blank,
    /// A value of a later version of redlatch.
    Later,
    /// This list.
    Listed(Membership),
}

impl MembersState {
    /// What this value says.
    pub fn read(value: &[u8]) -> MembersState {
        let text = std::str::from_utf8(value).unwrap_or_default();
        match (Membership::parse(text), text.split_once(' ')) {
            (Some(membership), _) => MembersState::Listed(membership),
            (None, Some((format, _))) if format.parse::<u64>().is_ok() => MembersState::Later,
            (None, _) => MembersState::Unavailable,
        }
    }

    /// The list of the node, and what the node is in it.
    pub fn listed(&self) -> Option<&Membership> {
        match self {
            MembersState::Listed(membership) => Some(membership),
            _ => None,
        }
    }
}

impl Membership {
    /// The list, before there is any ballot about its next epoch.
    pub fn new(id: MemberId, stage: Stage, list: MemberList) -> Membership {
        let (previous, mark) = (Vec::new(), None);
        Membership { id, stage, list, previous, mark, promised: None, accepted: None }
    }

    /// Whether the node is in its own list. A node that joins is not yet, and one that left is not
    /// any more.
    pub fn is_member(&self) -> bool {
        self.stage != Stage::Learner && self.list.has(self.id)
    }

    /// Whether the list is known to be the one that its members agreed on, and the node is one of
    /// them or was.
    pub fn is_settled(&self) -> bool {
        !matches!(self.stage, Stage::Proposed | Stage::Learner)
    }

    fn parse(text: &str) -> Option<Membership> {
        let mut parts = text.split(" ; ");
        let mut words = parts.next()?.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let id = MemberId::read(words.next()?)?;
        let stage = Stage::read(words.next()?)?;
        let name = u64::from_str_radix(words.next()?, 16).ok()?;
        let epoch = words.next()?.parse().ok()?;
        let list = MemberList { name, epoch, members: read_members(words)? };
        let is_stranger = matches!(stage, Stage::Proposed | Stage::Returned) && !list.has(id);
        if is_stranger {
            return None;
        }
        let mut membership = Membership::new(id, stage, list);
        for part in parts {
            let mut words = part.split(' ');
            match words.next()? {
                "was" => membership.previous = read_members(words)?,
                "mark" => membership.mark = Some(u64::from_str_radix(words.next()?, 16).ok()?),
                "promised" => membership.promised = Some(BallotNumber::read(words.next()?)?),
                "accepted" => {
                    let number = BallotNumber::read(words.next()?)?;
                    membership.accepted = Some((number, read_members(words)?));
                }
                _ => return None,
            }
        }
        Some(membership)
    }

    /// The text under which a node keeps this.
    pub fn text(&self) -> String {
        let MemberList { name, epoch, members } = &self.list;
        let mut text = format!("1 {} {} {name:016x} {epoch}", self.id, self.stage.word());
        write_members(&mut text, members);
        if !self.previous.is_empty() {
            text.push_str(" ; was");
            write_members(&mut text, &self.previous);
        }
        if let Some(mark) = self.mark {
            text.push_str(&format!(" ; mark {mark:x}"));
        }
        if let Some(number) = self.promised {
            text.push_str(&format!(" ; promised {number}"));
        }
        if let Some((number, members)) = &self.accepted {
            text.push_str(&format!(" ; accepted {number}"));
            write_members(&mut text, members);
        }
        text
    }
}

/// Reads members in the order of their ids.
fn read_members<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<Member>> {
    let members = words.map(|word| {
        let (id, address) = word.split_once('=')?;
        // Errors show the addresses, and whoever may write the key wrote them.
        if address.chars().any(char::is_control) {
            return None;
        }
        Some(Member { id: MemberId::read(id)?, address: address.into() })
    });
    let members = members.collect::<Option<Vec<Member>>>()?;
    let ordered = members.windows(2).all(|pair| pair[0].id < pair[1].id);
    (ordered && !members.is_empty() && members.len() <= MAX_NODES).then_some(members)
}

fn write_members(text: &mut String, members: &[Member]) {
    for Member { id, address } in members {
        // A path of a Unix socket may have others.
        let is_readable = |letter: char| letter != ' ' && !letter.is_control();
        let address = address.replace(|letter| !is_readable(letter), "_");
        text.push_str(&format!(" {id}={address}"));
    }
}

/// Encodes the script that writes `new` if the node has `expected`. The answer is what the node has
/// after that.
pub fn replace(out: &mut BytesMut, expected: Option<&Membership>, new: &Membership) {
    let expected = expected.map_or(String::new(), Membership::text);
    let (key, new) = (MEMBERS.as_bytes(), new.text());
    encode(out, &[b"EVAL", SCRIPT.as_bytes(), b"1", key, expected.as_bytes(), new.as_bytes()]);
}

/// Encodes the command that writes `new` if the node has `expected`, for a node that runs no
/// scripts. What the node has after that shows by a `GET`.
pub fn replace_without_script(out: &mut BytesMut, expected: Option<&Membership>, new: &Membership) {
    let (key, new) = (MEMBERS.as_bytes(), new.text());
    match expected.map(Membership::text) {
        Some(expected) => {
            encode(out, &[b"SET", key, new.as_bytes(), b"IFEQ", expected.as_bytes()]);
        }
        None => encode(out, &[b"SET", key, new.as_bytes(), b"NX"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(digit: u8, address: &str) -> Member {
        Member { id: MemberId([digit; DIGITS]), address: address.into() }
    }

    /// A member whose id has this number at its end.
    fn numbered(number: usize) -> Member {
        let id = MemberId::read(&format!("{number:016x}")).unwrap();
        Member { id, address: "a:1".into() }
    }

    fn list() -> MemberList {
        MemberList::first(vec![member(b'b', "b:2"), member(b'a', "a:1"), member(b'c', "c:3")])
    }

    #[test]
    fn membership_is_read_as_it_was_written() {
        for (stage, _) in STAGES {
            let mut membership = Membership::new(MemberId([b'b'; DIGITS]), stage, list());
            for step in 0..5 {
                let text = membership.text();
                let read = MembersState::read(text.as_bytes());
                assert_eq!(read, MembersState::Listed(membership.clone()), "{step}");
                let number = BallotNumber { count: 7, tool: u64::MAX - 1 };
                match step {
                    0 => membership.promised = Some(number),
                    3 => membership.mark = Some(0xfe),
                    1 => membership.accepted = Some((number, list().members)),
                    _ => membership.previous = vec![member(b'd', "d:4")],
                }
            }
        }
    }

    #[test]
    fn membership_that_makes_no_sense_is_none() {
        let membership = Membership::new(MemberId([b'b'; DIGITS]), Stage::Agreed, list());
        let text = membership.text();
        let returned = text.replace("agreed", "returned");
        let stranger = returned.replacen("1 bbbb", "1 dbbb", 1);
        let ballot = format!("{text} ; promised 7");
        let empty = format!("{text} ; accepted 7.1");
        let unknown = format!("{text} ; refused 7.1");
        let twice = format!("{text} {}=d:4", "c".repeat(DIGITS));
        let stage = text.replace("agreed", "decided");
        let control = text.replace("b:2", "b\u{1b}:2");
        let long: Vec<Member> = (0..=MAX_NODES).map(numbered).collect();
        let (id, list) = (long[0].id, MemberList::first(long));
        let long = Membership::new(id, Stage::Agreed, list).text();
        let format = text.replacen('1', "2", 1);
        for later in
            [control, long, stranger, twice, stage, ballot, empty, unknown, format, "7 any".into()]
        {
            assert_eq!(MembersState::read(later.as_bytes()), MembersState::Later, "{later}");
        }
        for other in ["", "apples", "1", "x 1"] {
            assert_eq!(MembersState::read(other.as_bytes()), MembersState::Unavailable, "{other}");
        }
    }

    #[test]
    fn lists_are_the_same_by_their_ids_alone() {
        let moved =
            MemberList::first(vec![member(b'c', "z:9"), member(b'b', "y:8"), member(b'a', "x:7")]);
        assert!(list().is_same_as(&moved));
        assert_ne!(list(), moved);
        let other = MemberList::first(vec![member(b'a', "a:1"), member(b'b', "b:2")]);
        assert!(!list().is_same_as(&other));
        let later = MemberList { epoch: 2, ..list() };
        assert!(!list().is_same_as(&later));
    }

    #[test]
    fn lists_are_adjacent_if_they_differ_by_one_node() {
        let of =
            |digits: &[u8]| MemberList::first(digits.iter().map(|&it| member(it, "a")).collect());
        for (other, adjacent) in
            [("abc", true), ("ab", true), ("abcd", true), ("abd", false), ("a", false)]
        {
            let other = of(other.as_bytes());
            assert_eq!(list().is_adjacent_to(&other), adjacent, "{other:?}");
            assert_eq!(other.is_adjacent_to(&list()), adjacent, "{other:?}");
        }
        let next = list().next(vec![member(b'd', "d:4"), member(b'a', "a:1")]);
        assert!(next.has_name_of(&list()) && !next.has_name_of(&of(b"ad")));
        assert_eq!((next.epoch(), next.quorum(), list().quorum()), (2, 2, 2));
    }
}
