//! The tree against a reference that knows only the formulas, on random trees; decay and shares.

mod decay;
mod reference;
mod shares;
mod trees;

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Basis, Quota};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::tree::{Moment, Tree};

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

thread_local! {
    /// Made once: many trees ask for them.
    static NAMES: [TenantId; 10] =
        std::array::from_fn(|number| TenantId::new(&format!("t{number}")).unwrap());
    static MODEL: GpuModel = GpuModel::new("a100").unwrap();
}

fn name(number: usize) -> TenantId {
    NAMES.with(|names| names[number])
}

fn model() -> GpuModel {
    MODEL.with(|model| *model)
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
