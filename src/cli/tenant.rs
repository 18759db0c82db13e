//! `sublet tenant`: who pays or earns, in which group, and on what terms.

use clap::{Args, Subcommand};
use sublet_protocol::api::{
    BudgetSet, CalendarSet, Money, NameSet, ParentSet, ParentView, TenantCreate, TenantView,
    TermsSet, Whole,
};
use sublet_protocol::calendar::{Calendar, OffPeak, Zone};
use sublet_protocol::ids::TenantId;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::names::{DisplayName, NameError};
use sublet_protocol::quotas::Reclaim;
use sublet_protocol::units::GpuMilli;

use super::amounts::{self, OrNone, show_money};
use super::global::Context;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Table};
use crate::suggest;
use crate::units::{parse_hours, show_gpus, show_hours};

/// Show, add and move tenants, and set their terms.
#[derive(Debug, Subcommand)]
pub(super) enum Tenant {
    /// Show all tenants.
    List,
    /// Show one tenant.
    Show(Show),
    /// Add a tenant.
    Create(Create),
    /// Set weight, budgets, off-peak hours, and what members of a group take back.
    Set(Set),
    /// Move a tenant, with all below it, to another group.
    Move(Move),
    /// Erase what a tenant is called; its id stays.
    EraseName(Show),
}

/// Show one tenant.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its id.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
}

/// Add a tenant.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Its id: 1 to 32 characters of a-z, 0-9 and -.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
    /// The group it belongs to.
    #[arg(long, value_parser = amounts::tenant)]
    parent: Option<TenantId>,
    /// What it is called: one line of at most 128 bytes. It is in no record, and can be erased.
    #[arg(long, value_parser = name)]
    name: Option<DisplayName>,
}

/// Set weight, budgets, off-peak hours, and what members of a group take back. What is not named
/// stays as it is.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// Whose.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
    /// How much it counts when capacity is shared: 1 is usual, 2 is entitled to twice as much, 0
    /// borrows only what nobody else wants.
    #[arg(long, value_parser = amounts::weight, allow_negative_numbers = true)]
    weight: Option<Whole<0, 1_000_000>>,
    /// Most that its leases, and those of all tenants below it, may cost in a calendar month (UTC),
    /// as 1250.50; or none.
    #[arg(long, value_parser = amounts::money_or_none, allow_negative_numbers = true)]
    budget: Option<OrNone<MicroCredits>>,
    /// Most GPU-hours that they may take in a calendar month (UTC); or none.
    #[arg(long, value_parser = amounts::hours_or_none, allow_negative_numbers = true)]
    gpu_hours: Option<OrNone<u64>>,
    /// What those that belong to it may take back of what they have lent to each other, by ending
    /// leases: nothing, what requests of a lower tier or priority got, or all of it.
    #[arg(long, value_parser = amounts::reclaim())]
    reclaim: Option<Reclaim>,
    /// Whose clocks its off-peak hours go by, as Europe/Berlin.
    #[arg(long, value_parser = zone, value_name = "ZONE")]
    time_zone: Option<Zone>,
    /// When it is off-peak, as 22:00-06:00 or "sat,sun 00:00-24:00"; may be given several times. Or
    /// none: then the hours of its group count.
    #[arg(long, value_parser = hours_or_none, value_name = "HOURS")]
    off_peak: Vec<OrNone<OffPeak>>,
    /// What it is called: one line of at most 128 bytes. It is in no record, and can be erased.
    #[arg(long, value_parser = name)]
    name: Option<DisplayName>,
}

/// Reads what a tenant is called.
fn name(text: &str) -> Result<DisplayName, String> {
    text.parse().map_err(|error: NameError| error.to_string())
}

/// Reads the name of a time zone.
fn zone(text: &str) -> Result<Zone, String> {
    Zone::new(text).map_err(|error| error.to_string())
}

/// Reads off-peak hours, or `none`.
fn hours_or_none(text: &str) -> Result<OrNone<OffPeak>, String> {
    if text == "none" { Ok(OrNone::None) } else { parse_hours(text).map(OrNone::Some) }
}

/// Move a tenant.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["parent", "top"]))]
pub(super) struct Move {
    /// Which tenant.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
    /// The group it goes to.
    #[arg(long, value_parser = amounts::tenant)]
    parent: Option<TenantId>,
    /// Out of every group.
    #[arg(long)]
    top: bool,
}

impl Tenant {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let tenant = match self {
            Tenant::List => return list(context, &client.tenants()?),
            Tenant::Show(Show { id }) => known(&client, id)?,
            Tenant::Set(set) => set.run(&client)?,
            Tenant::Move(Move { id, parent, top: _ }) => {
                known(&client, id)?;
                let moved = client.move_tenant(id, &ParentSet { parent })?;
                return context.printer.item(&moved, &moved_fields(&moved));
            }
            Tenant::EraseName(Show { id }) => {
                known(&client, id)?;
                client.erase_name(id)?;
                known(&client, id)?
            }
            Tenant::Create(Create { id, parent, name }) => {
                let created = client.create_tenant(&TenantCreate { id, parent })?;
                match name {
                    None => created,
                    Some(name) => {
                        let name = client.name_tenant(id, &NameSet { name })?.name;
                        TenantView { name, ..created }
                    }
                }
            }
        };
        context.printer.item(&tenant, &fields(&tenant))
    }
}

/// The tenant; if there is none, an error that names the nearest.
fn known(client: &Client, id: TenantId) -> Outcome<TenantView> {
    if let Some(tenant) = client.tenant(id)? {
        return Ok(tenant);
    }
    let known: Vec<String> = client.tenants()?.iter().map(|t| t.id.to_string()).collect();
    Err(suggest::unknown("tenant", id.as_str(), &known))
}

impl Set {
    fn run(self, client: &Client) -> Outcome<TenantView> {
        let has_budget = self.budget.is_some() || self.gpu_hours.is_some();
        let has_terms = self.weight.is_some() || has_budget || self.reclaim.is_some();
        let has_hours = self.time_zone.is_some() || !self.off_peak.is_empty();
        if !has_terms && !has_hours && self.name.is_none() {
            return Err(Failure::usage(
                "say what to set: --name, --weight, --budget, --gpu-hours, --reclaim, --time-zone or \
                 --off-peak",
            ));
        }
        let tenant = known(client, self.id)?;
        if has_hours {
            let calendar = self.calendar(tenant.calendar.as_ref())?;
            client.set_calendar(self.id, &CalendarSet { calendar })?;
        }
        if let Some(name) = self.name.clone() {
            client.name_tenant(self.id, &NameSet { name })?;
        }
        if has_terms {
            client.set_terms(self.id, &self.terms(&tenant)?)?;
        }
        known(client, self.id)
    }

    /// The off-peak hours that are to count; none if those of its group are to.
    fn calendar(&self, before: Option<&Calendar>) -> Outcome<Option<Calendar>> {
        let hours = self.off_peak.iter().filter_map(|hours| match hours {
            OrNone::None => None,
            OrNone::Some(hours) => Some(hours.clone()),
        });
        let hours: Vec<OffPeak> = hours.collect();
        if hours.len() < self.off_peak.len() {
            return match (hours.is_empty(), &self.time_zone) {
                (true, None) => Ok(None),
                _ => Err(Failure::usage("--off-peak none goes with no other hours and no zone")),
            };
        }
        let zone = self.time_zone.clone().or_else(|| before.map(|before| before.zone.clone()));
        let zone = zone.ok_or_else(|| {
            Failure::usage("whose clocks count? add --time-zone, as Europe/Berlin")
        })?;
        let known = || before.map(|before| before.off_peak.clone()).unwrap_or_default();
        let off_peak = if hours.is_empty() { known() } else { hours };
        // A zone without hours would mean "never", whatever the hours of its group are.
        if off_peak.is_empty() {
            return Err(Failure::usage("which hours? add --off-peak, as 22:00-06:00"));
        }
        Ok(Some(Calendar { zone, off_peak }))
    }

    fn terms(&self, tenant: &TenantView) -> Outcome<TermsSet> {
        let (time, money) = (&tenant.budget.gpu_seconds, &tenant.budget.money);
        let currency = tenant.hold.currency;
        let seconds = match self.gpu_hours {
            None => time.limit,
            Some(OrNone::None) => None,
            Some(OrNone::Some(hours)) => Some(hours.saturating_mul(3_600)),
        };
        let too_many = |_| Failure::usage("these are more GPU-hours than a budget can have");
        let budget = BudgetSet {
            gpu_seconds: seconds.map(Whole::new).transpose().map_err(too_many)?,
            money: match self.budget {
                None => money.limit,
                Some(OrNone::None) => None,
                Some(OrNone::Some(amount)) => Some(Money::new(amount, currency)),
            },
        };
        let weight = self.weight.unwrap_or_else(|| Whole::clamped(tenant.weight.into()));
        let reclaim = self.reclaim.unwrap_or(tenant.reclaim);
        Ok(TermsSet { weight, budget, reclaim })
    }
}

fn moved_fields(moved: &ParentView) -> Vec<(&'static str, String)> {
    let over = moved.over_admitted.iter().map(|over| {
        format!("{} by {} {}", over.tenant, show_gpus(GpuMilli::new(over.excess)), over.model)
    });
    let over: Vec<String> = over.collect();
    vec![
        ("tenant", moved.tenant.to_string()),
        ("parent", moved.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string())),
        ("over quota", if over.is_empty() { "-".to_owned() } else { over.join("\n") }),
    ]
}

/// Thousandths as a decimal without idle zeros.
fn thousandths(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1_000, value % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is used, held and left of a budget, if there is one.
fn budget(tenant: &TenantView) -> String {
    let (time, money) = (&tenant.budget.gpu_seconds, &tenant.budget.money);
    let sum = |amount: Money| format!("{} {}", show_money(amount.amount), amount.currency);
    let hours = |seconds: u64| format!("{} h", thousandths(seconds.saturating_mul(5) / 18));
    let line = |[used, held]: [String; 2], limit: Option<[String; 2]>| match limit {
        Some([limit, left]) => format!("{used} used, {held} held, {left} left of {limit}"),
        None => format!("{used} used, {held} held, no limit"),
    };
    let money_line = line(
        [sum(money.used), sum(money.held)],
        money.limit.zip(money.left).map(|(limit, left)| [sum(limit), sum(left)]),
    );
    let time_line = line(
        [hours(time.used), hours(time.held)],
        time.limit.zip(time.left).map(|(limit, left)| [hours(limit), hours(left)]),
    );
    format!("{money_line}\n{time_line} of GPU")
}

/// Its own off-peak hours.
fn off_peak(tenant: &TenantView) -> String {
    let Some(calendar) = &tenant.calendar else { return "as its group".to_owned() };
    let hours: Vec<String> = calendar.off_peak.iter().map(show_hours).collect();
    match hours.is_empty() {
        true => format!("never ({})", calendar.zone),
        false => format!("{} ({})", hours.join("\n"), calendar.zone),
    }
}

fn quotas(tenant: &TenantView) -> Vec<String> {
    let quota = |nominal: u64| show_gpus(GpuMilli::new(nominal));
    tenant.quotas.iter().map(|q| format!("{} {}", quota(q.nominal), q.model)).collect()
}

fn list(context: &Context, tenants: &[TenantView]) -> Outcome<()> {
    let columns = [
        Column::text("TENANT"),
        Column::text("PARENT"),
        Column::number("OPEN"),
        Column::number("HOLD"),
        Column::text("CURRENCY"),
        Column::text("QUOTAS"),
        Column::text("NAME"),
    ];
    let mut table = Table::new(&columns, "no tenants that this token may see");
    for tenant in tenants {
        table.row([
            tenant.id.to_string(),
            tenant.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            tenant.open_requests.to_string(),
            show_money(tenant.hold.amount),
            tenant.hold.currency.to_string(),
            quotas(tenant).join(", "),
            called(tenant),
        ]);
    }
    context.printer.list(&tenants, &table)
}

fn called(tenant: &TenantView) -> String {
    tenant.name.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn fields(tenant: &TenantView) -> Vec<(&'static str, String)> {
    vec![
        ("tenant", tenant.id.to_string()),
        ("name", called(tenant)),
        ("parent", tenant.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string())),
        ("created", tenant.created_at.to_string()),
        ("open requests", tenant.open_requests.to_string()),
        ("weight", thousandths(tenant.weight.into())),
        ("share", tenant.share.map_or_else(|| "without end".to_owned(), |s| s.to_string())),
        ("spent this month", budget(tenant)),
        ("members take back", amounts::word(&tenant.reclaim)),
        ("off-peak", off_peak(tenant)),
        ("set aside", format!("{} {}", show_money(tenant.hold.amount), tenant.hold.currency)),
        ("quotas", quotas(tenant).join("\n")),
    ]
}
