//! Shares of a GPU under MPS or time slices: integer thousandths and integer MiB, sums never above the
//! whole.

use sublet_protocol::capacity::Capacity;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::MiB;

/// Most shares of one GPU: what MPS serves at once (NVIDIA MPS documentation, 48 clients on Volta and
/// later).
pub const SHARES_MAX: usize = 48;

/// What no share may have of a GPU with this much memory: 3 %, rounded up, and at least 256 MiB. The
/// driver and the contexts of its clients need it.
#[must_use]
pub fn memory_margin(total: MiB) -> MiB {
    MiB::new(total.get().saturating_mul(3).div_ceil(100).max(256))
}

/// What all shares of the GPU may have together: its total less the driver's part and the margin.
pub(crate) fn room_for_shares(whole: &Capacity) -> MiB {
    // `memory` is the total less the driver's part already.
    let total = whole.hardware.memory_total.unwrap_or(whole.memory);
    whole.memory.saturating_sub(memory_margin(total))
}

/// What a share of the GPU gets for the request: what it asks for, else its part of the room, rounded
/// down.
pub(crate) fn share_memory(whole: &Capacity, spec: &RequestSpec) -> MiB {
    if spec.memory > MiB::ZERO {
        return spec.memory;
    }
    MiB::new(room_for_shares(whole).get().saturating_mul(spec.gpu.get()) / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_three_percent_rounded_up_and_at_least_256_mib() {
        let rows = [(0, 256), (8_533, 256), (8_534, 257), (24_576, 738), (81_559, 2_447)];
        for (total, margin) in rows {
            assert_eq!(memory_margin(MiB::new(total)), MiB::new(margin), "of {total}");
        }
    }
}
