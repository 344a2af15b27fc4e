//! A check of the fingerprint itself: two states with the same fingerprint must have the same
//! futures. Copies of some states are kept. When the search reaches such a state in another way,
//! the fingerprints of all next states of both are compared.

use std::collections::HashMap;

use crate::world::World;

/// One of this many states is kept.
const ONE_OF: u64 = 61;
/// How many copies are kept at most, and how many pairs are compared at most.
const KEPT: usize = 3_000;
const COMPARED: usize = 60_000;

#[derive(Default)]
pub struct Samples {
    kept: HashMap<u64, World>,
    compared: usize,
}

impl Samples {
    /// How many pairs were compared.
    pub fn compared(&self) -> usize {
        self.compared
    }

    pub fn keep(&mut self, print: u64, world: &World) {
        if print % ONE_OF == 0 && self.kept.len() < KEPT {
            self.kept.insert(print, world.clone());
        }
    }

    /// # Panics
    /// If the two states have different futures, because the fingerprint leaves out something that
    /// matters.
    pub fn compare(&mut self, print: u64, world: &World) {
        if self.compared >= COMPARED {
            return;
        }
        let Some(other) = self.kept.get(&print) else { return };
        self.compared += 1;
        let (one, two) = (futures(other), futures(world));
        if one != two {
            panic!(
                "one fingerprint, two futures:\n{:?}\n{:?}\n{}\n-----\n{}",
                next_fingerprints(other),
                next_fingerprints(world),
                other.describe(),
                world.describe()
            );
        }
    }
}

/// The next steps, with the fingerprints of the states that they lead to.
fn next_fingerprints(world: &World) -> Vec<(String, Result<u64, String>)> {
    let next = world.steps().into_iter().map(|step| {
        let mut next = world.clone();
        (step.to_string(), next.take(step).map(|()| next.fingerprint()))
    });
    next.collect()
}

/// The fingerprints of the next states, or the violations, sorted because nodes have no order.
fn futures(world: &World) -> Vec<Result<u64, String>> {
    let next = world.steps().into_iter().map(|step| {
        let mut next = world.clone();
        next.take(step).map(|()| next.fingerprint())
    });
    let mut next: Vec<_> = next.collect();
    next.sort();
    next.dedup();
    next
}
