//! The tree against a reference that knows only the formulas, on random trees; decay and shares.

mod decay;
mod planted;
mod reference;
mod shares;
mod standings;
mod trees;

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Basis, Quota};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::{Moment, Tree};

/// A small generator with a seed (SplitMix64, Steele et al. 2014), so that a failing case has a name.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    const fn perhaps(&mut self, end: u64) -> Option<u64> {
        if self.below(3) == 0 { None } else { Some(self.below(end)) }
    }
}

fn name(number: usize) -> TenantId {
    const NAMES: [&str; 10] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];
    TenantId::new(NAMES[number]).unwrap()
}

fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

const fn milli(value: u64) -> GpuMilli {
    GpuMilli::new(value)
}

const fn at(seconds: u64) -> Moment {
    Moment {
        now: Timestamp::new(seconds * 1_000),
        half_life: Seconds::new(1_000),
        entry_penalty: Seconds::ZERO,
        tokens: 1,
    }
}

fn quota(nominal: u64, borrow: Option<u64>, lend: Option<u64>) -> Quota {
    Quota {
        nominal: milli(nominal),
        borrow_limit: borrow.map(milli),
        lend_limit: lend.map(milli),
        basis: Basis::Allowance,
    }
}
