//! Changes of the list in all orders: several tools at once, tools that stop, and a node that loses
//! its data. The nodes are plain values.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use super::*;
use crate::proto::wire::members::Stage;

fn run_id(digit: char) -> [u8; ID_DIGITS] {
    [digit as u8; ID_DIGITS]
}

fn member(digit: char) -> Member {
    Member { id: MemberId::of_run_id(&run_id(digit)), address: format!("{digit}:1").into() }
}

fn digits(members: &[Member]) -> String {
    members.iter().filter_map(|member| member.id.to_string().chars().next()).collect()
}

/// A run of the tool that changes the list, and the requests that it still has to send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tool {
    change: Change,
    now: Instant,
    asks: VecDeque<Request>,
    end: Option<Next>,
}

/// All nodes and all tools.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    nodes: Vec<MembersState>,
    dead: Vec<usize>,
    tools: Vec<Tool>,
    /// What was told, by its epoch.
    lists: BTreeMap<u64, String>,
    /// Tools that may start when another one stops.
    spare: Vec<Goal>,
    /// The nodes that may lose their data.
    may_lose: Vec<usize>,
    /// How many tools have started.
    started: u64,
    /// For how many ballots each tool is followed: two tools may overtake each other for long.
    followed: [u64; 2],
}

const NAMES: [char; 5] = ['a', 'b', 'c', 'd', 'e'];

impl World {
    /// Nodes of which the first have an agreed list, and the others nothing.
    fn new(nodes: usize, listed: usize) -> World {
        let list = MemberList::first(NAMES[..listed].iter().map(|&it| member(it)).collect());
        let state = |(place, &digit): (usize, &char)| match place < listed {
            true => {
                MembersState::Listed(Membership::new(member(digit).id, Stage::Agreed, list.clone()))
            }
            false => MembersState::Blank,
        };
        World {
            nodes: NAMES[..nodes].iter().enumerate().map(state).collect(),
            dead: Vec::new(),
            tools: Vec::new(),
            lists: BTreeMap::from([(1, digits(list.members()))]),
            spare: Vec::new(),
            may_lose: Vec::new(),
            started: 0,
            followed: [2, 2],
        }
    }

    fn start(&mut self, goal: Goal) {
        let place = |&digit: &char| Place {
            address: format!("{digit}:1").into(),
            run_id: Some(run_id(digit)),
        };
        let places = NAMES[..self.nodes.len()].iter().map(place).collect();
        self.started += 1;
        let change = Change::new(places, goal, Duration::from_secs(9), self.started);
        let (now, asks) = (Instant::from_nanos(0), VecDeque::new());
        self.tools.push(Tool { change, now, asks, end: None });
    }

    /// Lets the tool ask one question, or go on.
    fn step(&mut self, index: usize) {
        let Some(ask) = self.tools[index].asks.pop_front() else { return self.go_on(index) };
        let answer = (!self.dead.contains(&ask.place)).then(|| {
            if let Some(Replacement { expected, new }) = ask.write {
                if self.nodes[ask.place].listed() == expected.as_ref() {
                    self.check_write(&new);
                    self.nodes[ask.place] = MembersState::Listed(new);
                }
            }
            self.nodes[ask.place].clone()
        });
        let tool = &mut self.tools[index];
        tool.change.answered(ask.place, answer);
        if tool.asks.is_empty() {
            self.go_on(index);
        }
    }

    fn go_on(&mut self, index: usize) {
        let tool = &mut self.tools[index];
        tool.change.take_events();
        match tool.change.next(tool.now) {
            Next::Ask(asks) => tool.asks = asks.into(),
            Next::Quarantine(place) => tool.change.trusted(place),
            Next::Wait(until) => tool.now = until,
            Next::Pause(_) => {}
            end => tool.end = Some(end),
        }
    }

    /// Each epoch has one list, it differs from that before by one node at most, and it is agreed
    /// only after so many members of the one before were told that the others are no majority.
    fn check_write(&mut self, new: &Membership) {
        if new.stage == Stage::Learner {
            return;
        }
        let (epoch, list) = (new.list.epoch(), digits(new.list.members()));
        let known = self.lists.entry(epoch).or_insert_with(|| list.clone());
        assert_eq!(*known, list, "two lists of epoch {epoch}");
        let Some(before) = epoch.checked_sub(1).and_then(|it| self.lists.get(&it)) else { return };
        let lacks = |one: &str, other: &str| one.chars().filter(|&it| !other.contains(it)).count();
        assert!(lacks(before, &list) + lacks(&list, before) <= 1, "{before} to {list}");
        if new.stage == Stage::Agreed && self.may_lose.is_empty() {
            let behind = |place: &usize| {
                before.contains(NAMES[*place])
                    && self.nodes[*place].listed().is_none_or(|it| it.list.epoch() < epoch)
            };
            let behind = (0..self.nodes.len()).filter(behind).count();
            assert!(
                behind < before.len() / 2 + 1,
                "{list} agreed while {behind} of {before} are behind"
            );
        }
    }

    /// A client gives a node its id back, after it has read the latest list of the others.
    fn give_back(&mut self, place: usize) {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != place);
        let latest = others.filter_map(|(_, it)| it.listed()).max_by_key(|it| it.list.epoch());
        let id = member(NAMES[place]).id;
        let list = latest.filter(|it| it.list.has(id)).map(|it| it.list.clone());
        if let Some(list) = list {
            self.nodes[place] = MembersState::Listed(Membership::new(id, Stage::Returned, list));
        }
    }

    /// All that can happen next.
    fn successors(&self) -> Vec<World> {
        let mut found = Vec::new();
        for index in (0..self.tools.len()).filter(|&it| self.tools[it].end.is_none()) {
            let mut next = self.clone();
            next.step(index);
            if next.tools[index].change.ballots <= self.followed[index] {
                found.push(next);
            }
            if !self.spare.is_empty() {
                let mut next = self.clone();
                next.tools.remove(index);
                let goal = next.spare.remove(0);
                next.start(goal);
                found.push(next);
            }
        }
        for index in 0..self.may_lose.len() {
            let mut next = self.clone();
            let place = next.may_lose.remove(index);
            next.nodes[place] = MembersState::Blank;
            next.dead.clear();
            found.push(next.clone());
            next.give_back(place);
            found.push(next);
        }
        found
    }

    /// Runs one tool alone to its end.
    fn run(&mut self, goal: Goal) -> Next {
        self.start(goal);
        let index = self.tools.len() - 1;
        for _ in 0..1000 {
            self.step(index);
            if let Some(end) = self.tools[index].end.clone() {
                self.tools.remove(index);
                return end;
            }
        }
        panic!("the tool does not end: {self:?}");
    }

    fn text(&self) -> String {
        let text = |state: &MembersState| match state.listed() {
            Some(it) => {
                let list = digits(it.list.members());
                format!("{} {} {list}", it.stage.word(), it.list.epoch())
            }
            None => "-".to_owned(),
        };
        self.nodes.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

/// Searches all orders. Calls `at_end` where nothing can happen any more. Returns the number of
/// states.
fn search(start: World, mut at_end: impl FnMut(&World)) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let mut hash = std::hash::DefaultHasher::new();
        world.hash(&mut hash);
        if !seen.insert(hash.finish()) {
            continue;
        }
        if world.tools.iter().all(|tool| tool.end.is_some()) {
            at_end(&world);
        }
        open.extend(world.successors());
    }
    seen.len()
}

#[track_caller]
fn done(next: &Next, list: &str) {
    let Next::Done(found) = next else { panic!("{next:?}") };
    assert_eq!(digits(found.members()), list);
}

#[test]
fn one_master_becomes_three() {
    let mut world = World::new(3, 1);
    done(&world.run(Goal::To(vec![0, 1, 2])), "abc");
    assert_eq!(world.text(), "agreed 3 abc, agreed 3 abc, agreed 3 abc");
}

#[test]
fn node_is_replaced_and_keeps_the_last_list_it_was_told() {
    let mut world = World::new(4, 3);
    done(&world.run(Goal::To(vec![0, 1, 3])), "abd");
    assert_eq!(world.text(), "agreed 3 abd, agreed 3 abd, told 3 abd, agreed 3 abd");
    done(&world.run(Goal::To(vec![0, 1, 2])), "abc");
    assert_eq!(world.text(), "agreed 5 abc, agreed 5 abc, agreed 5 abc, told 5 abc");
}

#[test]
fn dead_node_is_removed_before_another_one_is_added() {
    let mut world = World::new(4, 3);
    world.dead = vec![2];
    done(&world.run(Goal::To(vec![0, 1, 3])), "abd");
    assert_eq!(world.lists.values().collect::<Vec<_>>(), ["abc", "ab", "abd"]);
    assert_eq!(world.text(), "agreed 3 abd, agreed 3 abd, agreed 1 abc, agreed 3 abd");
}

#[test]
fn list_stays_if_no_majority_of_it_answers_or_the_wanted_one_is_wrong() {
    let mut world = World::new(5, 3);
    let before = world.text();
    world.dead = vec![1, 2];
    let failed = Failure::NoQuorum { voters: 1, needed: 2, epoch: 1 };
    assert_eq!(world.run(Goal::To(vec![0, 1, 3])), Next::Failed(failed));
    world.dead = vec![4];
    assert_eq!(world.run(Goal::To(vec![0, 1, 4])), Next::Failed(Failure::Unreached(4)));
    assert_eq!(world.run(Goal::To(vec![3])), Next::Failed(Failure::NothingKept));
    let other =
        Membership::new(member('e').id, Stage::Agreed, MemberList::first(vec![member('e')]));
    (world.dead, world.nodes[4]) = (Vec::new(), MembersState::Listed(other));
    assert_eq!(world.run(Goal::To(vec![0, 4])), Next::Failed(Failure::OtherList(4)));
    world.nodes[4] = MembersState::Later;
    assert_eq!(world.run(Goal::To(vec![0, 4])), Next::Failed(Failure::LaterVersion(4)));
    world.nodes[4] = world.nodes[0].clone();
    assert_eq!(world.run(Goal::To(vec![0, 4])), Next::Failed(Failure::SameServer(0, 4)));
    world.nodes[4] = MembersState::Blank;
    assert_eq!(world.text(), before);
    world.nodes.iter_mut().for_each(|node| *node = MembersState::Blank);
    assert_eq!(world.run(Goal::Resume), Next::Failed(Failure::NoList));
}

#[test]
fn nothing_is_resumed_or_undone_if_nothing_was_begun() {
    let mut world = World::new(3, 3);
    let before = world.nodes.clone();
    done(&world.run(Goal::Resume), "abc");
    done(&world.run(Goal::Undo), "abc");
    assert_eq!(world.nodes, before);
}

/// A world in which a tool has just decided to add `d` to `abc`.
fn decided() -> World {
    let mut world = World::new(4, 3);
    world.start(Goal::To(vec![0, 1, 2, 3]));
    let voted = |it: &MembersState| it.listed().is_some_and(|it| it.accepted.is_some());
    while world.nodes.iter().filter(|it| voted(it)).count() < 3 {
        world.step(0);
    }
    world
}

#[test]
fn list_that_too_few_were_told_is_not_agreed_until_more_answer() {
    let mut world = decided();
    world.dead = vec![1, 2];
    while world.tools[0].end.is_none() {
        world.step(0);
    }
    let failed = Failure::NoQuorum { voters: 1, needed: 2, epoch: 2 };
    assert_eq!(world.tools[0].end, Some(Next::Failed(failed.clone())));
    assert_eq!(world.text(), "told 2 abcd, agreed 1 abc, agreed 1 abc, told 2 abcd");
    world.tools.clear();
    assert_eq!(world.run(Goal::Resume), Next::Failed(failed));
    world.dead = vec![1];
    done(&world.run(Goal::Resume), "abcd");
    assert_eq!(world.text(), "agreed 2 abcd, agreed 1 abc, agreed 2 abcd, agreed 2 abcd");
}

#[test]
fn step_waits_its_whole_time_after_the_last_of_enough_nodes_was_told() {
    let second = |second: u64| Instant::from_nanos(second * 1_000_000_000);
    let mut world = decided();
    world.tools[0].now = second(5);
    let is_told = |it: &MembersState| it.listed().is_some_and(|it| it.stage == Stage::Told);
    while world.nodes.iter().filter(|it| is_told(it)).count() < 4 {
        world.step(0);
    }
    let change = &mut world.tools[0].change;
    assert_eq!(change.next(second(5)), Next::Wait(second(14)));
    assert_eq!(change.next(second(13)), Next::Wait(second(14)));
    let Next::Ask(asks) = change.next(second(14)) else { panic!("{change:?}") };
    assert_eq!(asks.len(), 4);
    // A tool that takes up the step waits the whole time again.
    world.tools.clear();
    world.start(Goal::Resume);
    while world.tools[0].now == second(0) {
        world.step(0);
    }
    assert_eq!(world.tools[0].now, second(9));
}

#[test]
fn node_that_got_its_place_back_has_no_vote_on_the_next_list() {
    let mut world = World::new(4, 3);
    world.give_back(2);
    world.dead = vec![1];
    let failed = Failure::NoQuorum { voters: 1, needed: 2, epoch: 1 };
    assert_eq!(world.run(Goal::To(vec![0, 1, 2, 3])), Next::Failed(failed));
    world.dead.clear();
    done(&world.run(Goal::To(vec![0, 1, 2, 3])), "abcd");
    assert_eq!(world.text(), ["agreed 2 abcd"; 4].join(", "));
}

/// The tool stops after each of its questions. Each state is taken up by all goals.
#[test]
fn tool_that_stops_anywhere_is_resumed_undone_or_run_again() {
    let (mut resumed, mut undone) = (HashSet::new(), HashSet::new());
    let mut world = World::new(4, 3);
    world.start(Goal::To(vec![0, 1, 3]));
    while world.tools[0].end.is_none() {
        let mut left = world.clone();
        left.tools.clear();
        for goal in [Goal::Resume, Goal::Undo, Goal::To(vec![0, 1, 3])] {
            let mut after = left.clone();
            let Next::Done(list) = after.run(goal.clone()) else { panic!("{}", left.text()) };
            let list = digits(list.members());
            let is_open = |it: &MembersState| {
                it.listed().is_some_and(|it| it.stage == Stage::Told && it.is_member())
            };
            assert!(!after.nodes.iter().any(is_open), "{}", after.text());
            match goal {
                Goal::Resume => resumed.insert(list),
                Goal::Undo => undone.insert(list),
                Goal::To(_) => {
                    assert_eq!(list, "abd");
                    false
                }
            };
        }
        world.step(0);
    }
    assert_eq!(resumed, HashSet::from(["abc", "abcd", "abd"].map(String::from)));
    assert_eq!(undone, HashSet::from(["abc", "abcd", "abd"].map(String::from)));
}

#[test]
fn two_tools_with_different_lists_never_make_two_lists_of_one_epoch() {
    let mut world = World::new(3, 2);
    world.start(Goal::To(vec![0, 1, 2]));
    world.start(Goal::To(vec![0]));
    world.followed = [2, 1];
    let mut ends = HashSet::new();
    let states = search(world, |world| {
        ends.insert(world.lists.values().cloned().collect::<Vec<_>>().join(" "));
    });
    println!("{states} states, {ends:?}");
    let seen = |lists: &str| ends.contains(lists);
    assert!(seen("ab abc") && seen("ab a") && seen("ab a ab abc"), "{ends:?}");
}

/// A tool stops, and then two others run at the same time.
#[test]
fn undo_and_resume_at_the_same_time_never_make_two_lists_of_one_epoch() {
    let (mut ends, mut states) = (HashSet::new(), 0);
    let mut world = World::new(3, 2);
    world.start(Goal::To(vec![0, 1, 2]));
    while world.tools[0].end.is_none() {
        // Every eighth point, because each has thousands of orders after it.
        for _ in 0..8 {
            if world.tools[0].end.is_none() {
                world.step(0);
            }
        }
        let mut left = world.clone();
        left.tools.clear();
        left.followed = [1, 1];
        left.start(Goal::Undo);
        left.start(Goal::Resume);
        states += search(left, |world| {
            ends.insert(world.lists.values().cloned().collect::<Vec<_>>().join(" "));
        });
    }
    println!("{states} states, {ends:?}");
    let seen = |lists: &str| ends.contains(lists);
    assert!(seen("ab") && seen("ab abc") && seen("ab abc ab"), "{ends:?}");
}

#[test]
fn node_that_loses_its_data_changes_no_decision() {
    for lost in 0..4 {
        let mut world = World::new(4, 3);
        world.start(Goal::To(vec![0, 1, 2, 3]));
        world.may_lose = vec![lost];
        world.spare = vec![Goal::To(vec![0, 1])];
        let mut ends = HashSet::new();
        let states = search(world, |world| {
            ends.insert(world.lists.values().cloned().collect::<Vec<_>>().join(" "));
        });
        println!("{lost}: {states} states, {ends:?}");
        assert!(ends.contains("abc abcd"), "{ends:?}");
    }
}

#[test]
fn wait_begins_anew_if_a_node_that_was_told_lost_that() {
    let second = |second: u64| Instant::from_nanos(second * 1_000_000_000);
    for told_again in [false, true] {
        let mut world = decided();
        let before = world.nodes[0].listed().expect("it has a list").list.clone();
        // Two of the three members of the list before are told: as many as are needed.
        world.dead = vec![2];
        while world.tools[0].now == second(0) {
            world.step(0);
        }
        let told = world.nodes[0].clone();
        let id = member('a').id;
        world.nodes[0] = MembersState::Listed(Membership::new(id, Stage::Returned, before));
        if told_again {
            // By another tool: only its mark differs.
            let told = told.listed().expect("it was told").clone();
            world.nodes[0] = MembersState::Listed(Membership { mark: Some(77), ..told });
        }
        while world.tools[0].now == second(9) {
            world.step(0);
            assert!(!world.text().contains("agreed 2"), "{}", world.text());
        }
        assert_eq!(world.tools[0].now, second(18), "{told_again} {}", world.text());
        while world.tools[0].end.is_none() {
            world.step(0);
        }
        assert!(world.text().contains("agreed 2"), "{}", world.text());
    }
}
