//! A state: what the nodes keep, and how far the tools are. What clients can hold follows from it.
//!
//! The hazard is a time that ends too early here: then a vote is left out that a client can have.

/// The most nodes of a plan.
pub const NODES: usize = 4;
/// The most tools of a plan.
pub const TOOLS: usize = 2;
/// The highest epoch of a plan.
pub const EPOCHS: usize = 4;
/// The most lists that are told to nodes in one run.
const LISTS: usize = 7;

/// `max_ttl`, in ticks.
pub const TTL: u8 = 2;
/// How long after a read a request may be sent, in ticks.
pub const LEASE: u8 = 2;
/// For how many ticks, the present one included, a list that a client has just read from a node can
/// give that client a vote. The client sends the request in the last tick of the lease, and the
/// lock lives for `TTL` ticks, of which that tick is the first.
pub const VOTES: u8 = LEASE + TTL - 1;

/// A set of nodes, one bit for each.
pub type Set = u8;

pub const fn size(set: Set) -> u32 {
    set.count_ones()
}

pub const fn has(set: Set, node: usize) -> bool {
    set >> node & 1 == 1
}

pub const fn quorum(set: Set) -> u32 {
    size(set) / 2 + 1
}

/// A list of masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct List {
    pub epoch: u8,
    pub members: Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    /// The node has no text.
    #[default]
    Blank,
    Learner,
    Told,
    Agreed,
}

/// What a node keeps, beside keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Text {
    pub stage: Stage,
    pub list: List,
    /// With `Told`: the members of the list before.
    pub before: Set,
    pub returned: bool,
    pub promised: u8,
    /// The ballot in which the node accepted a next list, or 0, and the members of that list.
    pub accepted: (u8, Set),
}

/// A node. A tick counts down what is left of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Node {
    pub text: Text,
    /// How long its votes do not count, because it lost its data.
    pub quarantine: u8,
    /// For each epoch: for how long a text of that epoch that the node had may still give a vote.
    pub past: [u8; EPOCHS + 1],
    /// The same of texts that it lost: votes that it gave before that.
    pub lost: [u8; EPOCHS + 1],
    /// Which of the lists that were told may still be written by a client that gives the node its
    /// id back.
    pub offers: u8,
}

/// How far a tool is in a step to the next list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    #[default]
    Idle,
    /// It asks members for promises.
    Prepare,
    /// It asks members to accept its list.
    Accept,
    /// The list is decided. The tool tells the nodes.
    Tell,
    /// Enough of them were told. It goes on telling others.
    Wait,
    /// The wait is over. It writes so on the nodes.
    Agree,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tool {
    pub phase: Phase,
    /// In `Prepare` and `Accept` the list that is to be changed, after that the new list.
    pub list: List,
    /// From `Tell` on: the members of the list before.
    pub before: Set,
    /// Which list the tool wants in the end, in `Prepare`.
    pub target: Set,
    pub ballot: u8,
    /// What it has seen accepted, or what it wants to be accepted.
    pub value: (u8, Set),
    /// Which nodes promised, accepted or were told.
    pub done: Set,
    pub wait: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    pub nodes: [Node; NODES],
    pub tools: [Tool; TOOLS],
    /// The lists that clients can know: each was told to some node.
    pub lists: [List; LISTS],
    /// The members of the list before each of them.
    pub before: [Set; LISTS],
    /// How many ballots there were for the list after each epoch.
    pub ballots: [u8; EPOCHS + 1],
    /// How many more nodes may lose their data.
    pub losses: u8,
}

/// What a search may be asked to leave out of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nodes take each list that a tool writes instead of the one before: no ballots.
    NoBallots,
    /// The wait begins after one member was told.
    OneToldOnly,
    /// The wait is left out.
    NoWait,
    /// The wait is `max_ttl` only.
    WaitWithoutLease,
    /// The wait is the lease only.
    WaitWithoutTtl,
    /// A client counts a learner like a member of its list.
    LearnerCounts,
    /// A client counts a node that has a newer list by its own list.
    NewerListCounted,
    /// A client gives an id back without reading other nodes.
    ReturnedWithoutOthers,
    /// A tool counts a node that it told, and that lost its data after that.
    LostCountsAsTold,
    /// In lists of one or two a client reads all others before it gives an id back, not a majority.
    SmallListReadsAll,
    /// A node that lost its data and got its id back takes part in ballots.
    ReturnedVotesInBallots,
    /// A client counts a node without a text.
    BlankCounts,
    /// A node takes an older list than the one that it has.
    EpochGoesBack,
    /// A client never reads a node again.
    NoLease,
}

impl World {
    /// All members have the first list, the others nothing.
    pub fn new(members: Set, losses: u8) -> World {
        let list = List { epoch: 1, members };
        let text = Text { stage: Stage::Agreed, list, ..Text::default() };
        let mut nodes = [Node::default(); NODES];
        for (_, node) in nodes.iter_mut().enumerate().filter(|(node, _)| has(members, *node)) {
            node.text = text;
        }
        let mut lists = [List::default(); LISTS];
        lists[0] = list;
        let (tools, ballots) = ([Tool::default(); TOOLS], [0; EPOCHS + 1]);
        World { nodes, tools, lists, before: [0; LISTS], ballots, losses }
    }

    /// Gives a node another text.
    pub fn write(&mut self, node: usize, text: Text) {
        let old = self.nodes[node].text;
        let entry = &mut self.nodes[node];
        if old.is_members() && (old.list.epoch != text.list.epoch) {
            entry.past[usize::from(old.list.epoch)] = VOTES;
        }
        entry.text = text;
        entry.offers = 0;
        if text.is_members() && !self.lists.contains(&text.list) {
            let free = self.lists.iter().position(|list| list.epoch == 0);
            let free = free.expect("a plan has few lists");
            (self.lists[free], self.before[free]) = (text.list, text.before);
        }
        self.nodes[node].tidy();
    }

    /// A node loses its data.
    pub fn lose(&mut self, node: usize, fault: Option<Fault>) {
        self.losses -= 1;
        let telling = |tool: &&mut Tool| matches!(tool.phase, Phase::Tell | Phase::Wait);
        if fault != Some(Fault::LostCountsAsTold) {
            self.tools.iter_mut().filter(telling).for_each(|tool| tool.done &= !(1 << node));
        }
        let entry = &mut self.nodes[node];
        // Votes that it gave stay with the clients until the end of their attempts.
        for epoch in 0..=EPOCHS {
            entry.lost[epoch] = entry.lost[epoch].max(entry.past[epoch].min(TTL));
        }
        if entry.text.is_members() && entry.quarantine == 0 {
            entry.lost[usize::from(entry.text.list.epoch)] = TTL;
        }
        entry.past = [0; EPOCHS + 1];
        entry.text = Text::default();
        entry.quarantine = TTL;
        self.nodes[node].tidy();
    }

    pub fn tick(&mut self, fault: Option<Fault>) {
        let less = |left: &mut u8| *left = left.saturating_sub(1);
        for node in &mut self.nodes {
            less(&mut node.quarantine);
            if fault != Some(Fault::NoLease) {
                node.past.iter_mut().for_each(less);
            }
            node.lost.iter_mut().for_each(less);
            node.tidy();
        }
        for tool in self.tools.iter_mut().filter(|tool| tool.phase == Phase::Wait) {
            less(&mut tool.wait);
            tool.end_wait(fault);
        }
    }

    /// Which nodes can have given their vote to a client that has this list, in an attempt that is
    /// not over.
    pub fn votes(&self, list: List, fault: Option<Fault>) -> Set {
        let epoch = if fault == Some(Fault::NewerListCounted) { EPOCHS } else { list.epoch.into() };
        let mut set = 0;
        for (i, node) in self.nodes.iter().enumerate() {
            let text = node.text;
            let member = has(list.members, i);
            let fits = match text.stage {
                Stage::Blank => member && fault == Some(Fault::BlankCounts),
                Stage::Learner => fault == Some(Fault::LearnerCounts),
                Stage::Told | Stage::Agreed => member && usize::from(text.list.epoch) <= epoch,
            };
            let was = |left: &[u8]| member && left[..=epoch].iter().any(|&left| left > 0);
            if (node.quarantine == 0 && (fits || was(&node.past))) || was(&node.lost) {
                set |= 1 << i;
            }
        }
        set
    }

    /// Two lists by which two clients can hold at once, with the nodes that can vote for each.
    pub fn two_holders(&self, fault: Option<Fault>) -> Option<[(List, Set); 2]> {
        let lists = || self.lists.iter().copied().filter(|list| list.epoch > 0);
        for first in lists() {
            let votes = self.votes(first, fault);
            if size(votes) < quorum(first.members) {
                continue;
            }
            for second in lists().filter(|second| *second >= first) {
                let others = self.votes(second, fault);
                let need = (quorum(first.members), quorum(second.members));
                if size(others) >= need.1 && size(votes | others) >= need.0 + need.1 {
                    return Some([(first, votes), (second, others)]);
                }
            }
        }
        None
    }
}

impl Text {
    /// Whether it is the text of a member, of now or of before.
    pub const fn is_members(&self) -> bool {
        matches!(self.stage, Stage::Told | Stage::Agreed)
    }
}

impl Node {
    /// Whether a client that has a list of this epoch can have read a text that it counts, so short
    /// a time ago that the lease is not over.
    pub fn was_read(&self, epoch: u8, fault: Option<Fault>) -> bool {
        let any = fault == Some(Fault::NewerListCounted);
        let fits = self.text.is_members() && (any || self.text.list.epoch <= epoch);
        let in_lease = |&left: &u8| left > VOTES - LEASE;
        fits || self.past[..=usize::from(epoch)].iter().any(in_lease)
    }

    /// Forgets what changes nothing, because an older text gives the same votes for longer.
    fn tidy(&mut self) {
        let now = usize::from(self.text.list.epoch);
        let mut longest = 0;
        for epoch in 0..=EPOCHS {
            let gone = self.text.is_members() && epoch >= now;
            if self.past[epoch] <= longest || gone {
                self.past[epoch] = 0;
            }
            longest = longest.max(self.past[epoch]);
        }
        let mut longest = 0;
        for left in &mut self.lost {
            if *left <= longest {
                *left = 0;
            }
            longest = longest.max(*left);
        }
    }
}

impl Tool {
    /// Whether so many members were told that the wait may begin.
    pub fn told_enough(&self, fault: Option<Fault>) -> bool {
        let enough = match fault {
            Some(Fault::OneToldOnly) => 1,
            _ => size(self.before) - quorum(self.before) + 1,
        };
        size(self.done) >= enough
    }

    /// Ends the wait if it is over. If nodes that were told have lost their data since then, others
    /// are told in their place, and the wait begins anew.
    pub fn end_wait(&mut self, fault: Option<Fault>) {
        if self.wait == 0 {
            let told = self.told_enough(fault);
            let done = if told { 0 } else { self.done };
            (self.phase, self.done) = (if told { Phase::Agree } else { Phase::Tell }, done);
        }
    }
}
