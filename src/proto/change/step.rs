//! The parts of one step, in their order: read, vote, tell, wait, agree.
//!
//! The hazard is a step that begins before the one before it is agreed everywhere: then two lists
//! may be in use that share no majority. So a step that was begun is finished first, with its whole
//! wait.

use std::time::Duration;

use super::row::next_members;
use super::{Change, Event, Failure, Goal, Next, Replacement, Request};
use crate::proto::quorum::majority;
use crate::proto::time::Instant;
use crate::proto::wire::members::{
    BallotNumber, Member, MemberId, MemberList, MembersState, Membership, Stage,
};

/// The most ballots of one tool: each fails only if another tool votes at the same time.
const MOST_BALLOTS: u64 = 30;
/// The most rounds in which the members are told: one fails only if another tool writes.
const MOST_ROUNDS: u32 = 30;
/// The shortest pause after a ballot that another tool has overtaken.
const PAUSE: Duration = Duration::from_millis(50);

/// How far the step is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Read,
    Judge,
    /// Members that lag behind have got the present list.
    Choose(MemberList),
    /// This place becomes a learner.
    Learn(usize),
    Promise {
        number: BallotNumber,
        list: MemberList,
    },
    Accept {
        number: BallotNumber,
        list: MemberList,
        chosen: Vec<Member>,
    },
    Tell {
        list: MemberList,
        previous: Vec<Member>,
        round: u32,
    },
    Wait {
        told: Told,
        until: Instant,
    },
    /// All places are read again after the wait.
    Recheck(Told),
    Settle {
        list: MemberList,
    },
}

/// What the members of the list before were told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Told {
    list: MemberList,
    previous: Vec<Member>,
    /// What these places had when the wait began.
    values: Vec<(usize, Membership)>,
}

impl Told {
    /// How many members of the list before have to be told, so that each of its majorities has one
    /// of them.
    fn needed(previous: &[Member]) -> usize {
        previous.len() - majority(previous.len()) + 1
    }
}

type Advance = Result<Option<Next>, Failure>;

fn has(members: &[Member], id: MemberId) -> bool {
    members.iter().any(|member| member.id == id)
}

fn are_same(one: &[Member], other: &[Member]) -> bool {
    one.len() == other.len() && one.iter().all(|member| has(other, member.id))
}

impl Change {
    pub(super) fn advance(&mut self, now: Instant) -> Advance {
        match self.phase.clone() {
            Phase::Read => {
                self.phase = Phase::Judge;
                Ok(Some(self.read_all()))
            }
            Phase::Judge => self.judge(),
            Phase::Choose(list) => self.choose(&list),
            Phase::Learn(place) => self.learn(place),
            Phase::Promise { number, list } => self.count_promises(number, list),
            Phase::Accept { number, list, chosen } => self.count_votes(number, &list, chosen),
            Phase::Tell { list, previous, round } => self.tell(list, previous, round, now),
            Phase::Wait { told, until } if now >= until => {
                self.phase = Phase::Recheck(told);
                Ok(Some(self.read_all()))
            }
            Phase::Recheck(told) => self.settle_if_kept(told),
            Phase::Wait { until, .. } => Ok(Some(Next::Wait(until))),
            Phase::Settle { list } => {
                let is_settled = self.memberships().any(|(_, it)| {
                    let agreed = it.stage == Stage::Agreed && it.list.is_same_as(&list);
                    agreed || it.list.epoch() > list.epoch()
                });
                if !is_settled {
                    return Err(self.no_quorum(0, 1, &list));
                }
                self.events.push(Event::Agreed(list));
                self.phase = Phase::Read;
                Ok(None)
            }
        }
    }

    fn read_all(&self) -> Next {
        let read = |place| Request { place, write: None };
        Next::Ask((0..self.places.len()).map(read).collect())
    }

    /// After the wait: the list is agreed, unless too few members have kept what they were told. A
    /// node that lost its data in the wait may have got the list before back from a client, and
    /// such a client would count it. Then all are told again, and the wait begins anew.
    fn settle_if_kept(&mut self, told: Told) -> Advance {
        let Told { list, previous, values } = told;
        let is_over = |it: &Membership| {
            it.list.epoch() > list.epoch() || it.list.is_same_as(&list) && it.stage == Stage::Agreed
        };
        if self.memberships().any(|(_, it)| is_over(it)) {
            // Another tool has ended the wait.
            self.phase = Phase::Read;
            return Ok(None);
        }
        let has_kept =
            |(place, value): &&(usize, Membership)| self.places[*place].listed() == Some(value);
        if values.iter().filter(has_kept).count() < Told::needed(&previous) {
            self.phase = Phase::Tell { list, previous, round: 0 };
            return Ok(None);
        }
        let is_told = |it: &Membership| it.stage == Stage::Told && it.list.is_same_as(&list);
        let asked = self.write(|it| (is_told(it) && it.is_member()).then(|| it.settled(&list)));
        self.phase = Phase::Settle { list };
        Ok(Some(asked))
    }

    /// The places that have a list, and answered the last question.
    fn memberships(&self) -> impl Iterator<Item = (usize, &Membership)> {
        let listed = self.places.iter().enumerate();
        listed.filter_map(|(place, found)| Some((place, found.listed()?)))
    }

    /// Writes to each place that has a list, where there is something to write.
    fn write(&self, new: impl Fn(&Membership) -> Option<Membership>) -> Next {
        let request = |(place, membership): (usize, &Membership)| {
            let write = Replacement { expected: Some(membership.clone()), new: new(membership)? };
            Some(Request { place, write: Some(write) })
        };
        Next::Ask(self.memberships().filter_map(request).collect())
    }

    fn no_quorum(&self, voters: usize, needed: usize, list: &MemberList) -> Failure {
        Failure::NoQuorum { voters, needed, epoch: list.epoch() }
    }

    /// Finds the present list. Finishes the step to it, if that is not agreed.
    fn judge(&mut self) -> Advance {
        let list = self.present()?;
        let at_epoch = |it: &&Membership| it.list.epoch() == list.epoch();
        let present = || self.memberships().map(|(_, it)| it).filter(at_epoch);
        // A node becomes a learner only while the list is agreed.
        let agreed = present().any(|it| matches!(it.stage, Stage::Agreed | Stage::Learner));
        let is_first = list.epoch() == 1;
        let all_have_it =
            list.members().iter().all(|member| present().any(|it| it.id == member.id));
        if !agreed && is_first && !all_have_it {
            return Err(Failure::NotAgreed);
        }
        if !agreed && !is_first {
            let previous = present().map(|it| &it.previous).find(|it| !it.is_empty());
            let previous = previous.ok_or(Failure::PreviousUnknown)?.clone();
            if self.goal == Goal::Undo && self.undo_to.is_none() {
                self.undo_to = Some(previous.clone());
            }
            self.events.push(Event::Decided(list.clone()));
            self.phase = Phase::Tell { list, previous, round: 0 };
            return Ok(None);
        }
        self.need_voters(&list)?;
        if self.is_at_goal(&list)? {
            self.expected = None;
        } else if let Some(expected) = &self.expected {
            let is_own =
                list.epoch() == expected.epoch() + 1 && are_same(list.members(), &self.proposal);
            if !list.is_same_as(expected) && !is_own {
                return Err(Failure::OtherToolWon(list));
            }
        }
        self.phase = Phase::Choose(list.clone());
        Ok(Some(self.write(|it| {
            let is_behind = it.list.epoch() < list.epoch();
            let is_open = matches!(it.stage, Stage::Told | Stage::Proposed);
            if !list.has(it.id) || !(is_behind || is_open) {
                return None;
            }
            // A learner may have lost its data as a member, and become a learner again by a write
            // that took long. So it does not vote on the next list.
            let learnt = || Membership::new(it.id, Stage::Returned, list.clone());
            Some(if it.stage == Stage::Learner { learnt() } else { it.settled(&list) })
        })))
    }

    /// The list with the greatest epoch.
    fn present(&self) -> Result<MemberList, Failure> {
        let later = |found: &super::Found| found.reached && found.state == MembersState::Later;
        if let Some(place) = self.places.iter().position(later) {
            return Err(Failure::LaterVersion(place));
        }
        for (place, found) in self.places.iter().enumerate().filter(|(_, it)| it.reached) {
            let run_id = found.place.run_id.filter(|_| found.reached);
            let own_id = found.listed().map(|it| it.id);
            let is_same = |other: &super::Found| {
                let one_process = run_id.is_some() && other.place.run_id == run_id;
                one_process || own_id.is_some() && other.listed().map(|it| it.id) == own_id
            };
            let before = self.places[..place].iter().position(|it| it.reached && is_same(it));
            if let Some(before) = before {
                return Err(Failure::SameServer(before, place));
            }
        }
        let sharing = |list: &MemberList| {
            self.memberships().filter(|(_, it)| it.list.has_name_of(list)).count()
        };
        let latest = self.memberships().map(|(_, it)| &it.list);
        let latest = latest.max_by_key(|list| (sharing(list), list.epoch()));
        let list = latest.ok_or(Failure::NoList)?;
        let is_other = |it: &Membership| {
            let same_epoch = it.list.epoch() == list.epoch();
            !it.list.has_name_of(list) || same_epoch && !it.list.is_same_as(list)
        };
        match self.memberships().find(|(_, it)| is_other(it)) {
            Some((place, _)) => Err(Failure::OtherList(place)),
            None => Ok(list.clone()),
        }
    }

    /// Refuses if too few members can vote, before anything is written.
    fn need_voters(&self, list: &MemberList) -> Result<(), Failure> {
        // A member that lags behind votes after it was told the present list.
        let may_vote = |it: &Membership| {
            let is_behind = it.list.epoch() < list.epoch() && it.stage != Stage::Learner;
            it.has_vote_after(list) || is_behind && list.has(it.id)
        };
        let voters = self.memberships().filter(|(_, it)| may_vote(it)).count();
        if voters < list.quorum() && !self.is_at_goal(list)? {
            return Err(self.no_quorum(voters, list.quorum(), list));
        }
        Ok(())
    }

    fn is_at_goal(&self, list: &MemberList) -> Result<bool, Failure> {
        self.wanted(list).map(|wanted| wanted.is_none())
    }

    /// The members of the next list; `None` if the goal is reached.
    fn wanted(&self, list: &MemberList) -> Result<Option<Vec<Member>>, Failure> {
        let answers = |id: MemberId| self.memberships().any(|(_, it)| it.id == id);
        let leftover = || {
            let votes = self.memberships().filter(|(_, it)| it.has_vote_after(list));
            votes.filter_map(|(_, it)| it.accepted.clone()).max_by_key(|(number, _)| *number)
        };
        Ok(match (&self.goal, &self.undo_to) {
            (Goal::To(places), _) => {
                let wanted = self.members_at(places, list)?;
                next_members(list.members(), &wanted, answers)
            }
            (Goal::Resume, _) => leftover().map(|(_, members)| members),
            // Nothing is decided yet: the same list once more replaces what was voted for.
            (Goal::Undo, None) => leftover().map(|_| list.members().to_vec()),
            (Goal::Undo, Some(back)) => next_members(list.members(), back, answers)
                .or_else(|| leftover().map(|_| list.members().to_vec())),
        })
    }

    /// The members at the places of the wanted list.
    fn members_at(&self, places: &[usize], list: &MemberList) -> Result<Vec<Member>, Failure> {
        let member = |&place: &usize| {
            let found = &self.places[place];
            let id = found.id(list).ok_or(Failure::Unreached(place))?;
            let listed = list.members().iter().find(|member| member.id == id).cloned();
            Ok(listed.unwrap_or_else(|| Member { id, address: found.place.address.clone() }))
        };
        let members = places.iter().map(member).collect::<Result<Vec<Member>, Failure>>()?;
        if members.iter().any(|member| list.has(member.id)) {
            return Ok(members);
        }
        Err(Failure::NothingKept)
    }

    /// Chooses the next list, prepares the node that joins, and begins a ballot.
    fn choose(&mut self, list: &MemberList) -> Advance {
        let Some(wanted) = self.wanted(list)? else { return Ok(Some(Next::Done(list.clone()))) };
        if self.goal == Goal::Undo && self.undo_to.is_none() {
            self.undo_to = Some(list.members().to_vec());
        }
        let joins = wanted.iter().find(|member| !list.has(member.id));
        if let Some(joins) = joins.filter(|_| self.goal != Goal::Resume) {
            let is_it = |found: &super::Found| found.reached && found.id(list) == Some(joins.id);
            let place = self.places.iter().position(is_it);
            let Some(place) = place else {
                let at = |it: &super::Found| it.place.address == joins.address;
                return Err(Failure::Unreached(self.places.iter().position(at).unwrap_or(0)));
            };
            if let Some(next) = self.prepare(place, joins.id, list)? {
                return Ok(Some(next));
            }
        }
        let votes: Vec<&Membership> =
            self.memberships().map(|(_, it)| it).filter(|it| it.has_vote_after(list)).collect();
        if votes.len() < list.quorum() {
            return Err(self.no_quorum(votes.len(), list.quorum(), list));
        }
        if self.ballots >= MOST_BALLOTS {
            return Err(Failure::OtherToolBusy);
        }
        let accepted = |it: &Membership| it.accepted.as_ref().map(|(number, _)| number.count);
        let counts = votes.iter().flat_map(|it| [it.promised.map(|it| it.count), accepted(it)]);
        let count = counts.flatten().max().unwrap_or(0).saturating_add(1);
        // What was accepted before this tool began is finished first, and is no other tool's win.
        let has_leftover = votes.iter().any(|it| it.accepted.is_some());
        let is_first = self.expected.is_none() && self.ballots == 0;
        self.expected = if is_first && has_leftover { None } else { Some(list.clone()) };
        self.ballots += 1;
        self.proposal = wanted;
        let number = BallotNumber { count, tool: self.tool };
        self.phase = Phase::Promise { number, list: list.clone() };
        Ok(Some(self.write(|it| it.promise(number).filter(|_| it.has_vote_after(list)))))
    }

    /// Makes the place a learner that the restart guard trusts; `None` if it is one.
    fn prepare(
        &mut self,
        place: usize,
        id: MemberId,
        list: &MemberList,
    ) -> Result<Option<Next>, Failure> {
        let found = &self.places[place];
        let is_learner = found.listed().is_some_and(|it| it.stage == Stage::Learner);
        if is_learner && found.trusted {
            return Ok(None);
        }
        if !is_learner && !matches!(found.state, MembersState::Blank | MembersState::Listed(_)) {
            return Err(Failure::Unreached(place));
        }
        self.phase = Phase::Learn(place);
        if is_learner {
            return Ok(Some(Next::Ask(Vec::new())));
        }
        let (expected, new) = (found.listed().cloned(), Membership::learner(id, list));
        let write = Some(Replacement { expected, new });
        Ok(Some(Next::Ask(vec![Request { place, write }])))
    }

    fn learn(&mut self, place: usize) -> Advance {
        let found = &self.places[place];
        let is_learner = found.listed().is_some_and(|it| it.stage == Stage::Learner);
        if !found.reached {
            return Err(Failure::Unreached(place));
        }
        if is_learner && !found.trusted {
            return Ok(Some(Next::Quarantine(place)));
        }
        // Other tools may have gone on during the quarantine, or written something else here.
        self.phase = Phase::Read;
        Ok(if is_learner { None } else { Some(self.pause()) })
    }

    fn count_promises(&mut self, number: BallotNumber, list: MemberList) -> Advance {
        let has_promised =
            |it: &Membership| it.has_vote_after(&list) && it.promised == Some(number);
        let promised: Vec<&Membership> =
            self.memberships().map(|(_, it)| it).filter(|it| has_promised(it)).collect();
        if promised.len() < list.quorum() {
            return self.lost_ballot(&list);
        }
        // If an earlier ballot has decided already, one of these nodes has its value.
        let earlier = promised.iter().filter_map(|it| it.accepted.as_ref());
        let earlier = earlier.max_by_key(|(number, _)| *number).map(|(_, members)| members.clone());
        let chosen = earlier.unwrap_or_else(|| self.proposal.clone());
        let asked =
            self.write(|it| it.accept(number, &sorted(&chosen)).filter(|_| has_promised(it)));
        self.phase = Phase::Accept { number, list, chosen: sorted(&chosen) };
        Ok(Some(asked))
    }

    fn count_votes(
        &mut self,
        number: BallotNumber,
        list: &MemberList,
        chosen: Vec<Member>,
    ) -> Advance {
        let has_voted = |it: &Membership| {
            let accepted = it.accepted.as_ref().map(|(accepted, _)| *accepted);
            it.has_vote_after(list) && accepted == Some(number)
        };
        if self.memberships().filter(|(_, it)| has_voted(it)).count() < list.quorum() {
            return self.lost_ballot(list);
        }
        let next = list.next(chosen);
        self.events.push(Event::Decided(next.clone()));
        self.phase = Phase::Tell { list: next, previous: list.members().to_vec(), round: 0 };
        Ok(None)
    }

    /// Begins anew after a pause, if only another tool was in the way.
    fn lost_ballot(&mut self, list: &MemberList) -> Advance {
        let is_later = |it: &Membership| it.list.epoch() > list.epoch();
        let may_vote = |it: &Membership| it.has_vote_after(list);
        let voters = self.memberships().filter(|(_, it)| may_vote(it) || is_later(it)).count();
        if voters < list.quorum() && !self.memberships().any(|(_, it)| is_later(it)) {
            return Err(self.no_quorum(voters, list.quorum(), list));
        }
        self.phase = Phase::Read;
        Ok(Some(self.pause()))
    }

    /// A pause that differs from that of another tool.
    fn pause(&self) -> Next {
        let drawn = (self.tool ^ self.ballots.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let times = 1 << self.ballots.min(5);
        Next::Pause(PAUSE + PAUSE * u32::try_from(drawn >> 32).unwrap_or(0).rem_euclid(times))
    }

    /// Tells the list: first to the node that joins, then to all others.
    fn tell(
        &mut self,
        list: MemberList,
        previous: Vec<Member>,
        round: u32,
        now: Instant,
    ) -> Advance {
        let is_behind = |it: &Membership| it.list.epoch() < list.epoch();
        let is_told = |it: &Membership| has(&previous, it.id) && !is_behind(it);
        let mark = self.tool ^ (self.tells + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let asked = self.write(|it| {
            let concerned = if round == 0 { !has(&previous, it.id) } else { has(&previous, it.id) };
            let concerned = concerned && (list.has(it.id) || has(&previous, it.id));
            (concerned && is_behind(it)).then(|| it.told(&list, &previous, mark))
        });
        let is_open = asked != Next::Ask(Vec::new());
        self.tells += u64::from(is_open);
        if round == 0 || is_open && round < MOST_ROUNDS {
            self.phase = Phase::Tell { list, previous, round: round + 1 };
            return Ok(Some(asked));
        }
        let values = self.memberships().filter(|(_, it)| is_told(it));
        let values: Vec<_> = values.map(|(place, it)| (place, it.clone())).collect();
        let needed = Told::needed(&previous);
        if values.len() < needed {
            return Err(self.no_quorum(values.len(), needed, &list));
        }
        let told = self.memberships().filter(|(_, it)| !is_behind(it)).map(|it| it.0).collect();
        let left = previous.iter().find(|member| !list.has(member.id)).cloned();
        self.events.push(Event::Told { list: list.clone(), told, left });
        let until = now.saturating_add(self.wait);
        self.phase = Phase::Wait { told: Told { list, previous, values }, until };
        Ok(None)
    }
}

fn sorted(members: &[Member]) -> Vec<Member> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members
}
