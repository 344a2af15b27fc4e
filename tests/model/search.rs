//! The search: it checks every state that can be reached once.
//!
//! The search goes depth first, so its memory holds only one path and the fingerprints. `shortest`
//! finds the shortest run to a violation.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bounds::Plan;
use crate::samples::Samples;
use crate::step::Step;
use crate::world::World;

/// A hasher that takes the fingerprint itself as its hash.
#[derive(Default)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// The fingerprints of the states that were checked.
pub type Seen = HashSet<u64, BuildHasherDefault<FingerprintHasher>>;

/// What a search found.
#[derive(Debug, Default)]
pub struct Found {
    /// How many different states there are.
    pub states: usize,
    /// How many steps were taken.
    pub steps: usize,
    /// The most steps from the first state to a new one.
    pub depth: usize,
    /// Whether states were left out because they are too deep, or too many.
    pub cut_off: bool,
    /// How many pairs of states with one fingerprint were compared.
    pub compared: usize,
    /// A violation, and the steps to it.
    pub violation: Option<(String, Vec<Step>)>,
}

/// Searches depth first, up to `most` states.
pub fn complete(plan: &Plan, most: usize) -> Found {
    let mut search = Deep { plan, most, ..Deep::of(plan) };
    search.run();
    search.found.states = search.seen.len();
    search.found.compared = search.samples.compared();
    search.found
}

/// A state on the present path.
struct Level {
    world: World,
    /// The step that led here.
    by: Option<Step>,
    /// The steps that were not taken yet, last first.
    left: Vec<Step>,
}

struct Deep<'a> {
    plan: &'a Plan,
    most: usize,
    path: Vec<Level>,
    seen: Seen,
    /// States whose quiet future is known to end well.
    quiet: Seen,
    samples: Samples,
    found: Found,
}

impl<'a> Deep<'a> {
    fn of(plan: &'a Plan) -> Deep<'a> {
        Deep {
            plan,
            most: 0,
            path: Vec::new(),
            seen: Seen::default(),
            quiet: Seen::default(),
            samples: Samples::default(),
            found: Found::default(),
        }
    }

    fn run(&mut self) {
        self.enter(World::new(self.plan), None);
        while let Some(level) = self.path.last_mut() {
            let Some(step) = level.left.pop() else {
                self.path.pop();
                continue;
            };
            let mut world = level.world.clone();
            let taken = take(&mut world, step);
            self.found.steps += 1;
            match taken {
                Ok(()) => self.enter(world, Some(step)),
                Err(words) => self.report_violation(words, Some(step)),
            }
            if self.found.violation.is_some() {
                return;
            }
        }
    }

    fn enter(&mut self, world: World, by: Option<Step>) {
        let print = world.fingerprint();
        if self.seen.contains(&print) {
            self.samples.compare(print, &world);
            return;
        }
        if self.seen.len() >= self.most {
            self.found.cut_off = true;
            return;
        }
        self.seen.insert(print);
        self.samples.keep(print, &world);
        let checked = world.check().and_then(|()| quiet_future(&world, print, &mut self.quiet));
        if let Err(words) = checked {
            return self.report_violation(words, by);
        }
        let mut left = world.steps();
        left.reverse();
        if self.path.len() >= self.plan.depth {
            self.found.cut_off |= !left.is_empty();
            left.clear();
        }
        self.path.push(Level { world, by, left });
        self.found.depth = self.found.depth.max(self.path.len() - 1);
    }

    fn report_violation(&mut self, words: String, by: Option<Step>) {
        let steps = self.path.iter().filter_map(|level| level.by).chain(by).collect();
        self.found.violation = Some((words, steps));
    }
}

/// Takes a step. A panic of the core is a violation.
pub fn take(world: &mut World, step: Step) -> Result<(), String> {
    let taken = catch_unwind(AssertUnwindSafe(|| world.take(step)));
    taken.unwrap_or_else(|_| Err("a panic, whose words are above".into()))
}

/// The most steps of a quiet future: more than any has.
const QUIET: usize = 2_000;

/// Checks the quiet future of a state: all messages arrive, clients do what is due, and time
/// passes, but callers make no new request. At its end nothing must be left.
pub fn quiet_future(world: &World, print: u64, known: &mut Seen) -> Result<(), String> {
    if known.contains(&print) {
        return Ok(());
    }
    let (mut world, mut print) = (world.clone(), print);
    let mut path = Vec::new();
    while !known.contains(&print) {
        path.push(print);
        let Some(&step) = world.steps().first().filter(|step| is_quiet(**step)) else {
            world.check_end().map_err(|words| format!("at the end of a quiet future: {words}"))?;
            break;
        };
        if path.len() > QUIET {
            return Err("a quiet future does not end".into());
        }
        // The search itself checks the invariants when it reaches such a state.
        if take(&mut world, step).is_err() {
            break;
        }
        print = world.fingerprint();
    }
    known.extend(path);
    Ok(())
}

/// Whether a quiet future may have this step.
pub const fn is_quiet(step: Step) -> bool {
    matches!(
        step,
        Step::ToNode { .. }
            | Step::ToClient { .. }
            | Step::Late { .. }
            | Step::Connect { .. }
            | Step::Turn { .. }
            | Step::Thaw { .. }
            | Step::Time
    )
}
