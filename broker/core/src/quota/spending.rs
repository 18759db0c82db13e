//! What tenants and groups spend in a calendar month: what ended leases cost, and what those that
//! have not ended may still cost.
//!
//! A lease counts whole for the month of its grant, so a budget can never be exceeded by what was
//! granted before it began. Figures of a month that is over are forgotten with the first change after
//! it.

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::TenantId;
use sublet_protocol::money::{self, Price};
use sublet_protocol::quotas::{Budget, TenantTerms};
use sublet_protocol::units::{GpuMilli, GpuTime, Millis, Timestamp};

use super::change::Moment;
use super::month::Month;
use super::node::Node;
use super::rows::{Member, NONE};
use super::tree::Tree;

/// GPU time (thousandths of a GPU times milliseconds) and money (micro-units). Sums of all leases of
/// a group always fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spend {
    pub(super) time: i128,
    pub(super) money: i128,
}

impl Spend {
    /// What `gpu` for `span` costs at `price`; nothing if it cannot be written.
    pub(crate) fn of(price: Price, gpu: GpuMilli, span: Millis) -> Option<Spend> {
        let time = GpuTime::over(gpu, span)?;
        let cost = money::cost_half_even(price, gpu, span)?;
        Some(Spend { time: time.get().into(), money: cost.get().into() })
    }

    /// Thousandths of a GPU times milliseconds.
    #[must_use]
    pub const fn time(self) -> i128 {
        self.time
    }

    /// Micro-units.
    #[must_use]
    pub const fn money(self) -> i128 {
        self.money
    }

    pub(super) const fn add(&mut self, other: Spend) {
        self.time += other.time;
        self.money += other.money;
    }

    pub(super) const fn plus(self, other: Spend) -> Spend {
        Spend { time: self.time + other.time, money: self.money + other.money }
    }

    pub(crate) const fn minus(self, other: Spend) -> Spend {
        Spend { time: self.time - other.time, money: self.money - other.money }
    }
}

/// What was spent in a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spending {
    pub(super) month: Month,
    pub(super) used: Spend,
    pub(super) held: Spend,
    /// The token of the last grant that it holds something for.
    pub(super) raised: u64,
    /// The token counter when budgets or the tree were last changed.
    pub(super) binds_after: u64,
}

impl Spending {
    /// What the month's leases that have ended cost.
    #[must_use]
    pub const fn used(&self) -> Spend {
        self.used
    }

    /// What the month's leases that have not ended may cost at most.
    #[must_use]
    pub const fn held(&self) -> Spend {
        self.held
    }

    /// As it is in `month`: nothing is spent yet in a new one.
    fn in_month(self, month: Month) -> Spending {
        if self.month < month { Spending { month, ..Spending::default() } } else { self }
    }
}

impl Node<'_> {
    /// What it spent, with all below it, in the month that `now` is in.
    #[must_use]
    pub fn spending(self, now: Timestamp) -> Spending {
        self.rows.member(self.no).spending.in_month(Month::of(now))
    }
}

/// What is left of a budget; none means no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) time: Option<i128>,
    pub(crate) money: Option<i128>,
}

impl Left {
    pub(super) fn covers(self, spend: Spend) -> bool {
        self.time.is_none_or(|left| spend.time <= left)
            && self.money.is_none_or(|left| spend.money <= left)
    }

    /// Less what is spent.
    pub(crate) fn after(self, spend: Spend) -> Left {
        Left {
            time: self.time.map(|left| left - spend.time),
            money: self.money.map(|left| left - spend.money),
        }
    }

    /// The longest span that is covered for `gpu` at `price`; none means any.
    pub(crate) fn span(self, price: Price, gpu: GpuMilli) -> Option<Millis> {
        let by = |left: Option<i128>, rate: i128, unit: i128| {
            let left = left.filter(|_| rate > 0)?;
            Some(left.max(0).saturating_mul(unit) / rate)
        };
        let rate = i128::from(gpu.get());
        let by_time = by(self.time, rate, 1);
        // Rounded down to a millisecond, what it costs is not rounded above what is left.
        let by_money = by(self.money, rate * i128::from(price.per_gpu_hour.get()), 3_600_000_000);
        let span = by_time.into_iter().chain(by_money).min()?;
        Some(Millis::new(u64::try_from(span).unwrap_or(u64::MAX)))
    }
}

/// What is left of the node's own budget in `month`, without what is held.
pub(super) fn left(member: &Member, month: Month) -> Left {
    let spending = member.spending.in_month(month);
    limits(member).after(spending.used).after(spending.held)
}

fn limits(member: &Member) -> Left {
    let budget = member.terms.budget;
    Left {
        time: budget.gpu_time.map(|time| time.get().into()),
        money: budget.money.map(|money| money.get().into()),
    }
}

impl Tree {
    /// What is left of the tenant's own budget beside what ended leases cost.
    pub(crate) fn unspent(&self, id: TenantId, now: Timestamp) -> Left {
        let Some(no) = self.rows.number(id) else { return Left { time: None, money: None } };
        let member = self.rows.member(no);
        limits(member).after(member.spending.in_month(Month::of(now)).used)
    }

    /// Whether the tenant or a group it is in has a budget.
    pub(crate) fn has_budget(&self, id: TenantId) -> bool {
        self.path(id).any(|(_, node)| node.terms().budget != Budget::default())
    }

    /// Whether the tenant's own budget covers what its leases may still cost.
    pub(crate) fn is_within_budget(&self, id: TenantId, now: Timestamp) -> bool {
        let month = Month::of(now);
        let no = self.rows.number(id);
        no.is_none_or(|no| left(self.rows.member(no), month).covers(Spend::default()))
    }

    /// A grant may cost this much.
    pub(crate) fn hold(&mut self, id: TenantId, worst: Spend, at: &Moment) {
        let month = Month::of(at.now);
        self.on_path(self.number(id), |spending| {
            *spending = spending.in_month(month);
            spending.held.add(worst);
            spending.raised = at.tokens;
        });
    }

    /// Sets weight and budgets.
    pub(crate) fn set_terms(&mut self, id: TenantId, terms: TenantTerms, at: &Moment) {
        let no = self.number(id);
        let member = self.rows.member_mut(no);
        member.terms = terms;
        member.spending = member.spending.in_month(Month::of(at.now));
        member.spending.binds_after = at.tokens;
        // Who has no weight stands elsewhere.
        self.rows.renew_all(no);
    }

    /// What was held for a lease that was granted at `granted_at` is let go, and what it cost is
    /// posted. Of a month that is over nothing is kept.
    pub(crate) fn settle(
        &mut self,
        id: TenantId,
        granted_at: Timestamp,
        (worst, real): (Spend, Spend),
    ) {
        let month = Month::of(granted_at);
        self.on_path(self.number(id), |spending| {
            if spending.month == month {
                spending.held = spending.held.minus(worst);
                spending.used.add(real);
            }
        });
    }

    /// A charge that was given back counts again. It may go beyond what budgets allow by now: nothing more
    /// is granted then, and nothing that was granted is over it by its grant.
    pub(crate) fn charge_again(
        &mut self,
        id: TenantId,
        granted_at: Timestamp,
        spend: Spend,
        at: &Moment,
    ) {
        let month = Month::of(granted_at);
        self.on_path(self.number(id), |spending| {
            if spending.month == month {
                spending.used.add(spend);
                spending.binds_after = at.tokens;
            }
        });
    }

    fn on_path(&mut self, no: u32, mut change: impl FnMut(&mut Spending)) {
        let mut next = no;
        while next != NONE {
            let member = self.rows.member_mut(next);
            change(&mut member.spending);
            next = member.parent;
        }
    }

    /// The spending of this month goes with a tenant that moves.
    pub(super) fn move_spending(&mut self, no: u32, to: u32, at: &Moment) {
        let month = Month::of(at.now);
        let Member { parent: from, spending, .. } = *self.rows.member(no);
        let moved = spending.in_month(month);
        self.on_path(from, |spending| {
            *spending = spending.in_month(month);
            spending.used = spending.used.minus(moved.used);
            spending.held = spending.held.minus(moved.held);
        });
        self.on_path(to, |spending| {
            *spending = spending.in_month(month);
            spending.used.add(moved.used);
            spending.held.add(moved.held);
            spending.binds_after = at.tokens;
        });
    }
}
