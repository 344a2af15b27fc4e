//! Changes the list of masters that the nodes keep, one node at a time, while locks are held. A
//! [`Change`] is a state machine without a socket and without a clock: it returns what to ask the
//! nodes next, and takes their answers.
//!
//! A step from one list to the next is decided by ballots among the members, as in Paxos, told to
//! the members, and agreed after a wait, in which all clients have noticed it. Any number of tools
//! may run, stop at any point, and run again. The hazard is a value that another tool has written
//! in between: so every write names the value that it replaces.

mod row;
mod step;
mod texts;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::proto::node_set::MAX_NODES;
use crate::proto::settings::RestartGuard;
use crate::proto::time::Instant;
use crate::proto::wire::marker::ID_DIGITS;
use crate::proto::wire::members::{LEASE, Member, MemberId, MemberList, MembersState, Membership};

/// An address that the tool can ask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The address, as it is written into the list.
    pub address: Box<str>,
    /// The `run_id` of the server there, if it answered.
    pub run_id: Option<[u8; ID_DIGITS]>,
}

/// What a change is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Goal {
    /// The list of these places. New nodes are added in this order.
    To(Vec<usize>),
    /// Finish a step that was begun.
    Resume,
    /// Go back to the list before the step that was begun.
    Undo,
}

/// A question to a node: read its list, or replace it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which place to ask.
    pub place: usize,
    /// What to write; `None`: only read.
    pub write: Option<Replacement>,
}

/// A write in the place of a known value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replacement {
    /// What the node has to have; `None`: nothing.
    pub expected: Option<Membership>,
    /// What it has after that.
    pub new: Membership,
}

/// What the driver of a [`Change`] does next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Next {
    /// Ask all of these, and pass each result to [`Change::answered`].
    Ask(Vec<Request>),
    /// Wait until the restart guard trusts this place, and call [`Change::trusted`].
    Quarantine(usize),
    /// Call again at this moment.
    Wait(Instant),
    /// Call again after this pause: another tool is at work.
    Pause(Duration),
    /// The goal is reached, with this list.
    Done(MemberList),
    /// The goal is not reached.
    Failed(Failure),
}

/// Why the goal is not reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No place has a list.
    NoList,
    /// Not all members of the first list are known to have it.
    NotAgreed,
    /// A later version of redlatch wrote the list of this place.
    LaterVersion(usize),
    /// This place has another list than the others.
    OtherList(usize),
    /// These two places are one server, or one has a copy of the other's data.
    SameServer(usize, usize),
    /// No server of the wanted list is in the present one.
    NothingKept,
    /// A place of the wanted list could not be asked.
    Unreached(usize),
    /// Too few members of the present list could be asked, or may vote.
    NoQuorum {
        /// How many may vote.
        voters: usize,
        /// How many are needed.
        needed: usize,
        /// The epoch that stays, or that is not agreed yet.
        epoch: u64,
    },
    /// A step was begun, and no place has the list before it any more.
    PreviousUnknown,
    /// Another tool changed the list to this one.
    OtherToolWon(MemberList),
    /// Another tool kept this one from its votes for too long.
    OtherToolBusy,
}

/// What happened, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// This list comes next; it cannot be taken back, only changed again.
    Decided(MemberList),
    /// Enough nodes were told the list, and the wait has begun.
    Told {
        /// The list.
        list: MemberList,
        /// The places that were told.
        told: Vec<usize>,
        /// The node that left.
        left: Option<Member>,
    },
    /// All clients count by this list.
    Agreed(MemberList),
}

/// A place, and what it said last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Found {
    place: Place,
    state: MembersState,
    /// It answered the last question.
    reached: bool,
    /// Its quarantine has passed.
    trusted: bool,
    /// What it was asked to write, until it answers.
    writing: Option<Replacement>,
}

impl Found {
    fn listed(&self) -> Option<&Membership> {
        self.state.listed().filter(|_| self.reached)
    }

    /// The id of the node in this list, or the one that it gets when it joins.
    fn id(&self, list: &MemberList) -> Option<MemberId> {
        let of_process = self.place.run_id.as_ref().map(MemberId::of_run_id);
        let listed = list.id_at(&self.place.address);
        match (&self.state, self.reached) {
            (MembersState::Listed(membership), _) => Some(membership.id),
            (MembersState::Blank, true) => {
                of_process.filter(|&id| list.has(id)).or(listed).or(of_process)
            }
            _ => listed,
        }
    }
}

/// A change of the list, from what the nodes have to its goal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Change {
    places: Vec<Found>,
    goal: Goal,
    wait: Duration,
    tool: u64,
    phase: step::Phase,
    ballots: u64,
    /// How often members were told.
    tells: u64,
    /// The list that this tool counts on.
    expected: Option<MemberList>,
    /// The members that this tool proposed last.
    proposal: Vec<Member>,
    /// Where an undo goes back to.
    undo_to: Option<Vec<Member>>,
    events: Vec<Event>,
}

impl Change {
    /// A change that has asked nothing yet. `wait` is [`Change::wait_of`] outside of tests; `tool`
    /// is a random number.
    pub fn new(places: Vec<Place>, goal: Goal, wait: Duration, tool: u64) -> Change {
        let found = |place| Found {
            place,
            state: MembersState::Unavailable,
            reached: false,
            trusted: false,
            writing: None,
        };
        Change {
            places: places.into_iter().map(found).collect(),
            goal,
            wait,
            tool,
            phase: step::Phase::Read,
            ballots: 0,
            tells: 0,
            expected: None,
            proposal: Vec::new(),
            undo_to: None,
            events: Vec::new(),
        }
    }

    /// How long a step waits between told and agreed: until no client counts by the earlier list.
    pub fn wait_of(max_ttl: Duration) -> Duration {
        RestartGuard::quarantine(max_ttl).saturating_add(LEASE)
    }

    /// The most places that a list can have.
    pub const MOST: usize = MAX_NODES;

    /// What to do next. Whatever was asked has to be answered before.
    pub fn next(&mut self, now: Instant) -> Next {
        loop {
            match self.advance(now) {
                Ok(Some(Next::Ask(requests))) if requests.is_empty() => {}
                Ok(Some(Next::Ask(requests))) => {
                    for Request { place, write } in &requests {
                        self.places[*place].writing.clone_from(write);
                    }
                    return Next::Ask(requests);
                }
                Ok(Some(next)) => return next,
                Ok(None) => {}
                Err(failure) => return Next::Failed(failure),
            }
        }
    }

    /// Takes what a place has after a request; `None` if it could not be asked, or did not answer.
    pub fn answered(&mut self, place: usize, answer: Option<MembersState>) {
        let found = &mut self.places[place];
        let writing = found.writing.take();
        found.reached = answer.is_some();
        let Some(state) = answer else { return };
        // A value that is read as the expected one and that the node does not take for it cannot be
        // replaced.
        let is_stuck = writing.is_some_and(|Replacement { expected, new }| {
            expected.is_some() && state.listed() == expected.as_ref() && expected != Some(new)
        });
        found.state = if is_stuck { MembersState::Unavailable } else { state };
    }

    /// Notes that the restart guard trusts this place.
    pub fn trusted(&mut self, place: usize) {
        self.places[place].trusted = true;
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
