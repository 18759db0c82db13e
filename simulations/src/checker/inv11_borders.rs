//! INV-11: no message of an agent changes a lease that has no member on its node, and no tenant
//! changes another's.

use sublet_core::Applied;
use sublet_protocol::commands::{Actor, Stamped};

use super::Checker;

impl Checker {
    pub(super) fn within_borders(&mut self, stamped: &Stamped, applied: &Applied) {
        for record in &applied.records {
            let Some(lease) = record.event.lease() else { continue };
            let Some(one) = self.live.leases.get(&lease) else { continue };
            let is_allowed =
                match &stamped.actor {
                    Actor::Agent { cluster, node } => one.terms.members.iter().any(|member| {
                        (member.slice.cluster, member.slice.node) == (*cluster, *node)
                    }),
                    Actor::Tenant { tenant, .. } => one.terms.tenant == *tenant,
                    Actor::Operator { .. } | Actor::Leader => true,
                };
            self.check(11, is_allowed, || format!("{lease} was changed by {:?}", stamped.actor));
        }
    }
}
