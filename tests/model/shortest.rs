//! The same search, breadth first, which finds the shortest run to a violation.

use std::collections::VecDeque;

use crate::bounds::Plan;
use crate::search::{Found, Seen, quiet_future, take};
use crate::step::Step;
use crate::world::World;

/// Searches breadth first, up to `most` states.
pub fn shortest(plan: &Plan, most: usize) -> Found {
    let mut found = Found::default();
    // For each state, by its number: the number of the state before it, and the step from there.
    let mut origins: Vec<(u32, Step)> = Vec::new();
    let mut seen: Seen = Seen::default();
    let mut quiet = Seen::default();
    let first = World::new(plan);
    let print = first.fingerprint();
    seen.insert(print);
    origins.push((0, Step::Time));
    let mut queue = VecDeque::from([(0_u32, 0_usize, first)]);
    while let Some((number, depth, world)) = queue.pop_front() {
        found.depth = depth;
        for step in world.steps() {
            let mut next = world.clone();
            let taken = take(&mut next, step);
            found.steps += 1;
            let words = match taken.and_then(|()| next.check()) {
                Err(words) => words,
                Ok(()) => {
                    let print = next.fingerprint();
                    if seen.contains(&print) {
                        continue;
                    }
                    if seen.len() >= most {
                        found.cut_off = true;
                        continue;
                    }
                    seen.insert(print);
                    match quiet_future(&next, print, &mut quiet) {
                        Err(words) => words,
                        Ok(()) => {
                            origins.push((number, step));
                            queue.push_back((origins.len() as u32 - 1, depth + 1, next));
                            continue;
                        }
                    }
                }
            };
            found.violation = Some((words, steps_to(&origins, number, step)));
            found.states = seen.len();
            return found;
        }
    }
    found.states = seen.len();
    found
}

fn steps_to(origins: &[(u32, Step)], mut number: u32, last: Step) -> Vec<Step> {
    let mut steps = vec![last];
    while number > 0 {
        let (before, step) = origins[number as usize];
        steps.push(step);
        number = before;
    }
    steps.reverse();
    steps
}
