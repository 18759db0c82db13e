//! CPU and memory of the host. An offer names either the slice's own or those of the whole node.

use sublet_protocol::capacity::Capacity;
use sublet_protocol::ids::{ClusterId, NodeId};
use sublet_protocol::leases::Member;
use sublet_protocol::offers::HostRoom;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::{CpuMilli, MiB};

use crate::fit::Candidate;
use crate::state::State;

/// What is used of a node's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HostUse {
    pub(crate) cpu: CpuMilli,
    pub(crate) memory: MiB,
}

impl HostUse {
    pub(crate) fn add(&mut self, cpu: CpuMilli, memory: MiB) {
        self.cpu = self.cpu.saturating_add(cpu);
        self.memory = self.memory.saturating_add(memory);
    }
}

/// What the leases on a node hold of its host.
pub(crate) fn host_use(state: &State, cluster: ClusterId, node: NodeId) -> HostUse {
    let mut used = HostUse::default();
    for (lease, slice) in state.leases_on(cluster, node) {
        let members = &state.leases[&lease].terms.members;
        let at = members.binary_search_by_key(&slice, |member: &Member| member.slice);
        if let Ok(at) = at {
            used.add(members[at].capacity.cpu, members[at].capacity.host_memory);
        }
    }
    used
}

/// How many slices of the request the host of a node still has room for.
pub(crate) fn host_seats(whole: &Capacity, used: HostUse, spec: &RequestSpec) -> usize {
    let times = |left: u64, each: u64| left.checked_div(each).unwrap_or(u64::MAX);
    let cpu = times(whole.cpu.saturating_sub(used.cpu).get(), spec.cpu.get());
    let left = whole.host_memory.saturating_sub(used.memory).get();
    usize::try_from(cpu.min(times(left, spec.host_memory.get()))).unwrap_or(usize::MAX)
}

impl Candidate {
    /// With the host room that the request would get: of a node's host what it asks for, at most what
    /// is left of it.
    pub(crate) fn hosted(mut self, host: HostRoom, used: HostUse, spec: &RequestSpec) -> Candidate {
        match host {
            HostRoom::Slice => {}
            HostRoom::Node => {
                let capacity = &mut self.capacity;
                capacity.cpu = capacity.cpu.saturating_sub(used.cpu).min(spec.cpu);
                let left = capacity.host_memory.saturating_sub(used.memory);
                capacity.host_memory = left.min(spec.host_memory);
            }
        }
        self
    }
}
