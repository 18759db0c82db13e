//! What a node cost, who used it, and what nobody used.
//!
//! The share of a lease is what it counts for quota and money: thousandths of a GPU, for a part of a GPU
//! its share of the compute slices (rounded down), for a share of a card the share that was asked for.
//! It is on the node for the time that is billed. What the leases leave of the node is idle and is a line
//! of its own, so that the lines are the node's cost, to the cent.

use std::collections::BTreeMap;

use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, TenantId};
use sublet_protocol::money::{Currency, MicroCredits, Price, cost_half_even};
use sublet_protocol::units::{GpuMilli, Millis};

use crate::charges::{Charge, divide_half_even};
use crate::periods::Period;
use crate::rounding::{apportion, round_half_even};

/// Why there is no such report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A node without a GPU.
    #[error("a node has at least one GPU")]
    NoGpu,
    /// Its cost is negative or too large.
    #[error("the cost of the node cannot be written, or is below zero")]
    Cost,
    /// More was billed than the node has.
    #[error("leases were billed {billed} GPU-ms of a node that has {capacity}: it has more GPUs")]
    TooMuch {
        /// Thousandths of a GPU times milliseconds, billed.
        billed: u128,
        /// Thousandths of a GPU times milliseconds of the whole node.
        capacity: u128,
    },
}

/// A node and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its name.
    pub node: NodeId,
    /// How many GPUs it has, at least one.
    pub gpus: u32,
    /// What it costs for each hour, whether it is used or not.
    pub per_hour: MicroCredits,
}

/// What one lease used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Which lease.
    pub lease: LeaseId,
    /// Whose.
    pub tenant: TenantId,
    /// Thousandths of a GPU times milliseconds.
    pub gpu_time: u128,
    /// Its part of the node's cost, in whole minor units.
    pub cost: MicroCredits,
    /// What its borrower paid for that, to the micro-unit.
    pub paid: MicroCredits,
}

/// A node's period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// What the leases used, in the order of their ids.
    pub used: Vec<Used>,
    /// Thousandths of a GPU times milliseconds that no lease was billed for.
    pub idle_gpu_time: u128,
    /// The part of the cost that is for them, in whole minor units.
    pub idle: MicroCredits,
    /// What the node cost: the sum of all lines.
    pub total: MicroCredits,
}

/// Takes charges, in any order, and makes the report of a node and a period.
#[derive(Debug)]
pub struct NodeReportBuilder {
    node: Node,
    period: Period,
    currency: Currency,
    used: BTreeMap<LeaseId, (TenantId, u128, i128)>,
}

impl NodeReportBuilder {
    /// An empty report.
    #[must_use]
    pub const fn new(node: Node, period: Period, currency: Currency) -> Self {
        Self { node, period, currency, used: BTreeMap::new() }
    }

    /// Adds what a charge has on the node in the period; nothing if that is none. Corrections count when
    /// the node was used, not when they were booked; a reversal changes what was paid, not what was used.
    pub fn add(&mut self, charge: &Charge) {
        let is_here = |of: &&sublet_protocol::leases::Member| {
            (of.slice.cluster, of.slice.node) == (self.node.cluster, self.node.node)
        };
        let members = charge.terms.members.iter().filter(is_here).count();
        let (begin, end) = (charge.begin(), charge.end());
        let (from, until) = (begin.max(self.period.from()), end.min(self.period.until()));
        if members == 0 || from >= until {
            return;
        }
        let (members, all) = (wide(members), wide(charge.terms.members.len()));
        let span: Millis = until.since(from);
        let gpu_time = members * u128::from(charge.terms.gpu.get()) * u128::from(span.get());
        let paid = charge.up_to(until).0.get() - charge.up_to(from).0.get();
        // Members of a lease are alike: what is paid is divided evenly between them.
        let [here, count] = [members, all].map(|n| i128::try_from(n).unwrap_or(i128::MAX));
        let paid = divide_half_even(i128::from(paid).saturating_mul(here), count);
        let used = self.used.entry(charge.terms.lease).or_insert((charge.terms.tenant, 0, 0));
        used.2 += paid * i128::from(charge.sign());
        if charge.turn.is_none() {
            used.1 += gpu_time;
        }
    }

    /// The report.
    ///
    /// # Errors
    /// As the variants of [`NodeError`] say.
    pub fn finish(self) -> Result<NodeReport, NodeError> {
        let Self { node, period, currency, used } = self;
        if node.gpus == 0 {
            return Err(NodeError::NoGpu);
        }
        let span = period.until().since(period.from());
        let capacity = u128::from(node.gpus) * 1_000 * u128::from(span.get());
        let billed: u128 = used.values().map(|(_, gpu_time, _)| gpu_time).sum();
        let idle_gpu_time = capacity.checked_sub(billed);
        let idle_gpu_time = idle_gpu_time.ok_or(NodeError::TooMuch { billed, capacity })?;
        // A node is priced as one thing for an hour.
        let price = Price { per_gpu_hour: node.per_hour, version: 0 };
        let cost = cost_half_even(price, GpuMilli::DEVICE, span);
        let cost = cost.filter(|cost| *cost >= MicroCredits::ZERO).ok_or(NodeError::Cost)?;
        // Rounded before it is divided: what is divided is what the node costs.
        let total = round_half_even(cost.get().into(), currency).ok_or(NodeError::Cost)?;
        let share = |gpu_time: u128| share_of(total, gpu_time, capacity).ok_or(NodeError::Cost);
        let mut exact = Vec::new();
        for (lease, (_, gpu_time, _)) in &used {
            exact.push((Some(*lease), share(*gpu_time)?));
        }
        let spent: i64 = exact.iter().map(|(_, part)| part.get()).sum();
        exact.push((None, MicroCredits::new(total.get() - spent)));
        let mut amounts = apportion(&exact, currency).ok_or(NodeError::Cost)?;
        let idle = amounts.pop().unwrap_or(MicroCredits::ZERO);
        let used =
            used.into_iter().zip(amounts).map(|((lease, (tenant, gpu_time, paid)), cost)| {
                let paid = MicroCredits::new(i64::try_from(paid).unwrap_or(i64::MAX));
                Used { lease, tenant, gpu_time, cost, paid }
            });
        Ok(NodeReport { used: used.collect(), idle_gpu_time, idle, total })
    }
}

/// `total × part / whole`, rounded down: never more than there is.
fn share_of(total: MicroCredits, part: u128, whole: u128) -> Option<MicroCredits> {
    let product = u128::try_from(total.get()).ok()?.checked_mul(part)?;
    i64::try_from(product / whole).ok().map(MicroCredits::new)
}

fn wide(count: usize) -> u128 {
    u128::try_from(count).unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charges::tests::{HOUR, MARCH, Wish, charges};

    fn node(gpus: u32) -> Node {
        // The made-up leases stand on this node.
        let charge = charges(&[Wish::new(1, MARCH, HOUR, 1)]).remove(0);
        let slice = charge.terms.members[0].slice;
        let per_hour = MicroCredits::new(24_000_000);
        Node { cluster: slice.cluster, node: slice.node, gpus, per_hour }
    }

    fn report(gpus: u32, wishes: &[Wish]) -> Result<NodeReport, NodeError> {
        let hour = Period::between("2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z", "UTC").unwrap();
        let mut builder = NodeReportBuilder::new(node(gpus), hour, Currency::EUR);
        charges(wishes).iter().for_each(|charge| builder.add(charge));
        builder.finish()
    }

    fn cents(report: &NodeReport) -> (Vec<i64>, i64, i64) {
        let used = report.used.iter().map(|used| used.cost.get() / 10_000).collect();
        (used, report.idle.get() / 10_000, report.total.get() / 10_000)
    }

    /// Case D20: an hour of an 8-GPU node at 24.00, two whole leases, half a GPU for 30 minutes, two
    /// fifths of a card for the hour. The shares are the larger of compute and memory.
    #[test]
    fn what_leases_cost_and_what_is_idle_is_the_cost_of_the_node() {
        let whole = |lease| Wish::new(lease, MARCH, HOUR, 2_400_000);
        let part = Wish { gpu: 500, ..Wish::new(3, MARCH, HOUR / 2, 2_400_000) };
        let share = Wish { gpu: 400, ..whole(4) };
        let found = report(8, &[whole(1), whole(2), part, share]).unwrap();
        assert_eq!(cents(&found), (vec![300, 300, 75, 120], 1_605, 2_400));
        assert_eq!(found.used[2].paid.get(), 600_000);
    }

    /// The same with the share that Sublet charges for a 3g instance: three sevenths of the compute,
    /// rounded down to thousandths.
    #[test]
    fn the_lines_add_up_whatever_the_shares_are() {
        let odd = |lease, gpu| Wish { gpu, ..Wish::new(lease, MARCH, HOUR / 7, 2_400_000) };
        let found = report(8, &[odd(1, 428), odd(2, 142), odd(3, 333)]).unwrap();
        let (used, idle, total) = cents(&found);
        assert_eq!((used.iter().sum::<i64>() + idle, total), (2_400, 2_400));
        let capacity = 8 * 1_000 * u128::from(HOUR);
        let billed: u128 = found.used.iter().map(|used| used.gpu_time).sum();
        assert_eq!(billed + found.idle_gpu_time, capacity);
    }

    #[test]
    fn more_than_the_node_has_is_refused() {
        let whole = |lease| Wish::new(lease, MARCH, HOUR, 2_400_000);
        assert!(matches!(report(1, &[whole(1), whole(2)]), Err(NodeError::TooMuch { .. })));
        assert_eq!(report(0, &[]), Err(NodeError::NoGpu));
    }

    #[test]
    fn what_ran_before_and_after_the_period_is_not_in_it() {
        let found = report(8, &[Wish::new(1, MARCH - HOUR / 2, 2 * HOUR, 2_400_000)]).unwrap();
        assert_eq!((found.used[0].gpu_time, found.used[0].paid.get()), (3_600_000_000, 2_400_000));
    }
}
