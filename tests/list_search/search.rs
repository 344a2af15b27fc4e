//! The search, breadth first, so that a run to two holders is a shortest one.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::plans::Plan;
use crate::steps::{self, Step};
use crate::world::{Fault, World};

/// What a search found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    pub depth: usize,
    /// The steps to a state in which two clients can hold.
    pub violation: Option<Vec<Step>>,
    pub cut_off: bool,
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Searches up to `most` states.
pub fn search(plan: &Plan, fault: Option<Fault>, most: usize) -> Found {
    let mut first = World::new(plan.members, plan.losses);
    for &step in plan.prefix {
        assert!(steps::take(&mut first, step, plan, fault), "{step:?} is not possible");
    }
    let mut found = Found { states: 0, depth: 0, violation: None, cut_off: false };
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut origins: Vec<(u32, Step)> = vec![(0, Step::Tick)];
    let mut queue = VecDeque::from([(0, 0, first)]);
    while let Some((number, depth, world)) = queue.pop_front() {
        found.depth = depth;
        for (step, after) in steps::all(&world, plan, fault) {
            if seen.len() >= most {
                found.cut_off = true;
                break;
            }
            if !seen.insert(fingerprint(&after)) {
                continue;
            }
            origins.push((number, step));
            let own = origins.len() as u32 - 1;
            if after.two_holders(fault).is_some() {
                found.states = seen.len();
                found.violation = Some(steps_to(&origins, own));
                return found;
            }
            queue.push_back((own, depth + 1, after));
        }
    }
    found.states = seen.len();
    found
}

fn steps_to(origins: &[(u32, Step)], mut number: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    while number > 0 {
        let (before, step) = origins[number as usize];
        steps.push(step);
        number = before;
    }
    steps.reverse();
    steps
}
