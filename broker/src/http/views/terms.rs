//! Weight, share and budgets, from the state or from the record of a change.

use sublet_core::State;
use sublet_core::quota::{self, Month, Spend};
use sublet_protocol::api::{
    BudgetSet, BudgetView, GpuSecondsSpent, Money, MoneySpent, OverAdmitted, TermsView, Whole,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::TenantId;
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::quotas::TenantTerms;
use sublet_protocol::records::Record;
use sublet_protocol::units::{GpuTime, Timestamp};

/// Terms as they were set.
pub(crate) fn terms(tenant: TenantId, terms: &TenantTerms, currency: Currency) -> TermsView {
    let TenantTerms { weight, budget, reclaim } = terms;
    let seconds = |time: GpuTime| Whole::clamped(time.get() / GpuTime::GPU_SECOND.get());
    TermsView {
        tenant,
        weight: weight.get(),
        budget: BudgetSet {
            gpu_seconds: budget.gpu_time.map(seconds),
            money: budget.money.map(|money| Money::new(money, currency)),
        },
        reclaim: *reclaim,
    }
}

/// Terms from the record of their change.
pub(crate) fn terms_set(record: &Record, currency: Currency) -> Option<TermsView> {
    let Event::TermsSet { tenant, terms: set } = &record.event else { return None };
    Some(terms(*tenant, set, currency))
}

/// Who was left with more than it may have.
pub(crate) fn over_admitted(record: &Record) -> Option<OverAdmitted> {
    let Event::TenantOverAdmitted { tenant, model, excess } = &record.event else { return None };
    Some(OverAdmitted { tenant: *tenant, model: *model, excess: excess.get() })
}

/// What a tenant borrows of what can be lent to it, in thousandths by weight; nothing if its weight
/// is zero and it borrows.
pub(crate) fn share(id: TenantId, state: &State) -> Option<u64> {
    Some(quota::share(state.tree(), id)).filter(|share| *share < u64::MAX)
}

/// A budget of nothing that nothing was spent of.
pub(crate) fn budget_of_none(at: Timestamp, currency: Currency) -> BudgetView {
    let none = Spend::default();
    view(at, &TenantTerms::default(), [none, none], currency)
}

/// What a tenant spends in the month of the last record.
pub(crate) fn budget(id: TenantId, state: &State) -> BudgetView {
    let (at, currency) = (state.now(), state.policy().currency);
    let Some(node) = state.tree().node(id) else { return budget_of_none(at, currency) };
    let spending = node.spending(at);
    view(at, node.terms(), [spending.used(), spending.held()], currency)
}

fn view(
    at: Timestamp,
    terms: &TenantTerms,
    [used, held]: [Spend; 2],
    currency: Currency,
) -> BudgetView {
    let (year, month) = Month::of(at).year_and_number();
    let second = i128::from(GpuTime::GPU_SECOND.get());
    let up = |time: i128| u64::try_from((time + second - 1) / second).unwrap_or(0);
    let down = |time: i128| u64::try_from(time.max(0) / second).unwrap_or(0);
    let money = |amount: i128| {
        Money::new(MicroCredits::new(i64::try_from(amount).unwrap_or(i64::MAX)), currency)
    };
    let (time_limit, money_limit) = (terms.budget.gpu_time, terms.budget.money);
    BudgetView {
        month: format!("{year:04}-{month:02}"),
        gpu_seconds: GpuSecondsSpent {
            limit: time_limit.map(|limit| down(limit.get().into())),
            used: up(used.time()),
            held: up(held.time()),
            left: time_limit.map(|limit| down(i128::from(limit.get()) - used.time() - held.time())),
        },
        money: MoneySpent {
            limit: money_limit.map(|limit| Money::new(limit, currency)),
            used: money(used.money()),
            held: money(held.money()),
            left: money_limit
                .map(|limit| money((i128::from(limit.get()) - used.money() - held.money()).max(0))),
        },
    }
}
