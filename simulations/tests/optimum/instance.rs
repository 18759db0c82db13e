//! Matching instances: requests for gangs, pools of slices, and what may go where.
//!
//! Each pool is one cluster with a GPU model of its own; a request lists the models it takes. What is
//! to be maximised is the weight served: a slice that serves a request of the reserved tier counts 4,
//! of the standard tier 2, of the opportunistic tier 1, and a request is served with all its slices
//! from one pool or not at all.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sublet_protocol::requests::Tier;

pub(crate) const REQUESTS: usize = 60;
pub(crate) const SLICES: u32 = 150;
const POOLS: usize = 8;

/// A gang of `count` slices that may stand in some of the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) tier: Tier,
    pub(crate) count: u32,
    /// A bit for each pool.
    pub(crate) pools: u32,
}

impl Ask {
    /// What serving it counts.
    pub(crate) fn weight(&self) -> u32 {
        self.count * weight(self.tier)
    }
}

/// What a slice counts that serves this tier.
pub(crate) const fn weight(tier: Tier) -> u32 {
    match tier {
        Tier::Reserved => 4,
        Tier::Standard => 2,
        Tier::Opportunistic => 1,
    }
}

/// Pools by their number of free slices, and requests in the order of their submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) seed: u64,
    pub(crate) pools: Vec<u32>,
    pub(crate) asks: Vec<Ask>,
}

struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, limit: u32) -> u32 {
        self.0.next_u32() % limit
    }

    /// One of the values, each as likely as its number says.
    fn one_of<T: Copy>(&mut self, values: &[(u32, T)]) -> T {
        let sum = values.iter().map(|(chance, _)| chance).sum();
        let mut left = self.below(sum);
        for (chance, value) in values {
            if left < *chance {
                return *value;
            }
            left -= chance;
        }
        values[0].1
    }
}

impl Instance {
    /// The instance of a seed: about a quarter more is asked than there is.
    pub(crate) fn generate(seed: u64) -> Instance {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let mut pools = vec![4; POOLS];
        for _ in pools.iter().sum::<u32>()..SLICES {
            pools[usize::try_from(dice.below(8)).expect("a place")] += 1;
        }
        let ask = |_| {
            let tiers = [(2, Tier::Reserved), (5, Tier::Standard), (3, Tier::Opportunistic)];
            let tier = dice.one_of(&tiers);
            let count = dice.one_of(&[(7, 1), (5, 2), (4, 4), (4, 8)]);
            let mut pools = 1 << dice.below(8);
            for _ in 0..dice.below(4) {
                pools |= 1 << dice.below(8);
            }
            Ask { tier, count, pools }
        };
        let asks = (0..REQUESTS).map(ask).collect();
        Instance { seed, pools, asks }
    }
}

fn letter(pool: usize) -> char {
    char::from(b'a' + u8::try_from(pool).unwrap_or(0))
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}\npools", self.seed)?;
        for (pool, slices) in self.pools.iter().enumerate() {
            write!(f, " {}{slices}", letter(pool))?;
        }
        write!(f, "\nrequests")?;
        for ask in &self.asks {
            let tier = match ask.tier {
                Tier::Reserved => 'R',
                Tier::Standard => 'S',
                Tier::Opportunistic => 'O',
            };
            write!(f, " {tier}{}", ask.count)?;
            for pool in (0..self.pools.len()).filter(|pool| ask.pools & (1 << pool) != 0) {
                write!(f, "{}", letter(pool))?;
            }
        }
        writeln!(f)
    }
}

impl FromStr for Ask {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Ask> {
        let tier = match text.chars().next() {
            Some('R') => Tier::Reserved,
            Some('S') => Tier::Standard,
            Some('O') => Tier::Opportunistic,
            other => anyhow::bail!("no tier: {other:?}"),
        };
        let rest = text.get(1..).context("a request has a count")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).context("a request names pools")?;
        let pools = rest[digits..].bytes().map(|byte| 1 << (byte - b'a')).sum();
        Ok(Ask { tier, count: rest[..digits].parse()?, pools })
    }
}

impl FromStr for Instance {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Instance> {
        let mut lines = text.lines();
        let mut line = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name));
            line.map(str::trim).with_context(|| format!("a line {name}"))
        };
        let seed = line("seed")?.parse()?;
        let pools = line("pools")?.split(' ').map(|pool| pool[1..].parse());
        let pools = pools.collect::<Result<_, _>>()?;
        let asks = line("requests")?.split(' ').map(str::parse).collect::<anyhow::Result<_>>()?;
        Ok(Instance { seed, pools, asks })
    }
}
