//! Which nodes belong to the list of masters that the nodes themselves keep
//! ([`crate::proto::wire::members`]). A node counts for this client only if it is in that list, and
//! a majority is one of that list, however many nodes the client was made with.
//!
//! The hazard is a vote before the list is known: two clients whose lists share a node could both
//! hold. So a node that has passed the handshake waits until the list is known. If no node has
//! a list, the client proposes one, to one node after the other in the order of their ids: of two
//! proposals that share a node at most one can reach all its nodes. Where not all nodes can be
//! reached, no list can be agreed, and the nodes count without one.
//!
//! The list is changed by one node at a time ([`crate::proto::change`]). The client follows when a
//! member of its own list has a later one. It reads the list of each node again and again, because
//! a client that counts by a list two steps older than another client's could hold the same lock.

// The part of `std::net` that knows no socket.
use core::net::IpAddr;

use crate::proto::cluster::node::Node;
use crate::proto::cluster::state::NodeState;
use crate::proto::cluster::{Cluster, Due};
use crate::proto::error::NodeError;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::waiting::NEVER;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::handshake::{Fact, Step, forbids_a_marker};
use crate::proto::wire::members::{
    self, LEASE, Member, MemberId, MemberList, MembersState, Membership, Stage,
};

const LOST_PLACE: &str = "it lost its list of masters, and too few other members can be asked \
    whether the list was changed since; start the other masters";

const UNREADABLE: &str = "its list of masters cannot be read or written, and other masters have \
    one; allow the key redlatch:members there";

/// What the list says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// The node may be used.
    Counts,
    /// It is not known yet whether there is a list.
    Waits,
    /// The node lost its data, and gets its place in the list back. It may be used after that.
    Returns(Membership),
    /// The node may not be used: its list is not that of this client, as these words say.
    Refused(String),
    /// The node may not be used, because of the list of another node.
    RefusedForAnother(String),
}

/// Whether this address leads to another server on each machine: a Unix socket, or a port of the
/// machine itself. Behind Sentinels of the machine itself there may be another master on each.
fn is_local(address: &str) -> bool {
    let sentinels = address.strip_prefix("sentinel://").and_then(|rest| rest.split_once('/'));
    if let Some((hosts, _)) = sentinels {
        return hosts.split(',').any(is_local);
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.is_unspecified();
    address.starts_with("unix:") || host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(is_own)
}

impl Node {
    /// Whether the node has answered on the present connection which list it has.
    fn has_said_its_list(&self) -> bool {
        let open = self.state.is_usable() || self.state == NodeState::Suspect;
        (open || self.awaits_list) && self.members != MembersState::Unavailable
    }

    /// Whether what the node has as its list is known, also if it is about to be admitted.
    fn has_shown_its_list(&self) -> bool {
        self.has_said_its_list() || self.is_past_the_list
    }

    /// Whether the node was added to the list, and clients may still count by the previous list.
    fn is_joining(&self) -> bool {
        self.members.listed().is_some_and(|it| {
            let was_member = it.previous.iter().any(|member| member.id == it.id);
            it.is_member() && !it.previous.is_empty() && !was_member
        })
    }

    /// Whether the list was read so short a time ago that the node may be asked by it.
    fn has_fresh_list(&self, now: Instant) -> bool {
        self.list_asked_at.is_some_and(|asked| now < asked.saturating_add(LEASE))
    }

    /// Whether the first attempt to reach the node is still going on.
    pub(super) fn is_in_first_attempt(&self) -> bool {
        self.failures == 0 && self.known.is_none() && !self.awaits_list
    }
}

impl Cluster {
    /// The nodes that were added to the list while clients may still count by the previous list. If
    /// a waiter takes a key there, the holder of the lock cannot extend it if it needs the vote of
    /// that node.
    pub fn joining(&self) -> NodeSet {
        self.all_nodes().iter().filter(|node| self.nodes[node.index()].is_joining()).collect()
    }

    /// Takes note of what the node has as its list, in answer to the last question.
    pub(super) fn note_members(&mut self, node: NodeId, found: MembersState, now: Instant) {
        let asked_at = self.asked_at(node);
        let entry = &mut self.nodes[node.index()];
        if let Some(listed) = found.listed().filter(|it| it.is_settled()) {
            entry.member.get_or_insert(listed.id);
        }
        entry.members = found;
        entry.has_other_list = false;
        entry.list_asked_at = Some(asked_at);
        entry.list_is_old = asked_at.saturating_add(LEASE) <= now;
        self.count_leases();
    }

    /// Finds the moment at which the first of the lists that were read is too old.
    pub(super) fn count_leases(&mut self) {
        let checked =
            |entry: &&Node| !entry.list_is_old && entry.members != MembersState::Unavailable;
        let asked = self.nodes.iter().filter(checked).filter_map(|entry| entry.list_asked_at);
        self.lists_until = asked.min().map_or(NEVER, |asked| asked.saturating_add(LEASE));
        self.awaits_lists = self.nodes.iter().any(|entry| entry.list_is_old);
    }

    /// Called before nodes are asked. Holds back those whose list was read too long ago, for
    /// example because this process did not run. Returns whether any node is held back.
    #[inline]
    pub fn check_lists(&mut self, now: Instant) -> bool {
        if now >= self.lists_until {
            self.hold_back_old_lists(now);
        }
        self.awaits_lists
    }

    #[cold]
    fn hold_back_old_lists(&mut self, now: Instant) {
        for node in self.all_nodes().iter() {
            let entry = &mut self.nodes[node.index()];
            let is_checked = entry.members != MembersState::Unavailable && !entry.list_is_old;
            if !is_checked || entry.has_fresh_list(now) {
                continue;
            }
            entry.list_is_old = true;
            if entry.state.is_usable() {
                self.suspect(node, now);
            }
            self.ask_for_list(node, now);
        }
        self.count_leases();
    }

    /// Asks the node for its list, whatever its state is.
    fn ask_for_list(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        if entry.has_said_its_list() {
            let ask = Ask::Node(NodeAsk::Probe(Step::Members));
            let words: &[&[u8]] = &[b"GET", members::MEMBERS.as_bytes()];
            entry.connection.ask(ask, now, |out| command::encode(out, words));
            self.watch_for_silence(node, now);
        }
    }

    /// What the last answer about the list says.
    pub(super) fn members_answered(&mut self, node: NodeId) -> MembersState {
        let connection = &mut self.nodes[node.index()].connection;
        match connection.fact() {
            Fact::Members => connection.take_members(),
            _ => MembersState::Unavailable,
        }
    }

    /// Acts on the answer to the script that writes the list.
    pub(super) fn on_list_written(&mut self, node: NodeId, now: Instant) {
        let found = self.members_answered(node);
        let entry = &mut self.nodes[node.index()];
        entry.listing = false;
        // A value that the client reads as the one that it expected, and that the script does not
        // find to be that one, cannot be replaced.
        let stuck = found == entry.members && entry.members != MembersState::Blank;
        self.note_members(node, if stuck { MembersState::Unavailable } else { found }, now);
        self.agree_on_members(now);
    }

    /// Acts on the list that a probe has read.
    pub(super) fn on_members_probed(&mut self, node: NodeId, now: Instant) {
        let fact = self.nodes[node.index()].connection.fact();
        let busy = matches!(fact, Fact::Refused(cause) if !forbids_a_marker(cause));
        if !self.nodes[node.index()].listing && !busy {
            let found = self.members_answered(node);
            self.note_members(node, found, now);
            self.agree_on_members(now);
        }
    }

    /// The node forgot its keys, the list among them.
    pub(super) fn on_members_flushed(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        if entry.has_said_its_list() {
            (entry.members, entry.has_other_list) = (MembersState::Blank, false);
            self.agree_on_members(now);
        }
    }

    /// Whether the node, which has passed the handshake, has to wait for the list. Later
    /// [`agree_on_members`](Cluster::agree_on_members) decides about it.
    pub(super) fn waits_for_the_list(&mut self, node: NodeId, now: Instant) -> bool {
        let entry = &self.nodes[node.index()];
        if !self.settings.checks_members() || entry.is_past_the_list {
            return false;
        }
        let entry = &mut self.nodes[node.index()];
        if entry.handshake.vetted().info.identity.run_id.is_none() {
            // Without a `run_id` the node has no id.
            entry.members = MembersState::Unavailable;
        }
        entry.awaits_list = true;
        self.timers.clear_in(&mut entry.connecting);
        let timeout = self.settings.connect_timeout;
        entry.connecting = Some(self.timers.set_after(now, timeout, Due::Connecting(node)));
        true
    }

    /// Whether a node is let in as soon as the caller has taken out the changes: several nodes may
    /// have waited for the list.
    pub fn is_about_to_admit(&self) -> bool {
        let is_it = |entry: &Node| entry.state == NodeState::Handshake && entry.is_past_the_list;
        self.nodes.iter().any(is_it)
    }

    /// Ends the wait of a node for the list, because other nodes took too long to answer.
    pub(super) fn stop_waiting_for_the_list(&mut self, node: NodeId, now: Instant) {
        if self.has_lost_its_place(node) {
            self.refuse_for_its_list(node, LOST_PLACE.into(), now);
        } else {
            self.pass_the_list(node, now);
        }
        self.agree_on_members(now);
    }

    /// Decides about all nodes, after anything was learned about one of them.
    pub(super) fn agree_on_members(&mut self, now: Instant) {
        if !self.settings.checks_members() {
            return;
        }
        // The last node of a proposal makes it the list, and a node that is refused may decide
        // about the others.
        loop {
            self.learn_the_list();
            self.follow(now);
            self.propose(now);
            let decided = self.all_nodes().iter().any(|node| self.act_on_verdict(node, now));
            if !decided {
                return;
            }
        }
    }

    /// Takes over the list that all its members had, if there is one and none is known yet.
    fn learn_the_list(&mut self) {
        let agreed = |entry: &Node| match entry.members.listed() {
            Some(listed) if listed.is_settled() && entry.has_said_its_list() => {
                Some(listed.list.clone())
            }
            _ => None,
        };
        if self.list.is_none() {
            self.list = self.nodes.iter().find_map(agreed);
        }
        if self.list.is_none() && self.have_all_the_same_proposal() {
            self.list = self.nodes[0].members.listed().map(|listed| listed.list.clone());
        }
    }

    /// Goes on to the latest list that members of the present one have.
    fn follow(&mut self, now: Instant) {
        while let Some(next) = self.later_list() {
            let Some(list) = self.list.replace(next) else { return };
            for node in self.all_nodes().iter() {
                let entry = &mut self.nodes[node.index()];
                let listed = entry.members.listed().map(|listed| listed.id);
                let id = entry.member.or(listed);
                let added = |id| !list.has(id) && self.list.as_ref().is_some_and(|it| it.has(id));
                if id.is_none_or(added) {
                    entry.joined = Some(now);
                }
                (entry.is_outside, entry.list_floor) = (false, None);
                if entry.last_error == NodeError::OtherList {
                    // The node was refused because of the previous list. By this list it may be
                    // used.
                    (entry.last_error, entry.words) = (NodeError::Unreachable, "".into());
                }
                if entry.state == NodeState::Rejected(NodeError::OtherList) {
                    self.timers.clear_in(&mut entry.connecting);
                    self.connect(node, now);
                }
            }
        }
        self.count_voters();
    }

    /// A list that a member of the present one has, and that was made from it by changes.
    fn later_list(&self) -> Option<MemberList> {
        let list = self.list.as_ref()?;
        let listed = self.nodes.iter().filter(|entry| entry.has_shown_its_list());
        let listed = listed.filter_map(|entry| entry.members.listed());
        let is_later = |it: &&Membership| {
            it.list.has_name_of(list) && it.list.epoch() > list.epoch() && list.has(it.id)
        };
        listed.filter(is_later).map(|it| &it.list).max_by_key(|it| it.epoch()).cloned()
    }

    /// Whether the list that is known has ever been changed.
    pub(super) fn has_changed_list(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.epoch() > 1)
    }

    /// Counts a majority by the list that is known.
    fn count_voters(&mut self) {
        if let Some(list) = &self.list {
            self.quorum = list.quorum();
            let outside = |node: &NodeId| self.nodes[node.index()].is_outside;
            let inside: NodeSet = self.all_nodes().iter().filter(|node| !outside(node)).collect();
            // If these are fewer than a quorum, all nodes vote. The nodes outside the list then
            // vote against at once, so that a request does not wait for the others.
            let decides = inside.len() >= self.quorum;
            self.voters = if decides { inside } else { self.all_nodes() };
        }
    }

    /// Whether each node has the same proposal, of just these nodes.
    fn have_all_the_same_proposal(&self) -> bool {
        let Some(first) = self.nodes[0].members.listed() else { return false };
        let fits = |node: NodeId| {
            let entry = &self.nodes[node.index()];
            let listed = entry.members.listed().filter(|_| entry.has_said_its_list());
            listed.is_some_and(|listed| {
                listed.list.is_same_as(&first.list) && !self.is_taken(listed.id, node)
            })
        };
        first.list.members().len() == self.size() && self.all_nodes().iter().all(fits)
    }

    /// Proposes a list to the next node, if no list is known and all nodes can be asked.
    fn propose(&mut self, now: Instant) {
        let all_said = self.nodes.iter().all(Node::has_said_its_list);
        let busy = self.nodes.iter().any(|entry| entry.listing);
        let troubled = self.nodes.iter().any(|entry| entry.has_other_list);
        if self.list.is_some() || !all_said || busy || troubled {
            return;
        }
        let proposal = self.nodes.iter().find_map(|entry| entry.members.listed());
        let list = proposal.map_or_else(|| self.list_of_these(), |listed| listed.list.clone());
        let blank = |node: &NodeId| self.nodes[node.index()].members == MembersState::Blank;
        let with_id = |node: NodeId| Some((self.id_for(node, &list)?, node));
        let next = self.all_nodes().iter().filter(blank).filter_map(with_id).min();
        if let Some((id, node)) = next {
            self.write_list(node, Membership::new(id, Stage::Proposed, list), now);
        }
    }

    /// The list of the nodes of this client.
    fn list_of_these(&self) -> MemberList {
        let members = self.all_nodes().iter().filter_map(|node| {
            let address = self.settings.nodes[node.index()].label.clone();
            Some(Member { id: self.new_id(node)?, address })
        });
        MemberList::first(members.collect())
    }

    /// The id of a node that is in no list.
    fn new_id(&self, node: NodeId) -> Option<MemberId> {
        let vetted = self.nodes[node.index()].handshake.vetted();
        vetted.info.identity.run_id.as_ref().map(MemberId::of_run_id)
    }

    /// The id that a node without a list has in this list: its process has it, or this client saw
    /// it there, or the list has it at this address. A local address is no proof, because it leads
    /// to one server on each machine; where all addresses are local, the machines share no server.
    fn id_for(&self, node: NodeId, list: &MemberList) -> Option<MemberId> {
        let label = &self.settings.nodes[node.index()].label;
        let all_local = list.members().iter().all(|member| is_local(&member.address));
        let at_address = list.id_at(label).filter(|_| all_local || !is_local(label));
        let seen = self.nodes[node.index()].member;
        let ids = [self.new_id(node), seen, at_address].into_iter().flatten();
        ids.filter(|&id| list.has(id)).find(|&id| !self.is_taken(id, node))
    }

    /// Whether a node other than this one has the id.
    fn is_taken(&self, id: MemberId, except: NodeId) -> bool {
        self.all_nodes().iter().any(|other| {
            let entry = &self.nodes[other.index()];
            let listed = entry.members.listed().filter(|_| entry.has_shown_its_list());
            other != except && listed.is_some_and(|listed| listed.id == id)
        })
    }

    /// Lets the node be used, refuses it, or gives its place back, if that can be decided now.
    /// Returns whether a node was admitted or refused.
    fn act_on_verdict(&mut self, node: NodeId, now: Instant) -> bool {
        let entry = &self.nodes[node.index()];
        let is_open = entry.state.is_usable() || entry.state == NodeState::Suspect;
        if !is_open && !entry.awaits_list {
            return false;
        }
        match self.verdict(node, now) {
            Verdict::Counts => {
                self.nodes[node.index()].is_outside = false;
                self.count_voters();
                self.set_list_floor(node, now);
                self.confirm_list(node, now);
                self.nodes[node.index()].awaits_list && self.admit_member(node, now)
            }
            Verdict::Waits if self.has_lost_its_place(node) && !entry.awaits_list => {
                self.refuse_for_its_list(node, LOST_PLACE.into(), now);
                true
            }
            Verdict::Waits => false,
            Verdict::Returns(membership) => {
                self.write_list(node, membership, now);
                false
            }
            Verdict::Refused(words) => {
                self.refuse_for_its_list(node, words, now);
                let entry = &mut self.nodes[node.index()];
                (entry.has_other_list, entry.is_outside) = (true, self.list.is_some());
                self.count_voters();
                true
            }
            Verdict::RefusedForAnother(words) => {
                self.refuse_for_its_list(node, words, now);
                true
            }
        }
    }

    fn refuse_for_its_list(&mut self, node: NodeId, words: String, now: Instant) {
        let cause = NodeError::OtherList;
        self.nodes[node.index()].refusal = Some((cause, words.into()));
        self.reject(node, cause, now);
    }

    /// Whether the node has no list any more, while one is known.
    fn has_lost_its_place(&self, node: NodeId) -> bool {
        self.list.is_some() && self.nodes[node.index()].members == MembersState::Blank
    }

    fn verdict(&self, node: NodeId, now: Instant) -> Verdict {
        let entry = &self.nodes[node.index()];
        match (&entry.members, &self.list) {
            (MembersState::Unavailable, None) => Verdict::Counts,
            // It may be in no list, or in a later one than this client knows.
            (MembersState::Unavailable, Some(_)) => Verdict::Refused(UNREADABLE.into()),
            (MembersState::Later, _) => {
                let words = "its list of masters was written by a later version of redlatch; \
                             use that version";
                Verdict::Refused(words.into())
            }
            (MembersState::Listed(listed), Some(list)) => {
                self.verdict_of_listed(node, listed, list)
            }
            (MembersState::Blank, Some(list)) => match self.id_for(node, list) {
                Some(_) if !self.knows_no_later_list(node, list, now) => Verdict::Waits,
                Some(id) => {
                    let list = list.clone();
                    Verdict::Returns(Membership::new(id, Stage::Returned, list))
                }
                None => not_listed(list),
            },
            (_, None) => self.verdict_without_a_list(node),
        }
    }

    fn verdict_of_listed(&self, node: NodeId, listed: &Membership, list: &MemberList) -> Verdict {
        let entry = &self.nodes[node.index()];
        if !listed.list.has_name_of(list) {
            return self.other_list(&listed.list);
        }
        if listed.stage == Stage::Learner || !list.has(listed.id) {
            return not_listed(list);
        }
        let moved = entry.member.is_some_and(|seen| seen != listed.id);
        // Of two nodes with one id, the one that is used already stays.
        let copied = entry.awaits_list && self.is_taken(listed.id, node);
        if moved || copied {
            let words = format!(
                "it has the id {} of another master, so it has a copy of that one's data; \
                 delete {} there and start it without that data",
                listed.id,
                members::MEMBERS
            );
            return Verdict::Refused(words);
        }
        Verdict::Counts
    }

    /// Whether enough other nodes have shown their lists that one of them would have shown a later
    /// list than this. Without that a node that lost its data would get an older list back, and
    /// hide from this client that the list was changed.
    fn knows_no_later_list(&self, node: NodeId, list: &MemberList, now: Instant) -> bool {
        let others = self.all_nodes().minus(node.into());
        let (mut shown, mut lost) = (0, 0);
        for other in others.iter() {
            let entry = &self.nodes[other.index()];
            if !entry.has_shown_its_list() || !entry.has_fresh_list(now) {
                continue;
            }
            match &entry.members {
                MembersState::Listed(listed) if list.has(listed.id) => shown += 1,
                MembersState::Blank if self.id_for(other, list).is_some() => lost += 1,
                _ => {}
            }
        }
        // If all other members have answered, those without a list have lost it, too.
        shown >= list.quorum() || shown + lost + 1 >= list.members().len()
    }

    /// The verdict on a node while the client knows no list that all its members have.
    fn verdict_without_a_list(&self, node: NodeId) -> Verdict {
        let entry = &self.nodes[node.index()];
        let proposal = self.nodes.iter().filter(|entry| entry.has_shown_its_list());
        let proposal = proposal.filter_map(|entry| entry.members.listed()).next();
        match (proposal, entry.members.listed()) {
            (Some(first), _) if first.list.members().len() != self.size() => {
                return self.other_list(&first.list);
            }
            (Some(first), Some(own)) if !own.list.is_same_as(&first.list) => {
                return self.other_list(&own.list);
            }
            (Some(first), None) if self.id_for(node, &first.list).is_none() => {
                return not_listed(&first.list);
            }
            _ => {}
        }
        if self.nodes.iter().any(|entry| entry.has_other_list) {
            // That node is in the list of other clients, which may use this one, too.
            let words = "another of these nodes has another list of masters than this client";
            return Verdict::RefusedForAnother(words.into());
        }
        let all_said = self.nodes.iter().all(Node::has_said_its_list);
        let first_attempts = self.nodes.iter().any(Node::is_in_first_attempt);
        if all_said || first_attempts { Verdict::Waits } else { Verdict::Counts }
    }

    fn other_list(&self, list: &MemberList) -> Verdict {
        let (count, epoch, given) = (list.members().len(), list.epoch(), self.size());
        let nodes = if count == 1 { "node" } else { "nodes" };
        let addresses = addresses(list);
        let words = format!(
            "it belongs to a list of {count} {nodes} (epoch {epoch}: {addresses}), and this client \
             was given {given}; give every client one list"
        );
        Verdict::Refused(words)
    }

    /// Lets a node be asked from now on.
    fn admit_member(&mut self, node: NodeId, now: Instant) -> bool {
        self.pass_the_list(node, now);
        true
    }

    fn pass_the_list(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        (entry.awaits_list, entry.is_past_the_list) = (false, true);
        self.end_handshake(node, now);
    }

    /// Writes down that all members have the list, where that is not written yet.
    fn confirm_list(&mut self, node: NodeId, now: Instant) {
        let listed = self.nodes[node.index()].members.listed();
        let Some(listed) = listed.filter(|listed| listed.stage == Stage::Proposed) else { return };
        if self.list.is_some() {
            let membership = Membership { stage: Stage::Agreed, ..listed.clone() };
            self.write_list(node, membership, now);
        }
    }

    /// Writes the list to a node, in the place of what the client knows to be there.
    fn write_list(&mut self, node: NodeId, membership: Membership, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        if entry.listing || !entry.connection.has_room(&self.settings.limits) {
            return;
        }
        entry.listing = true;
        let (ask, expected) = (Ask::Node(NodeAsk::Members), entry.members.listed());
        if entry.connection.runs_scripts() {
            entry.connection.ask(ask, now, |out| members::replace(out, expected, &membership));
        } else {
            let encode = |out: &mut _| members::replace_without_script(out, expected, &membership);
            entry.connection.ask(Ask::Node(NodeAsk::Unread), now, encode);
            let words: [&[u8]; 2] = [b"GET", members::MEMBERS.as_bytes()];
            entry.connection.ask(ask, now, |out| command::encode(out, &words));
        }
        if entry.state != NodeState::Handshake {
            self.watch_for_silence(node, now);
        }
    }
}

fn not_listed(list: &MemberList) -> Verdict {
    let addresses = addresses(list);
    let words = format!(
        "the other nodes have a list of masters ({addresses}), and this one is not in it; give \
         every client one list"
    );
    Verdict::Refused(words)
}

fn addresses(list: &MemberList) -> String {
    list.members().iter().map(|member| &*member.address).collect::<Vec<&str>>().join(", ")
}
