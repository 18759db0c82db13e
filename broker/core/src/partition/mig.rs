//! NVIDIA's MIG placement table and the choice of a place in it.
//!
//! Source: NVIDIA MIG user guide, "Supported MIG profiles", read 2026-11-30. A GPU of seven compute
//! slices has eight memory slices; an instance takes a run of them that may start only where its
//! profile allows. Profile ids and starts are the same on A100, H100 and H200; what a memory slice
//! holds is not. GPUs with another geometry (A30, RTX PRO) are not in the table: they are not divided.

use sublet_protocol::capacity::PciDevice;
use sublet_protocol::units::{GpuMilli, MiB};

/// Compute slices of a GPU in the table.
const COMPUTE_SLICES: u64 = 7;

/// A kind of MIG instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The driver's GPU instance profile id.
    pub id: u8,
    /// Compute slices, of seven.
    pub compute: u8,
    /// Memory slices, of eight.
    pub size: u8,
    /// Most instances of it on one GPU.
    pub max: u8,
    /// Memory slices at which it may start.
    pub starts: &'static [u8],
}

impl Profile {
    /// The share of the GPU's compute, rounded down: one slice of seven is 142 thousandths.
    #[must_use]
    pub fn gpu(&self) -> GpuMilli {
        GpuMilli::new(u64::from(self.compute) * 1_000 / COMPUTE_SLICES)
    }

    /// The memory slices it takes at `start`, a bit each; none if they do not exist.
    const fn slices(&self, start: u8) -> Option<u8> {
        let run = (1_u16 << self.size) - 1;
        let shifted = run << start;
        if start < 8 && shifted <= 0xff { Some(shifted.to_le_bytes()[0]) } else { None }
    }
}

const fn row(id: u8, (compute, size): (u8, u8), max: u8, starts: &'static [u8]) -> Profile {
    Profile { id, compute, size, max, starts }
}

/// The table, smallest first. `+me` (id 20) has the media engines.
pub const PROFILES: [Profile; 7] = [
    row(19, (1, 1), 7, &[0, 1, 2, 3, 4, 5, 6]),
    row(20, (1, 1), 1, &[0, 1, 2, 3, 4, 5, 6]),
    row(15, (1, 2), 4, &[0, 2, 4, 6]),
    row(14, (2, 2), 3, &[0, 2, 4]),
    row(9, (3, 4), 2, &[0, 4]),
    row(5, (4, 4), 1, &[0]),
    row(0, (7, 8), 1, &[0]),
];

/// The profile with the driver's id, if the table has it.
#[must_use]
pub fn profile(id: u8) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.id == id)
}

/// What MIG instances of a GPU hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The least that one memory slice gives an instance: that of the smallest profile. An instance of
    /// `k` slices has at least `k` times as much.
    slice_memory: MiB,
}

impl Geometry {
    /// The geometry of a GPU by its PCI device id; none for one that the table does not have.
    ///
    /// The memory is what the user guide's listings show for the smallest instance (4.75, 9.50 and
    /// 16.00 GiB), the smallest of several driver versions.
    #[must_use]
    pub const fn of(pci: PciDevice) -> Option<Geometry> {
        let memory = match pci.get() {
            // A100 40 GB: SXM4, PCIe; A800 40 GB.
            0x20b0 | 0x20f1 | 0x20f6 => 4_864,
            // A100 80 GB: SXM4, PCIe; A800 80 GB: SXM4, PCIe; H100 80 GB: SXM5, PCIe.
            0x20b2 | 0x20b5 | 0x20f3 | 0x20f5 | 0x2330 | 0x2331 => 9_728,
            // H200: SXM, NVL.
            0x2335 | 0x233b => 16_384,
            _another => return None,
        };
        Some(Geometry { slice_memory: MiB::new(memory) })
    }

    /// The least memory of an instance.
    #[must_use]
    pub fn memory(self, profile: &Profile) -> MiB {
        MiB::new(self.slice_memory.get().saturating_mul(profile.size.into()))
    }

    /// The smallest profile that holds this much; none if none does. Never one with media engines.
    #[must_use]
    pub fn smallest(self, gpu: GpuMilli, memory: MiB) -> Option<&'static Profile> {
        let holds = |profile: &&Profile| profile.gpu() >= gpu && self.memory(profile) >= memory;
        PROFILES.iter().filter(|profile| profile.id != 20).find(holds)
    }
}

/// Which memory slices of a GPU are taken by instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Layout {
    taken: u8,
    has_media: bool,
}

impl Layout {
    /// Whether no instance is there.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.taken == 0
    }

    /// Whether an instance of the profile may be made at `start` now.
    #[must_use]
    pub fn allows(self, profile: &Profile, start: u8) -> bool {
        let is_free = profile.slices(start).is_some_and(|slices| slices & self.taken == 0);
        let is_one_media = profile.id != 20 || !self.has_media;
        profile.starts.contains(&start) && is_free && is_one_media
    }

    /// With the instance. One that is not in the table takes everything.
    #[must_use]
    pub fn with(self, id: u8, start: u8) -> Layout {
        let slices = profile(id).and_then(|profile| profile.slices(start)).unwrap_or(0xff);
        Layout { taken: self.taken | slices, has_media: self.has_media || id == 20 }
    }

    /// Where to put an instance so that the largest hole is kept: the start that leaves the most
    /// [`room`](Layout::room), then the highest. On an empty GPU that is 6 for the smallest profile and
    /// 4 for `3g`. None if there is no room.
    #[must_use]
    pub fn best_start(self, profile: &Profile) -> Option<u8> {
        let free = profile.starts.iter().copied().filter(|start| self.allows(profile, *start));
        free.max_by_key(|start| (self.with(profile.id, *start).room(), *start))
    }

    /// The first legal start, for comparison.
    #[must_use]
    pub fn first_start(self, profile: &Profile) -> Option<u8> {
        profile.starts.iter().copied().find(|start| self.allows(profile, *start))
    }

    /// How much can still be made: the legal placements of all profiles, each counted by its compute
    /// slices, so that the place of one large instance outweighs those of several small ones.
    #[must_use]
    pub fn room(self) -> usize {
        let places = |profile: &Profile| {
            let free = profile.starts.iter().filter(|start| self.allows(profile, **start)).count();
            free * usize::from(profile.compute)
        };
        PROFILES.iter().map(places).sum()
    }

    /// Compute that instances could still have, at most: free memory slices bound it.
    #[must_use]
    pub fn free_gpu(self) -> GpuMilli {
        let free = u64::from(self.taken.count_zeros()).min(COMPUTE_SLICES);
        let is_whole = self.is_empty();
        GpuMilli::new(if is_whole { 1_000 } else { free * 1_000 / COMPUTE_SLICES })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn place(layout: Layout, id: u8) -> (Layout, Option<u8>) {
        let start = layout.best_start(profile(id).unwrap());
        (start.map_or(layout, |start| layout.with(id, start)), start)
    }

    #[test]
    fn the_first_3g_goes_to_4_and_the_first_1g_to_6() {
        assert_eq!(place(Layout::default(), 9).1, Some(4));
        assert_eq!(place(Layout::default(), 19).1, Some(6));
        assert_eq!(place(Layout::default(), 14).1, Some(4));
        let (with_3g, _) = place(Layout::default(), 9);
        assert!(with_3g.allows(profile(5).unwrap(), 0), "a 4g still fits beside a 3g");
    }

    #[test]
    fn seven_1g_fit_and_an_eighth_does_not() {
        let mut layout = Layout::default();
        let starts: BTreeSet<u8> = (0..7)
            .map(|_| {
                let (next, start) = place(layout, 19);
                layout = next;
                start.unwrap()
            })
            .collect();
        assert_eq!(starts.len(), 7);
        assert_eq!(place(layout, 19).1, None);
    }

    type Made = [(u8, u8)];

    /// Every way to fill a GPU step by step with legal placements.
    fn layouts(from: Layout, made: &mut Vec<(u8, u8)>, see: &mut dyn FnMut(&Made)) {
        see(made);
        for profile in &PROFILES {
            // In ascending order of placement, so that each set is seen once.
            let last = made.last().copied();
            let later = |start: &&u8| last.is_none_or(|last| (profile.id, **start) > last);
            for start in profile.starts.iter().filter(later) {
                if from.allows(profile, *start) {
                    made.push((profile.id, *start));
                    layouts(from.with(profile.id, *start), made, see);
                    made.pop();
                }
            }
        }
    }

    #[test]
    fn no_sequence_of_legal_placements_overlaps_or_exceeds_the_gpu_or_the_counts() {
        let mut seen = 0_u32;
        layouts(Layout::default(), &mut Vec::new(), &mut |made| {
            seen += 1;
            let of = |id: u8| profile(id).unwrap();
            let compute: u8 = made.iter().map(|(id, _)| of(*id).compute).sum();
            assert!(compute <= 7, "{made:?}");
            let mut taken = BTreeSet::new();
            for (id, start) in made {
                assert!(
                    (*start..start + of(*id).size).all(|slice| taken.insert(slice)),
                    "{made:?}"
                );
            }
            for profile in &PROFILES {
                let count = made.iter().filter(|(id, _)| *id == profile.id).count();
                assert!(count <= profile.max.into(), "{made:?}");
            }
        });
        assert!(seen > 500, "{seen} layouts were seen");
    }

    /// Which GPU and start, if any.
    type Choice = fn(&[Layout], &Profile) -> Option<(usize, u8)>;

    fn first_fit(gpus: &[Layout], profile: &Profile) -> Option<(usize, u8)> {
        let mut gpus = gpus.iter().enumerate();
        gpus.find_map(|(at, gpu)| gpu.first_start(profile).map(|start| (at, start)))
    }

    fn largest_hole(gpus: &[Layout], profile: &Profile) -> Option<(usize, u8)> {
        let starts = gpus.iter().enumerate();
        let starts = starts.filter_map(|(at, gpu)| gpu.best_start(profile).map(|s| (at, *gpu, s)));
        let loss = |(_, gpu, start): &(usize, Layout, u8)| {
            gpu.room() - gpu.with(profile.id, *start).room()
        };
        starts.min_by_key(loss).map(|(at, _, start)| (at, start))
    }

    /// How many of 2,000 random instances find a place on four GPUs; each stays for a random while.
    fn accepted(seed: u8, choose: Choice) -> u32 {
        // SplitMix64 (Steele et al., OOPSLA'14): enough for a test, and the same everywhere.
        let mut state = u64::from(seed);
        let mut draw = |bound: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % bound
        };
        let mut gpus = [const { Vec::<(u8, u8, u64)>::new() }; 4];
        let mut accepted = 0;
        for now in 0..2_000_u64 {
            for gpu in &mut gpus {
                gpu.retain(|(_, _, until)| *until > now);
            }
            let id = [19, 15, 14, 9, 5][usize::try_from(draw(5)).unwrap()];
            let until = now + 1 + draw(24);
            let layouts = gpus.each_ref().map(|gpu| {
                gpu.iter().fold(Layout::default(), |layout, made| layout.with(made.0, made.1))
            });
            if let Some((gpu, start)) = choose(&layouts, profile(id).unwrap()) {
                gpus[gpu].push((id, start, until));
                accepted += 1;
            }
        }
        accepted
    }

    /// Row G7.
    #[test]
    fn keeping_the_largest_hole_accepts_as_many_as_first_fit_in_95_of_100_seeds() {
        let wins = (0..100_u8).filter(|s| accepted(*s, largest_hole) >= accepted(*s, first_fit));
        let wins = wins.count();
        assert!(wins >= 95, "{wins} of 100");
    }

    #[test]
    fn what_the_table_does_not_have_is_refused_and_its_legal_neighbour_is_not() {
        let empty = Layout::default();
        let rows = [(9, 2, 4), (14, 6, 4), (5, 4, 0), (0, 4, 0), (19, 7, 6), (15, 1, 2)];
        for (id, bad, good) in rows {
            assert!(!empty.allows(profile(id).unwrap(), bad), "profile {id} at {bad}");
            assert!(empty.allows(profile(id).unwrap(), good), "profile {id} at {good}");
        }
        assert_eq!(profile(14).unwrap().slices(7), None, "a run beyond the last slice");
        assert!(profile(3).is_none());
    }

    #[test]
    fn a_second_instance_with_media_engines_is_refused() {
        let layout = Layout::default().with(20, 6);
        assert!(!layout.allows(profile(20).unwrap(), 5));
        assert!(layout.allows(profile(19).unwrap(), 5));
    }

    #[test]
    fn the_smallest_profile_that_holds_what_is_asked_is_chosen() {
        let h100 = Geometry::of(PciDevice::new(0x2330)).unwrap();
        let id = |gpu, memory| {
            h100.smallest(GpuMilli::new(gpu), MiB::new(memory)).map(|profile| profile.id)
        };
        assert_eq!(id(142, 9_728), Some(19));
        assert_eq!(id(142, 9_729), Some(15), "more memory, not more compute");
        assert_eq!(id(143, 0), Some(14));
        assert_eq!(id(286, 0), Some(9));
        assert_eq!(id(429, 0), Some(5));
        assert_eq!(id(572, 0), Some(0));
        assert_eq!(id(1, 80_000), None);
        assert_eq!(Geometry::of(PciDevice::new(0x20b7)), None, "an A30 is not in the table");
    }
}
