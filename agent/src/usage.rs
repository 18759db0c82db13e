//! What guests use: the GPU's own word, and the CPU time of their processes. No clock, no I/O.
//!
//! A guest uses nothing only if that is shown: the GPU says exactly 0 %, and the CPU time, where the
//! driver knows it, hardly grows. What the GPU says is of the whole device, so a neighbour at work on a
//! shared one counts as use by all. Unknown is not zero.

use std::collections::BTreeMap;

use sublet_protocol::units::Millis;

use crate::driver::GuestKey;
use crate::probe::Percent;
use crate::session::GuestUse;

/// CPU time that counts as none: less than one part in this many of one core. A notebook that nobody
/// uses wakes up now and then; a job that loads or reads anything takes far more.
const CORE_PARTS: u64 = 100;

/// Looks at guests from time to time.
#[derive(Debug)]
pub struct UseWatch {
    gap_max: Millis,
    guests: BTreeMap<GuestKey, Look>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Millis,
    cpu: Option<Millis>,
}

impl UseWatch {
    /// Between two looks at a guest that are further apart than `gap_max` it may have done anything.
    #[must_use]
    pub const fn new(gap_max: Millis) -> Self {
        Self { gap_max, guests: BTreeMap::new() }
    }

    /// Takes a look at a guest: what its GPU says, and the CPU time it has had. What it used since the
    /// last look; of the first nothing can be said.
    pub fn see(
        &mut self,
        now: Millis,
        key: GuestKey,
        (gpu, cpu): (Option<Percent>, Option<Millis>),
    ) -> GuestUse {
        let before = self.guests.insert(key, Look { at: now, cpu });
        let Some(before) = before else { return GuestUse::Unknown };
        let passed = now.saturating_sub(before.at);
        let is_working = match (before.cpu, cpu) {
            (Some(before), Some(cpu)) => {
                let grown = cpu.saturating_sub(before);
                Some(grown.get() > passed.get() / CORE_PARTS)
            }
            // It was known and no longer is, or the other way round.
            (Some(_), None) | (None, Some(_)) => return GuestUse::Unknown,
            (None, None) => None,
        };
        match (gpu, is_working) {
            (_, Some(true)) => GuestUse::Some,
            (Some(gpu), _) if gpu > Percent::ZERO => GuestUse::Some,
            (Some(_), Some(false) | None) if passed <= self.gap_max => GuestUse::Nothing,
            (Some(_) | None, Some(false) | None) => GuestUse::Unknown,
        }
    }

    /// Forgets guests that are not `running`.
    pub fn keep(&mut self, running: &[GuestKey]) {
        self.guests.retain(|key, _| running.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::capacity::{Part, SliceId};
    use sublet_protocol::ids::{ClusterId, DeviceId, NodeId, Token};

    use super::*;

    fn key() -> GuestKey {
        let slice = SliceId {
            cluster: ClusterId::new("c").unwrap(),
            node: NodeId::new("n").unwrap(),
            device: DeviceId::new(1),
            part: Part::Whole,
        };
        GuestKey { slice, token: Token { epoch: 0, counter: 1 } }
    }

    /// A second look 30 s after a first at which the guest had used 1 s of CPU.
    fn second(gpu: Option<u8>, cpu: Option<u64>) -> GuestUse {
        let mut watch = UseWatch::new(Millis::new(120_000));
        let first = (Some(Percent::ZERO), Some(Millis::new(1_000)));
        assert_eq!(watch.see(Millis::new(5_000), key(), first), GuestUse::Unknown);
        let look = (gpu.map(Percent::saturating), cpu.map(Millis::new));
        watch.see(Millis::new(35_000), key(), look)
    }

    #[test]
    fn only_a_gpu_that_says_zero_and_a_cpu_that_stands_still_are_nothing() {
        let rows = [
            (Some(0), Some(1_000), GuestUse::Nothing),
            (Some(0), Some(1_300), GuestUse::Nothing),
            (Some(0), Some(1_301), GuestUse::Some),
            (Some(1), Some(1_000), GuestUse::Some),
            (None, Some(1_000), GuestUse::Unknown),
            (None, Some(9_000), GuestUse::Some),
            (Some(0), None, GuestUse::Unknown),
        ];
        for (gpu, cpu, expected) in rows {
            assert_eq!(second(gpu, cpu), expected, "GPU {gpu:?}, CPU {cpu:?}");
        }
    }

    #[test]
    fn where_nobody_knows_the_cpu_the_gpu_alone_decides() {
        let mut watch = UseWatch::new(Millis::new(120_000));
        let mut see = |at, gpu: Option<u8>| {
            watch.see(Millis::new(at), key(), (gpu.map(Percent::saturating), None))
        };
        let seen = [(0, Some(0)), (30_000, Some(0)), (60_000, Some(7)), (90_000, None)];
        let seen = seen.map(|(at, gpu)| see(at, gpu));
        use GuestUse::{Nothing, Some as Used, Unknown};
        assert_eq!(seen, [Unknown, Nothing, Used, Unknown]);
    }

    #[test]
    fn what_was_not_looked_at_for_too_long_is_not_known_and_who_is_gone_is_forgotten() {
        let mut watch = UseWatch::new(Millis::new(120_000));
        let idle = (Some(Percent::ZERO), None);
        watch.see(Millis::ZERO, key(), idle);
        assert_eq!(watch.see(Millis::new(120_001), key(), idle), GuestUse::Unknown);
        assert_eq!(watch.see(Millis::new(240_001), key(), idle), GuestUse::Nothing);
        watch.keep(&[]);
        assert_eq!(watch.see(Millis::new(240_002), key(), idle), GuestUse::Unknown);
    }
}
