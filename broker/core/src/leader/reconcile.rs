//! Whether the three that must agree do: what the state leases, what agents hold, what guests use.
//!
//! Soft state: nothing in the log depends on it and nothing is ended by it. Each inventory of an agent
//! is held against the state; what two of them in a row show is a leak, and a person is told. A new
//! leader begins with nothing and knows every agent again within two inventories. Of an agent that has
//! not reported for as long it is not known, which is not the same as that nothing leaks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sublet_protocol::agent::Held;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, TenantId};
use sublet_protocol::money::{MicroCredits, cost_half_even};
use sublet_protocol::units::{Millis, Seconds, Timestamp};

use super::Leader;
use crate::state::{Lease, LeaseStage, State};

/// One cycle: agents report everything they hold this often.
pub const CYCLE: Seconds = Seconds::new(30);
/// Cycles in a row that must show a leak before it is told.
const CYCLES: u32 = 2;
/// Reports that come sooner than this after the last that was counted are of the same cycle: agents
/// report also when they are asked to.
const SAME_CYCLE: Millis = Millis::new(20_000);
/// Findings that are kept of one node: more than it has slices.
const FINDINGS_MAX: usize = 256;

/// What does not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeakKind {
    /// Leased, and its agent has confirmed it, but does not hold it (any more).
    NotHeld,
    /// Held by an agent, but no lease stands for it.
    NotLeased,
    /// Leased and held, but its guest demonstrably uses neither GPU nor CPU.
    NotUsed,
}

impl LeakKind {
    /// Every kind.
    pub const ALL: [LeakKind; 3] = [LeakKind::NotHeld, LeakKind::NotLeased, LeakKind::NotUsed];
}

/// One member of a lease of which broker, agent and GPU do not say the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    /// What does not agree.
    pub kind: LeakKind,
    /// Which lease.
    pub lease: LeaseId,
    /// Which member.
    pub slice: SliceId,
    /// Since when, in ledger time, as far as is known.
    pub since: Timestamp,
    /// Who pays; nothing if the lease is not in the state any more.
    pub tenant: Option<TenantId>,
    /// Whose GPU it is.
    pub owner: Option<TenantId>,
    /// What the member costs for the time since then at the lease's price; nothing if the lease is
    /// not in the state any more.
    pub cost: Option<MicroCredits>,
}

/// What a leader knows of the agreement of broker, agents and GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// When it was asked, in ledger time.
    pub at: Timestamp,
    /// Nodes whose agents have reported within the last two cycles.
    pub reported: u32,
    /// Nodes of which it is not known what they hold.
    pub unknown: Vec<(ClusterId, NodeId)>,
    /// What leaks, in the order of nodes.
    pub leaks: Vec<Leak>,
}

/// What the last reports of all agents showed.
#[derive(Debug, Default)]
pub(super) struct Reports(BTreeMap<(ClusterId, NodeId), Report>);

#[derive(Debug)]
struct Report {
    /// When the last report came.
    at: Timestamp,
    /// When the last one came that was counted.
    counted_at: Timestamp,
    found: BTreeMap<(SliceId, LeaseId, LeakKind), Finding>,
}

#[derive(Debug, Clone, Copy)]
struct Finding {
    since: Timestamp,
    cycles: u32,
}

impl Reports {
    /// An agent has reported everything it holds.
    pub(super) fn hear(
        &mut self,
        state: &State,
        now: Timestamp,
        node: (ClusterId, NodeId),
        held: &[Held],
    ) {
        let before = self.0.get(&node);
        let is_new_cycle = before.is_none_or(|last| now.since(last.counted_at) >= SAME_CYCLE);
        let counted_at = match before {
            Some(last) if !is_new_cycle => last.counted_at,
            _ => now,
        };
        let found = findings(state, now, node, held).into_iter().map(|(what, since)| {
            let again = before.and_then(|last| {
                let known = last.found.get(&what)?;
                // One that did something since the last report is not the same stretch.
                (what.2 != LeakKind::NotUsed || since <= last.at).then_some(*known)
            });
            let finding = match again {
                Some(known) => Finding {
                    since: known.since.min(since),
                    cycles: known.cycles.saturating_add(u32::from(is_new_cycle)),
                },
                None => Finding { since, cycles: 1 },
            };
            (what, finding)
        });
        let found = found.take(FINDINGS_MAX).collect();
        self.0.insert(node, Report { at: now, counted_at, found });
    }

    /// The node is no more.
    pub(super) fn forget(&mut self, node: (ClusterId, NodeId)) {
        self.0.remove(&node);
    }
}

/// What a report does not agree in with the state, and since when.
fn findings(
    state: &State,
    now: Timestamp,
    (cluster, node): (ClusterId, NodeId),
    held: &[Held],
) -> BTreeMap<(SliceId, LeaseId, LeakKind), Timestamp> {
    let own = held.iter().filter(|one| (one.slice.cluster, one.slice.node) == (cluster, node));
    let mut found = BTreeMap::new();
    let mut holds = BTreeSet::new();
    for one in own {
        let lease = state.leases().get(&one.lease).filter(|lease| {
            let is_member = lease.terms().members.iter().any(|member| member.slice == one.slice);
            lease.terms().token == one.token && is_member && !lease.stopped().contains(&one.slice)
        });
        match lease {
            None => {
                found.insert((one.slice, one.lease, LeakKind::NotLeased), now);
            }
            Some(lease) => {
                holds.insert((one.lease, one.slice));
                let is_active = matches!(lease.stage(), LeaseStage::Active { .. });
                if is_active && one.unused > Millis::ZERO {
                    let since = Timestamp::new(now.get().saturating_sub(one.unused.get()));
                    found.insert((one.slice, one.lease, LeakKind::NotUsed), since);
                }
            }
        }
    }
    for (id, slice) in state.leases_on(cluster, node) {
        let Some(lease) = state.leases().get(&id) else { continue };
        if must_be_held(lease, slice) && !holds.contains(&(id, slice)) {
            found.insert((slice, id, LeakKind::NotHeld), now);
        }
    }
    found
}

/// Whether the agent has said that it holds it, and not that it holds it no longer.
fn must_be_held(lease: &Lease, slice: SliceId) -> bool {
    let is_confirmed = match lease.stage() {
        LeaseStage::Granted { confirmed, .. } => confirmed.contains(&slice),
        LeaseStage::Active { .. } => true,
        // It may have ended before it was confirmed.
        LeaseStage::Ending { active_since, .. } => active_since.is_some(),
    };
    is_confirmed && !lease.stopped().contains(&slice)
}

impl Leader {
    /// What leaks, as agents' last reports show it, and of whom nothing is known.
    #[must_use]
    pub fn reconciliation(&self, state: &State, now: Timestamp) -> Reconciliation {
        let fresh = Seconds::new(CYCLE.get() * u64::from(CYCLES)).as_millis();
        let is_fresh = |report: &&Report| now.since(report.at) <= fresh;
        let (mut reported, mut unknown, mut leaks) = (0_u32, Vec::new(), Vec::new());
        for node in state.nodes().keys() {
            let Some(report) = self.reports.0.get(node).filter(is_fresh) else {
                unknown.push(*node);
                continue;
            };
            reported = reported.saturating_add(1);
            let told = report.found.iter().filter(|(_, finding)| finding.cycles >= CYCLES);
            leaks.extend(told.filter_map(|(what, finding)| leak(state, now, *what, finding.since)));
        }
        Reconciliation { at: now, reported, unknown, leaks }
    }
}

/// A finding as it is told; nothing if it has been settled since the report.
fn leak(
    state: &State,
    now: Timestamp,
    (slice, lease, kind): (SliceId, LeaseId, LeakKind),
    since: Timestamp,
) -> Option<Leak> {
    let terms = state.leases().get(&lease).map(Lease::terms);
    if kind != LeakKind::NotLeased && terms.is_none() {
        return None;
    }
    let terms = terms.filter(|_| kind != LeakKind::NotLeased);
    let owner = terms.map(|terms| terms.owner);
    let owner = owner.or_else(|| Some(state.clusters().get(&slice.cluster)?.owner()));
    let cost = terms.and_then(|terms| cost_half_even(terms.price, terms.gpu, now.since(since)));
    let tenant = terms.map(|terms| terms.tenant);
    Some(Leak { kind, lease, slice, since, tenant, owner, cost })
}
