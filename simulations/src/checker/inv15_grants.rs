//! INV-15: a request that is granted was waiting; a grant names live offers, of the newest generation and
//! start, those that the plan meant; no lease outlives the start of the agent that it was granted to; a gang is active when all its members are prepared, and starts before it ends.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Command, PlanGroup, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::RequestId;
use sublet_protocol::records::Record;

use super::Checker;

impl Checker {
    pub(super) fn grant_is_sound(&mut self, record: &Record, stamped: &Stamped) {
        match &record.event {
            Event::LeaseGranted { terms, .. } => {
                let waits = self.live.requests.get(&terms.request).is_some_and(|(_, waits)| *waits);
                self.check(15, waits, || format!("{} was not waiting", terms.request));
                for member in &terms.members {
                    let offer = self.live.offers.get(&member.slice);
                    let slice = member.slice;
                    let newest = self.live.nodes.get(&(slice.cluster, slice.node));
                    let stands = offer.is_some_and(|(generation, boot, expires_at)| {
                        *generation == member.generation
                            && *boot == member.boot
                            && Some(boot) == newest
                            && *expires_at > record.time
                            && meant(stamped, terms.request, slice) == Some(*generation)
                    });
                    self.check(15, stands, || format!("{slice} is granted and not on offer"));
                }
            }
            Event::LeaseActivated { lease, ends_at } => {
                let ends = *ends_at;
                self.check(15, ends > record.time, || format!("{lease} ends before it starts"));
                let all = self.live.leases.get(lease).is_some_and(|one| {
                    one.terms.members.iter().all(|member| one.confirmed.contains(&member.slice))
                });
                self.check(15, all, || format!("{lease} is active before all are prepared"));
                self.probe_is_served(*lease);
            }
            Event::NodeRegistered { cluster, node, boot, .. } => {
                let old = self.live.leases.values().find(|one| {
                    one.terms.members.iter().any(|member| {
                        (member.slice.cluster, member.slice.node) == (*cluster, *node)
                            && member.boot < *boot
                            && !one.stopped.contains(&member.slice)
                    })
                });
                let old = old.map(|one| one.terms.lease);
                self.check(15, old.is_none(), || {
                    format!("{old:?} lives on at {cluster}/{node}, which has started anew")
                });
            }
            _other => {}
        }
    }
}

/// The generation that the plan named for a slice of a request.
fn meant(stamped: &Stamped, request: RequestId, slice: SliceId) -> Option<u64> {
    let Command::CommitPlan { groups } = &stamped.command else { return None };
    let members = groups.iter().find_map(|group| match group {
        PlanGroup::Grant { request: its, members } if *its == request => Some(members),
        PlanGroup::Grant { .. }
        | PlanGroup::Preempt { .. }
        | PlanGroup::Promise { .. }
        | PlanGroup::Withdraw { .. } => None,
    });
    members?.iter().find(|member| member.slice == slice).map(|member| member.generation)
}
