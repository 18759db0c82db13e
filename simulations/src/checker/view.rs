//! What the actors of the simulation may know of what was committed: tenants see their leases.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{ClusterId, LeaseId, RequestId, TenantId, Token};
use sublet_protocol::units::GpuMilli;

use super::Checker;
use super::live::LiveLease;

impl Checker {
    /// The grace of a lease's guests, in milliseconds.
    pub(crate) fn grace_of(&self, lease: LeaseId) -> u64 {
        let lease = self.live.leases.get(&lease);
        lease.map_or(0, |one| one.terms.grace.as_millis().get())
    }

    pub(crate) fn token_of(&self, lease: LeaseId) -> Option<Token> {
        self.live.leases.get(&lease).map(|one| one.terms.token)
    }

    /// Some lease of a cluster, or one outside it.
    pub(crate) fn lease_to_forge(
        &self,
        cluster: ClusterId,
        is_own: bool,
    ) -> Option<(LeaseId, SliceId, Token)> {
        let fits = |one: &&LiveLease| (one.terms.cluster == cluster) == is_own;
        let lease = self.live.leases.values().find(fits)?;
        let member = lease.terms.members.first()?;
        Some((lease.terms.lease, member.slice, lease.terms.token))
    }

    /// The `place`th lease of a tenant, counted round and round.
    pub(crate) fn lease_of(&self, tenant: TenantId, place: u64) -> Option<LeaseId> {
        let its = self.live.leases.values().filter(|one| one.terms.tenant == tenant);
        let its: Vec<LeaseId> = its.map(|one| one.terms.lease).collect();
        nth(&its, place)
    }

    /// The `place`th open request of a tenant, counted round and round.
    pub(crate) fn request_of(&self, tenant: TenantId, place: u64) -> Option<RequestId> {
        let its = self.live.requests.iter().filter(|(_, (owner, _))| *owner == tenant);
        let its: Vec<RequestId> = its.map(|(id, _)| *id).collect();
        nth(&its, place)
    }

    pub(crate) fn open_requests(&self, tenant: TenantId) -> u32 {
        let its = self.live.requests.values().filter(|(owner, _)| *owner == tenant);
        u32::try_from(its.count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn held_by(&self, tenant: TenantId) -> GpuMilli {
        let its = self.live.leases.values().filter(|one| one.terms.tenant == tenant);
        its.fold(GpuMilli::ZERO, |sum, one| sum.saturating_add(one.terms.gpu_total()))
    }

    pub(crate) fn all_requests(&self) -> Vec<RequestId> {
        self.live.requests.keys().copied().collect()
    }

    pub(crate) fn all_leases(&self) -> Vec<LeaseId> {
        self.live.leases.keys().copied().collect()
    }
}

fn nth<T: Copy>(items: &[T], place: u64) -> Option<T> {
    let count = u64::try_from(items.len()).ok().filter(|count| *count > 0)?;
    items.get(usize::try_from(place % count).ok()?).copied()
}
