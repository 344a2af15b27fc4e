//! The random numbers of all tests: the same seed always gives the same numbers.

/// SplitMix64: small, fast without optimization, and good enough to choose with.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Random numbers from this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Random numbers from this seed, which is printed so that a failed run can be repeated.
    pub fn printed(seed: u64) -> Dice {
        println!("the dice are of seed {seed}");
        Dice(seed)
    }

    /// Random numbers from this process's id, which is printed as the seed.
    pub fn of_this_run() -> Dice {
        Dice::printed(u64::from(std::process::id()))
    }

    /// Dice with a seed drawn from these, for a thread or a task that draws by itself.
    pub fn others(&mut self) -> Dice {
        Dice(self.any())
    }

    /// A random number from 0 to `sides` - 1.
    pub fn roll(&mut self, sides: u32) -> u32 {
        self.below(u64::from(sides)) as u32
    }

    /// A random number of 64 bits.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// A random index into a list of that length.
    pub fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of these values, each with the same probability.
    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.place(of.len())]
    }

    /// One of these values, each with a probability in proportion to its weight.
    pub fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut drawn = self.below(of.iter().map(|(weight, _)| weight).sum());
        for &(weight, it) in of {
            if drawn < weight {
                return it;
            }
            drawn -= weight;
        }
        of[of.len() - 1].1
    }

    /// Brings a list into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, self.place(end + 1));
        }
    }

    /// A seed for a coordinator.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for part in seed.chunks_exact_mut(8) {
            part.copy_from_slice(&self.any().to_le_bytes());
        }
        seed
    }
}
