//! The one source of chance: ChaCha8, whose stream is fixed by its definition on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of numbers, given by a seed and the number of the stream.
#[derive(Debug, Clone)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// Stream `stream` of `seed`; streams of one seed do not influence each other.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut chacha = ChaCha8Rng::from_seed(key);
        chacha.set_stream(stream);
        Self(chacha)
    }

    /// A number of `0..bound`, 0 if the bound is 0. The bias is below bound / 2⁶⁴ (Lemire 2019).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.0.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of 128 bits")
    }

    /// True in `part` of `whole` cases.
    pub(crate) fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }
}
