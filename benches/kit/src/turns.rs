//! Runs contenders in turns, and computes the medians of their rounds.
//!
//! Each figure is the median of its rounds, and each ratio the median of the ratios within a round:
//! what disturbs the machine for longer than a round disturbs both sides of it.

use super::quantiles::median;

/// The order of the contenders in a round. Each round begins with another one, and every second
/// round goes backwards.
pub fn order(number: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |step| {
        let step = if number % 2 == 0 { step } else { contenders - 1 - step };
        (number / 2 + step) % contenders
    })
}

/// The figures of each contender's rounds.
#[derive(Debug)]
pub struct Measured<F> {
    contenders: Vec<Vec<F>>,
}

impl<F> Measured<F> {
    /// This many contenders, without a round so far.
    pub fn new(contenders: usize) -> Measured<F> {
        Measured { contenders: (0..contenders).map(|_| Vec::new()).collect() }
    }

    /// Runs all rounds. `run` is given the contender and the number of the round.
    pub fn in_turns(
        contenders: usize,
        rounds: usize,
        mut run: impl FnMut(usize, usize) -> F,
    ) -> Measured<F> {
        let mut measured = Measured::new(contenders);
        for number in 0..rounds {
            measured.add(order(number, contenders).map(|which| (which, run(which, number))));
        }
        measured
    }

    /// Adds a round: the figures of each contender.
    pub fn add(&mut self, round: impl IntoIterator<Item = (usize, F)>) {
        round.into_iter().for_each(|(which, figures)| self.contenders[which].push(figures));
    }

    /// How many rounds there are.
    pub fn rounds(&self) -> usize {
        self.contenders.first().map_or(0, Vec::len)
    }

    /// The rounds of a contender.
    pub fn of(&self, which: usize) -> &[F] {
        &self.contenders[which]
    }

    pub fn median(&self, which: usize, figure: impl Fn(&F) -> f64) -> f64 {
        median(self.of(which).iter().map(figure))
    }

    /// The median of the ratios to another contender.
    pub fn ratio(&self, which: usize, other: usize, figure: impl Fn(&F) -> f64) -> f64 {
        let rounds = self.of(which).iter().zip(self.of(other));
        median(rounds.map(|(one, other)| figure(one) / figure(other)))
    }
}
