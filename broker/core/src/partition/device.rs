//! What is taken of one physical GPU that is offered whole and may be divided, and what can be carved
//! out of the rest.
//!
//! The offer of such a GPU says what the whole holds and stays open while parts of it are leased: it
//! stands for what is left. One isolation class at a time: a lease of the whole excludes everything,
//! and MIG instances, MPS shares and time slices exclude each other.

use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::ids::RequestId;
use sublet_protocol::leases::Member;
use sublet_protocol::offers::{HostRoom, MigMode, OfferTerms, SharedBy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::{GpuMilli, MiB};

use super::gradient::Free;
use super::host::HostUse;
use super::mig::{self, Geometry, Layout};
use super::share::{SHARES_MAX, room_for_shares, share_memory};
use crate::state::State;

/// What is taken of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceRoom {
    isolation: Option<Isolation>,
    pub(super) gpu: GpuMilli,
    pub(super) memory: MiB,
    pub(super) layout: Layout,
    /// Numbers of shares in use, a bit each.
    shares: u64,
    host: HostUse,
}

/// A part that is kept for a request and not leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) part: Part,
    pub(crate) request: RequestId,
    pub(crate) capacity: Capacity,
}

/// Whether the slices are on one physical GPU.
fn is_same_device(a: &SliceId, b: &SliceId) -> bool {
    (a.cluster, a.node, a.device) == (b.cluster, b.node, b.device)
}

const fn share_bit(index: u8) -> Option<u64> {
    1_u64.checked_shl(u32::from_le_bytes([index, 0, 0, 0]))
}

impl DeviceRoom {
    /// What leases take of the slice's device.
    pub(crate) fn leased(state: &State, slice: SliceId) -> DeviceRoom {
        let mut room = DeviceRoom::default();
        let first = SliceId { part: Part::Whole, ..slice };
        let here = state.leased.range(first..);
        for (other, lease) in here.take_while(|(other, _)| is_same_device(other, &slice)) {
            let members = &state.leases[lease].terms.members;
            let at = members.binary_search_by_key(other, |member: &Member| member.slice);
            if let Ok(at) = at {
                room.take(other.part, &members[at].capacity);
            }
        }
        room
    }

    /// The parts of the offered device that are kept for requests and not leased.
    pub(crate) fn kept(state: &State, terms: &OfferTerms) -> Vec<Kept> {
        let first = SliceId { part: Part::Whole, ..terms.slice };
        let here = state.pledged.range(first..);
        here.take_while(|(other, _)| is_same_device(other, &terms.slice))
            .filter(|(slice, _)| !state.leased.contains_key(slice))
            .filter_map(|(slice, request)| {
                let spec = &state.requests.get(request)?.spec;
                let capacity = promise(terms, slice.part, spec);
                Some(Kept { part: slice.part, request: *request, capacity })
            })
            .collect()
    }

    /// With what is kept for requests other than `request`.
    pub(crate) fn with_kept(mut self, kept: &[Kept], request: RequestId) -> DeviceRoom {
        for kept in kept.iter().filter(|kept| kept.request != request) {
            self.take(kept.part, &kept.capacity);
        }
        self
    }

    /// Takes a part.
    pub(crate) fn take(&mut self, part: Part, capacity: &Capacity) {
        self.isolation = Some(capacity.isolation);
        self.gpu = self.gpu.saturating_add(capacity.gpu);
        self.memory = self.memory.saturating_add(capacity.memory);
        self.host.add(capacity.cpu, capacity.host_memory);
        match part {
            Part::Whole => {}
            Part::Mig { profile, start } => self.layout = self.layout.with(profile, start),
            Part::Share { index } => self.shares |= share_bit(index).unwrap_or(0),
        }
    }

    /// Whether nothing is taken.
    pub(crate) const fn is_empty(&self) -> bool {
        self.isolation.is_none()
    }

    /// What is free of the offered GPU; none if that is all of it.
    pub(crate) fn free(&self, terms: &OfferTerms) -> Option<Free> {
        let left = Free::Shared {
            gpu: GpuMilli::DEVICE.saturating_sub(self.gpu),
            memory: room_for_shares(&terms.capacity).saturating_sub(self.memory),
        };
        match self.isolation? {
            Isolation::Exclusive => Some(Free::Instance { gpu: GpuMilli::ZERO, memory: MiB::ZERO }),
            Isolation::Mps | Isolation::TimeSlice => Some(left),
            Isolation::Mig => {
                let geometry = geometry(&terms.capacity.hardware)?;
                Some(Free::Partitioned { layout: self.layout, geometry })
            }
        }
    }

    fn excludes(&self, isolation: Isolation) -> bool {
        self.isolation.is_some_and(|present| present != isolation)
    }

    /// The parts that could serve the request, one of each kind: the whole, the smallest MIG instance
    /// that holds it at the start that keeps the largest hole, a share.
    pub(crate) fn parts(&self, terms: &OfferTerms, spec: &RequestSpec) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.is_empty() {
            parts.push(Part::Whole);
        }
        let geometry = geometry(&terms.capacity.hardware);
        let mig = geometry.filter(|_| terms.division.mig == MigMode::On);
        if let Some(profile) = mig.and_then(|mig| mig.smallest(spec.gpu, spec.memory))
            && !self.excludes(Isolation::Mig)
            // An instance of everything is worth less than the whole GPU that it needs.
            && profile.gpu() < GpuMilli::DEVICE
            && let Some(start) = self.layout.best_start(profile)
        {
            parts.push(Part::Mig { profile: profile.id, start });
        }
        if terms.division.shared.is_some() && spec.gpu < GpuMilli::DEVICE {
            let free =
                (0..u8::MAX).find(|index| share_bit(*index).is_none_or(|b| self.shares & b == 0));
            parts.extend(free.map(|index| Part::Share { index }));
        }
        parts
    }
}

fn geometry(hardware: &Hardware) -> Option<Geometry> {
    hardware.pci.and_then(Geometry::of)
}

/// What a part holds that is kept for a request.
fn promise(terms: &OfferTerms, part: Part, spec: &RequestSpec) -> Capacity {
    let whole = terms.capacity;
    match part {
        Part::Whole => whole,
        Part::Mig { profile, .. } => Capacity {
            gpu: mig::profile(profile).map_or(GpuMilli::DEVICE, mig::Profile::gpu),
            memory: MiB::ZERO,
            cpu: spec.cpu,
            host_memory: spec.host_memory,
            isolation: Isolation::Mig,
            ..whole
        },
        Part::Share { .. } => Capacity {
            gpu: spec.gpu,
            memory: share_memory(&whole, spec),
            cpu: spec.cpu,
            host_memory: spec.host_memory,
            isolation: terms.division.shared.map_or(Isolation::Mps, SharedBy::isolation),
            ..whole
        },
    }
}

/// What the request gets of the part of the offered GPU, `room` being taken.
///
/// Refuses what is no part of such a GPU (`PartIllegal`) and what there is no room for (`DeviceTaken`):
/// another isolation class is present, the place is taken, or a sum would exceed the GPU.
pub(crate) fn carve(
    terms: &OfferTerms,
    room: &DeviceRoom,
    part: Part,
    spec: &RequestSpec,
) -> Result<Capacity, Rejection> {
    let whole = terms.capacity;
    let mut given = promise(terms, part, spec);
    match part {
        Part::Whole if room.is_empty() => return Ok(whole),
        Part::Whole => return Err(Rejection::DeviceTaken),
        Part::Mig { profile, start } => {
            let geometry = geometry(&whole.hardware).filter(|_| terms.division.mig == MigMode::On);
            let geometry = geometry.ok_or(Rejection::PartIllegal)?;
            let profile = mig::profile(profile).ok_or(Rejection::PartIllegal)?;
            if !profile.starts.contains(&start) {
                return Err(Rejection::PartIllegal);
            }
            if room.excludes(Isolation::Mig) || !room.layout.allows(profile, start) {
                return Err(Rejection::DeviceTaken);
            }
            given.memory = geometry.memory(profile).min(whole.memory);
        }
        Part::Share { index } => {
            let shared = terms.division.shared.ok_or(Rejection::PartIllegal)?;
            let bit = share_bit(index).filter(|_| usize::from(index) < SHARES_MAX);
            let bit = bit.ok_or(Rejection::PartIllegal)?;
            if given.gpu >= GpuMilli::DEVICE || given.memory == MiB::ZERO {
                return Err(Rejection::PartIllegal);
            }
            let gpu = room.gpu.saturating_add(given.gpu);
            let memory = room.memory.saturating_add(given.memory);
            let has_room = gpu <= GpuMilli::DEVICE && memory <= room_for_shares(&whole);
            if room.excludes(shared.isolation()) || room.shares & bit != 0 || !has_room {
                return Err(Rejection::DeviceTaken);
            }
        }
    }
    match terms.host {
        // Of the GPU's own host room what is left; whether it suffices is judged with the rest.
        HostRoom::Slice => {
            given.cpu = whole.cpu.saturating_sub(room.host.cpu).min(spec.cpu);
            let left = whole.host_memory.saturating_sub(room.host.memory);
            given.host_memory = left.min(spec.host_memory);
        }
        HostRoom::Node => {
            given.cpu = whole.cpu;
            given.host_memory = whole.host_memory;
        }
    }
    Ok(given)
}

/// Whether two parts of one device use the same hardware. MIG instances by the placement table where
/// the GPU is in it; else equal starts count, and the agent refuses the rest.
pub(crate) fn overlap(hardware: &Hardware, a: Part, b: Part) -> bool {
    match (a, b, geometry(hardware)) {
        (
            Part::Mig { profile: first, start },
            Part::Mig { profile: second, start: other },
            Some(_),
        ) => {
            let taken = Layout::default().with(first, start);
            mig::profile(second).is_none_or(|profile| !taken.allows(profile, other))
        }
        (Part::Whole | Part::Mig { .. } | Part::Share { .. }, _, _) => a.overlaps(b),
    }
}

/// Whether the part can be one of such a GPU: MIG instances by the placement table where the GPU is in
/// it.
pub(crate) fn is_legal(hardware: &Hardware, part: Part) -> bool {
    match (part, geometry(hardware)) {
        (Part::Mig { profile, start }, Some(_)) => {
            mig::profile(profile).is_some_and(|profile| profile.starts.contains(&start))
        }
        (Part::Whole | Part::Mig { .. } | Part::Share { .. }, _) => true,
    }
}
