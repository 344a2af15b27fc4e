//! The steps: what a tool, a client or a node does at one moment. A tool goes by what it has read,
//! and a node changes its text in one step.
//!
//! The hazard is a step that is left out: each one that the protocol allows has to be in `all`.

use crate::plans::Plan;
use crate::world::{
    Fault, LEASE, List, NODES, Phase, Set, Stage, TTL, Text, Tool, VOTES, World, has, quorum, size,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A tool starts, or dies and starts again. It reads one node only, as if the others were cut
    /// off, and then finishes the step that it finds or begins one to the list that it is asked
    /// for.
    Start {
        tool: u8,
        node: u8,
        target: Set,
    },
    /// A tool writes the list to a member that has an older one.
    Catch {
        tool: u8,
        node: u8,
    },
    Promise {
        tool: u8,
        node: u8,
    },
    Accept {
        tool: u8,
        node: u8,
    },
    Tell {
        tool: u8,
        node: u8,
    },
    Agree {
        tool: u8,
        node: u8,
    },
    Lose {
        node: u8,
    },
    /// A client with this list (its place in `World::lists`) decides to give a node its id back.
    Offer {
        node: u8,
        list: u8,
    },
    Return {
        node: u8,
        list: u8,
    },
    Tick,
}

/// All steps that are possible in this state, each with the state after it.
pub fn all(world: &World, plan: &Plan, fault: Option<Fault>) -> Vec<(Step, World)> {
    let mut found = Vec::with_capacity(16);
    let mut attempt = |step| {
        let mut after = *world;
        if take(&mut after, step, plan, fault) {
            found.push((step, after));
        }
    };
    for (tool, targets) in plan.targets.iter().enumerate() {
        let tool = tool as u8;
        for node in 0..plan.nodes {
            targets.iter().for_each(|&target| attempt(Step::Start { tool, node, target }));
            attempt(Step::Catch { tool, node });
            attempt(Step::Promise { tool, node });
            attempt(Step::Accept { tool, node });
            attempt(Step::Tell { tool, node });
            attempt(Step::Agree { tool, node });
        }
    }
    for node in (0..plan.nodes).filter(|&node| has(plan.losers, node.into())) {
        attempt(Step::Lose { node });
        for list in 0..world.lists.len() as u8 {
            attempt(Step::Offer { node, list });
            attempt(Step::Return { node, list });
        }
    }
    attempt(Step::Tick);
    found
}

/// Takes a step, and returns whether it was possible.
pub fn take(world: &mut World, step: Step, plan: &Plan, fault: Option<Fault>) -> bool {
    match step {
        Step::Start { tool, node, target } => start(world, tool, node.into(), target, plan, fault),
        Step::Catch { tool, node } => catch(world, tool.into(), node.into()),
        Step::Promise { tool, node } => promise(world, tool.into(), node.into(), fault),
        Step::Accept { tool, node } => accept(world, tool.into(), node.into(), fault),
        Step::Tell { tool, node } => tell(world, tool.into(), node.into(), fault),
        Step::Agree { tool, node } => agree(world, tool.into(), node.into()),
        Step::Lose { node } => {
            let has_text =
                world.losses > 0 && world.nodes[usize::from(node)].text.stage != Stage::Blank;
            if has_text {
                world.lose(node.into(), fault);
            }
            has_text
        }
        Step::Offer { node, list } => offer(world, node.into(), list.into(), fault),
        Step::Return { node, list } => give_back(world, node.into(), list.into()),
        Step::Tick => {
            world.tick(fault);
            true
        }
    }
}

/// The list after this one: first the missing nodes are added, then others are removed.
fn next(members: Set, target: Set) -> Set {
    let (missing, extra) = (target & !members, members & !target);
    let lowest = |set: Set| set & set.wrapping_neg();
    if missing != 0 { members | lowest(missing) } else { members & !lowest(extra) }
}

fn start(
    world: &mut World,
    tool: u8,
    node: usize,
    target: Set,
    plan: &Plan,
    fault: Option<Fault>,
) -> bool {
    let text = world.nodes[node].text;
    let List { epoch, members } = text.list;
    match text.stage {
        Stage::Blank | Stage::Learner => return false,
        Stage::Told => {
            let (phase, list, before) = (Phase::Tell, text.list, text.before);
            let tell = Tool { phase, list, before, ..Tool::default() };
            let old = world.tools[usize::from(tool)];
            // It would do the same again.
            let told = matches!(old.phase, Phase::Tell | Phase::Wait | Phase::Agree);
            if told && old.list == list {
                return false;
            }
            world.tools[usize::from(tool)] = tell;
        }
        Stage::Agreed => {
            let ballots = &mut world.ballots[usize::from(epoch)];
            if epoch >= plan.epochs || *ballots >= plan.ballots {
                return false;
            }
            if members == target && !plan.undo {
                return false;
            }
            *ballots += 1;
            let ballot = *ballots;
            let (phase, list) = (Phase::Prepare, text.list);
            world.tools[usize::from(tool)] =
                Tool { phase, list, target, ballot, ..Tool::default() };
            let new = next(members, target) & !members;
            let added = (0..NODES).find(|&node| has(new, node));
            let blank = |node: &usize| world.nodes[*node].text.stage == Stage::Blank;
            if let Some(node) = added.filter(blank) {
                let learner = Text { stage: Stage::Learner, list, ..Text::default() };
                world.write(node, learner);
            }
            if fault == Some(Fault::NoBallots) {
                let tool = &mut world.tools[usize::from(tool)];
                (tool.phase, tool.value) = (Phase::Accept, (ballot, next(members, target)));
                tool.target = 0;
            }
        }
    }
    true
}

fn catch(world: &mut World, tool: usize, node: usize) -> bool {
    let Tool { phase, list, .. } = world.tools[tool];
    let text = world.nodes[node].text;
    let asks = matches!(phase, Phase::Prepare | Phase::Accept);
    let older = text.stage != Stage::Blank && text.list.epoch < list.epoch;
    if !asks || !older || !has(list.members, node) {
        return false;
    }
    world.write(node, Text { stage: Stage::Agreed, list, ..Text::default() });
    true
}

/// Whether a node takes part in the ballots of this tool.
fn votes_on(world: &World, tool: &Tool, node: usize, fault: Option<Fault>) -> bool {
    let text = world.nodes[node].text;
    let may = !text.returned || fault == Some(Fault::ReturnedVotesInBallots);
    let member = text.is_members() && has(tool.list.members, node);
    may && member && text.list.epoch == tool.list.epoch && !has(tool.done, node)
}

fn promise(world: &mut World, tool: usize, node: usize, fault: Option<Fault>) -> bool {
    let mut it = world.tools[tool];
    let text = &mut world.nodes[node].text;
    if it.phase != Phase::Prepare || text.promised >= it.ballot {
        return false;
    }
    text.promised = it.ballot;
    if !votes_on(world, &it, node, fault) {
        return false;
    }
    it.done |= 1 << node;
    it.value = it.value.max(world.nodes[node].text.accepted);
    if size(it.done) >= quorum(it.list.members) {
        if it.value.0 == 0 {
            it.value.1 = next(it.list.members, it.target);
        }
        (it.value.0, it.done, it.phase, it.target) = (it.ballot, 0, Phase::Accept, 0);
    }
    world.tools[tool] = it;
    true
}

fn accept(world: &mut World, tool: usize, node: usize, fault: Option<Fault>) -> bool {
    let mut it = world.tools[tool];
    let promised = world.nodes[node].text.promised;
    let late = promised > it.ballot && fault != Some(Fault::NoBallots);
    if it.phase != Phase::Accept || late || !votes_on(world, &it, node, fault) {
        return false;
    }
    let text = &mut world.nodes[node].text;
    text.promised = it.ballot;
    text.accepted = it.value;
    it.done |= 1 << node;
    if size(it.done) >= quorum(it.list.members) {
        let list = List { epoch: it.list.epoch + 1, members: it.value.1 };
        it = Tool { phase: Phase::Tell, list, before: it.list.members, ..Tool::default() };
    }
    world.tools[tool] = it;
    true
}

fn tell(world: &mut World, tool: usize, node: usize, fault: Option<Fault>) -> bool {
    let mut it = world.tools[tool];
    let text = world.nodes[node].text;
    if !matches!(it.phase, Phase::Tell | Phase::Wait | Phase::Agree) || text.stage == Stage::Blank {
        return false;
    }
    let added = it.list.members & !it.before;
    let told = |node: usize| world.nodes[node].text.list.epoch >= it.list.epoch;
    let new_first = (0..NODES).filter(|&node| has(added, node)).all(told);
    if !has(it.before | added, node) || !(new_first || has(added, node)) {
        return false;
    }
    let older = text.list.epoch < it.list.epoch;
    let back = fault == Some(Fault::EpochGoesBack) && text.list.epoch > it.list.epoch;
    let counts = it.phase == Phase::Tell
        && has(it.before, node)
        && !has(it.done, node)
        && (older || text.list.epoch == it.list.epoch);
    if older || back {
        let (list, before) = (it.list, it.before);
        let text = Text { stage: Stage::Told, list, before, ..Text::default() };
        world.write(node, text);
    } else if !counts {
        return false;
    }
    if counts {
        it.done |= 1 << node;
        if it.told_enough(fault) {
            (it.phase, it.wait) = (Phase::Wait, wait(fault));
            it.end_wait(fault);
        }
        world.tools[tool] = it;
    }
    true
}

const fn wait(fault: Option<Fault>) -> u8 {
    match fault {
        Some(Fault::NoWait) => 0,
        Some(Fault::WaitWithoutLease) => TTL,
        Some(Fault::WaitWithoutTtl) => LEASE,
        _ => VOTES,
    }
}

fn agree(world: &mut World, tool: usize, node: usize) -> bool {
    let it = world.tools[tool];
    let text = &mut world.nodes[node].text;
    let same = text.stage == Stage::Told && text.list == it.list;
    if it.phase != Phase::Agree || !same {
        return false;
    }
    (text.stage, text.before) = (Stage::Agreed, 0);
    true
}

fn offer(world: &mut World, node: usize, list: usize, fault: Option<Fault>) -> bool {
    let (known, entry) = (world.lists[list], world.nodes[node]);
    let blank = entry.text.stage == Stage::Blank && !has(entry.offers, list);
    if !blank || !has(known.members, node) {
        return false;
    }
    let others = (0..NODES).filter(|&other| other != node && has(known.members, other));
    let read = others.filter(|&other| world.nodes[other].was_read(known.epoch, fault)).count();
    let need = match fault {
        Some(Fault::ReturnedWithoutOthers) => 0,
        Some(Fault::SmallListReadsAll) => quorum(known.members).min(size(known.members) - 1),
        _ => quorum(known.members),
    };
    if (read as u32) < need {
        return false;
    }
    world.nodes[node].offers |= 1 << list;
    true
}

fn give_back(world: &mut World, node: usize, list: usize) -> bool {
    if world.nodes[node].text.stage != Stage::Blank || !has(world.nodes[node].offers, list) {
        return false;
    }
    // Whether the wait is over is not known: `told` is right in both cases.
    let (list, before) = (world.lists[list], world.before[list]);
    let stage = if list.epoch == 1 { Stage::Agreed } else { Stage::Told };
    world.write(node, Text { stage, list, before, returned: true, ..Text::default() });
    true
}
