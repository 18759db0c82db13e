//! Two ways to write down a distribution in integers.

use super::random::Random;

/// Scale of a quantile's position: thousandths.
const WHOLE: u64 = 1_000;

/// Positions at which a distribution is written down: every twentieth, finer in the upper tail, where
/// the GPU time is.
const POSITIONS: [u16; 27] = [
    0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700, 750, 800, 850, 900,
    930, 950, 970, 980, 990, 995, 999, 1_000,
];

/// What is not a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Quantiles that do not run from 0 to 1000 with values that never fall.
    #[error("quantiles must rise from 0 to 1000 thousandths and never fall in value")]
    Quantiles,
    /// Weights that are all 0.
    #[error("at least one weight must be above 0")]
    Weights,
}

/// A distribution by its quantiles, straight lines between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantiles(Vec<(u16, u64)>);

impl Quantiles {
    /// Takes (thousandths, value) pairs from 0 to 1000.
    pub fn new(points: Vec<(u16, u64)>) -> Result<Self, ShapeError> {
        let spans = points.first().is_some_and(|first| first.0 == 0)
            && points.last().is_some_and(|last| last.0 == 1_000);
        let rises = points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        if spans && rises { Ok(Self(points)) } else { Err(ShapeError::Quantiles) }
    }

    /// The quantiles of `values`; `None` if there are none.
    pub(crate) fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let last = values.len().checked_sub(1)?;
        let at = |position: u16| values[last * usize::from(position) / 1_000];
        Some(Self(POSITIONS.iter().map(|&position| (position, at(position))).collect()))
    }

    /// The points, thousandths and value.
    pub fn points(&self) -> &[(u16, u64)] {
        &self.0
    }

    /// The same with every value at most `most`.
    #[must_use]
    pub fn capped(&self, most: u64) -> Self {
        Self(self.0.iter().map(|&(position, value)| (position, value.min(most))).collect())
    }

    /// The same with every value at least `least`.
    #[must_use]
    pub fn raised(&self, least: u64) -> Self {
        Self(self.0.iter().map(|&(position, value)| (position, value.max(least))).collect())
    }

    /// Always 1.
    pub(crate) fn one() -> Self {
        Self(vec![(0, 1), (1_000, 1)])
    }

    /// The mean in thousandths, rounded down.
    pub fn mean_milli(&self) -> u64 {
        let doubled: u128 = self
            .0
            .windows(2)
            .map(|pair| {
                u128::from(pair[1].0 - pair[0].0) * (u128::from(pair[0].1) + u128::from(pair[1].1))
            })
            .sum();
        u64::try_from(doubled / 2).unwrap_or(u64::MAX)
    }

    /// A value; rounding to a whole number goes up or down by chance, so that the mean stays.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        const FINE: u64 = 1 << 20;
        let position = random.below(WHOLE * FINE);
        let upper = self.0.partition_point(|point| u64::from(point.0) * FINE <= position);
        let (from, to) = (self.0[upper - 1], self.0[upper]);
        let width = u128::from(u64::from(to.0 - from.0) * FINE);
        let into = u128::from(position - u64::from(from.0) * FINE);
        let scaled = u128::from(to.1 - from.1) * into;
        let rest = u64::try_from(scaled % width).expect("below a width that fits 64 bits");
        let rounded_up = random.chance(rest, u64::try_from(width).expect("at most 2³⁰"));
        let whole = u64::try_from(scaled / width).expect("between two values that fit 64 bits");
        from.1 + whole + u64::from(rounded_up)
    }
}

/// A distribution over a few values, by weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights<T>(Vec<(T, u64)>);

impl<T: Copy> Weights<T> {
    /// Takes (value, weight) pairs.
    pub fn new(weights: Vec<(T, u64)>) -> Result<Self, ShapeError> {
        if weights.iter().all(|(_, weight)| *weight == 0) {
            return Err(ShapeError::Weights);
        }
        Ok(Self(weights))
    }

    /// The pairs.
    pub fn pairs(&self) -> &[(T, u64)] {
        &self.0
    }

    /// The sum of the weights, above 0.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }

    /// A value.
    pub(crate) fn draw(&self, random: &mut Random) -> T {
        let mut left = random.below(self.total());
        for (value, weight) in &self.0 {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *value,
            }
        }
        unreachable!("the draw is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_keep_their_mean_and_their_range() {
        let quantiles = Quantiles::new(vec![(0, 1), (900, 1), (1_000, 3)]).unwrap();
        assert_eq!(quantiles.mean_milli(), 1_100);
        let mut random = Random::new(7, 0);
        let draws: Vec<u64> = (0..100_000).map(|_| quantiles.draw(&mut random)).collect();
        assert!(draws.iter().all(|draw| (1..=3).contains(draw)));
        let sum: u64 = draws.iter().sum();
        assert!((109_000..111_000).contains(&sum), "{sum}");
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for bad in [vec![], vec![(0, 1)], vec![(0, 2), (1_000, 1)], vec![(1, 1), (1_000, 1)]] {
            assert_eq!(Quantiles::new(bad), Err(ShapeError::Quantiles));
        }
        assert_eq!(Weights::new(vec![(1, 0)]), Err(ShapeError::Weights));
        assert_eq!(Weights::<u8>::new(vec![]), Err(ShapeError::Weights));
    }

    #[test]
    fn weights_are_drawn_in_proportion_and_zero_never() {
        let weights = Weights::new(vec![('a', 3), ('b', 0), ('c', 1)]).unwrap();
        let mut random = Random::new(1, 0);
        let draws: Vec<char> = (0..4_000).map(|_| weights.draw(&mut random)).collect();
        let count = |letter| draws.iter().filter(|draw| **draw == letter).count();
        assert!((2_900..3_100).contains(&count('a')));
        assert_eq!(count('b'), 0);
    }
}
