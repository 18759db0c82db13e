//! What is live, as the records say: the checker's own fold, simpler than the state.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Actor, Command, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, ClusterId, LeaseId, NodeId, RequestId, TenantId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::records::Record;
use sublet_protocol::units::Timestamp;

/// A lease that has not ended.
#[derive(Debug, Clone)]
pub(super) struct LiveLease {
    pub(super) terms: LeaseTerms,
    pub(super) active_at: Option<Timestamp>,
    pub(super) is_ending: bool,
    /// True time of its last change of stage.
    pub(super) since: u64,
    pub(super) confirmed: BTreeSet<SliceId>,
    pub(super) stopped: BTreeSet<SliceId>,
    /// Whether each stopped member was reported by its agent.
    pub(super) is_reported: bool,
    /// Whether a later start of an agent reported one: what ran since the last renewal is lost.
    pub(super) is_resumed: bool,
}

/// An open offer: generation, the start that offers, and when it expires.
pub(super) type LiveOffer = (u64, Boot, Timestamp);

/// Everything that is live.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) leases: BTreeMap<LeaseId, LiveLease>,
    pub(super) offers: BTreeMap<SliceId, LiveOffer>,
    /// Open requests, with whether they wait.
    pub(super) requests: BTreeMap<RequestId, (TenantId, bool)>,
    /// The newest start of each node.
    pub(super) nodes: BTreeMap<(ClusterId, NodeId), Boot>,
}

impl Live {
    pub(super) fn record(&mut self, now: u64, record: &Record, stamped: &Stamped) {
        match &record.event {
            Event::NodeRegistered { cluster, node, boot, .. } => {
                self.nodes.insert((*cluster, *node), *boot);
            }
            Event::CapacityOffered { offer, expires_at } => {
                self.offers.insert(offer.slice, (offer.generation, offer.boot, *expires_at));
            }
            Event::OfferRescinded { slice, .. } => {
                self.offers.remove(slice);
            }
            Event::RequestSubmitted { request, tenant, .. }
            | Event::RequestRequeued { request, tenant, .. } => {
                self.requests.insert(*request, (*tenant, true));
            }
            Event::RequestCancelled { request, .. } | Event::RequestClosed { request, .. } => {
                self.requests.remove(request);
            }
            Event::LeaseGranted { terms, .. } => self.granted(now, terms),
            Event::MemberConfirmed { lease, slice } => {
                if let Some(one) = self.leases.get_mut(lease) {
                    one.confirmed.insert(*slice);
                }
            }
            Event::LeaseActivated { lease, .. } => {
                if let Some(one) = self.leases.get_mut(lease) {
                    one.active_at = Some(record.time);
                    one.since = now;
                }
            }
            Event::LeaseEnding { lease, .. } => {
                if let Some(one) = self.leases.get_mut(lease) {
                    one.is_ending = true;
                    one.since = now;
                }
            }
            Event::MemberStopped { lease, slice, .. }
            | Event::MemberRefused { lease, slice, .. } => {
                if let Some(one) = self.leases.get_mut(lease) {
                    one.stopped.insert(*slice);
                    one.is_reported &= is_report(stamped);
                    one.is_resumed |= is_of_later_start(&one.terms, stamped);
                }
            }
            Event::LeaseEnded { lease, .. } => {
                self.leases.remove(lease);
            }
            _other => {}
        }
    }

    fn granted(&mut self, now: u64, terms: &LeaseTerms) {
        for member in &terms.members {
            self.offers.remove(&member.slice);
        }
        if let Some((_, waits)) = self.requests.get_mut(&terms.request) {
            *waits = false;
        }
        let fresh = LiveLease {
            terms: terms.clone(),
            active_at: None,
            is_ending: false,
            since: now,
            confirmed: BTreeSet::new(),
            stopped: BTreeSet::new(),
            is_reported: true,
            is_resumed: false,
        };
        self.leases.insert(terms.lease, fresh);
    }
}

fn is_of_later_start(terms: &LeaseTerms, stamped: &Stamped) -> bool {
    match &stamped.command {
        Command::ReportStopped { slice, boot, .. } => {
            terms.members.iter().any(|member| member.slice == *slice && member.boot < *boot)
        }
        // A start settles what earlier ones ran before it says hello (LB3).
        Command::RegisterNode { .. } => true,
        _other => false,
    }
}

fn is_report(stamped: &Stamped) -> bool {
    let is_word = matches!(
        stamped.command,
        Command::ReportStopped { .. } | Command::RefuseMember { .. } | Command::RegisterNode { .. }
    );
    is_word && matches!(stamped.actor, Actor::Agent { .. })
}
