//! INV-15: a request that is granted was waiting; a grant names live offers, of the newest generation and
//! start; a gang is active when all its members are prepared, and starts before it ends.

use sublet_protocol::events::Event;
use sublet_protocol::records::Record;

use super::Checker;

impl Checker {
    pub(super) fn grant_is_sound(&mut self, record: &Record) {
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
            _other => {}
        }
    }
}
