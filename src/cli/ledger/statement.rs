//! `sublet ledger statement` and `sublet ledger close`: what finance reads and closes.

use clap::{Args, ValueEnum};
use sublet_ledger::periods::Period;
use sublet_ledger::rounding::minor_text;
use sublet_protocol::api::{PeriodClose, StatementView, Time};
use sublet_protocol::ids::TenantId;

use crate::cli::amounts::{self, show_money};
use crate::cli::global::Context;
use crate::client::Query;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Table, note};

/// Show what a tenant owes, or earned by lending, for a month or another period. A lease counts once it has
/// ended.
#[derive(Debug, Args)]
pub(crate) struct Statement {
    /// Whose; the tenant of the token if it is not named.
    #[arg(long, value_parser = amounts::tenant)]
    tenant: Option<TenantId>,
    /// From which side.
    #[arg(long, value_enum, default_value = "borrower")]
    side: Side,
    /// A month, as 2026-03.
    #[arg(long, required_unless_present = "from", conflicts_with_all = ["from", "until"])]
    month: Option<String>,
    /// The first day (2026-03-01) or instant (2026-03-01T00:00:00Z).
    #[arg(long, requires = "until")]
    from: Option<String>,
    /// The day or instant behind the last one; it is not in the period.
    #[arg(long, requires = "from")]
    until: Option<String>,
    /// The time zone of months and days, as Europe/Berlin.
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// One row for each day, instead of each lease.
    #[arg(long)]
    days: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Side {
    /// What its leases cost.
    Borrower,
    /// What it earned with GPUs that it lent.
    Lender,
}

/// Close the books up to the end of a month (UTC). It cannot be undone: what is settled later and falls
/// before the end appears in the next month, as a correction.
#[derive(Debug, Args)]
pub(crate) struct Close {
    /// The month, as 2026-03. It must be over.
    #[arg(long, required_unless_present = "show")]
    month: Option<String>,
    /// Only show up to when the books are closed.
    #[arg(long, conflicts_with = "month")]
    show: bool,
}

impl Statement {
    /// Does it.
    pub(crate) fn run(self, context: &Context) -> Outcome<()> {
        let side = match self.side {
            Side::Borrower => "borrower",
            Side::Lender => "lender",
        };
        let query = Query::new()
            .with("tenant", self.tenant)
            .with("side", Some(side))
            .with("month", self.month)
            .with("from", self.from)
            .with("until", self.until)
            .with("zone", Some(self.zone));
        let found = context.client()?.statement(&query)?;
        let table = if self.days { days(&found) } else { lines(&found) };
        context.printer.list(&found, &table)?;
        if !context.printer.is_data() {
            note(&footer(&found));
        }
        Ok(())
    }
}

fn lines(found: &StatementView) -> Table {
    let currency = found.total.currency;
    let columns = [
        Column::text("LEASE"),
        Column::text("BEGIN"),
        Column::text("PROJECT"),
        Column::text("MODEL"),
        Column::number("GPU"),
        Column::number("BILLED-S"),
        Column::number("PRICE/GPU-h"),
        Column::number("AMOUNT"),
        Column::text("CURRENCY"),
        Column::text("KIND"),
    ];
    let mut table = Table::new(&columns, "no lease of this period has ended");
    for line in &found.lines {
        let project = line.project.map_or_else(|| "-".to_owned(), |project| project.to_string());
        table.row([
            line.lease.to_string(),
            line.begin.to_string(),
            project,
            line.model.to_string(),
            thousandths(line.gpu),
            thousandths(line.billed_ms),
            show_money(line.price.amount),
            minor_text(line.amount.amount, currency),
            currency.to_string(),
            if line.correction { "correction" } else { "lease" }.to_owned(),
        ]);
    }
    table
}

fn days(found: &StatementView) -> Table {
    let currency = found.total.currency;
    let columns = [
        Column::text("DAY"),
        Column::number("BILLED-S"),
        Column::number("AMOUNT"),
        Column::text("CURRENCY"),
    ];
    let mut table = Table::new(&columns, "no lease of this period has ended");
    for day in &found.days {
        table.row([
            day.day.clone(),
            thousandths(day.billed_ms),
            minor_text(day.amount.amount, currency),
            currency.to_string(),
        ]);
    }
    table
}

fn footer(found: &StatementView) -> String {
    let currency = found.total.currency;
    let total = minor_text(found.total.amount, currency);
    let (tenant, side) = (found.tenant, found.side.code());
    let fee =
        found.fee.as_ref().map_or_else(String::new, |fee| format!("; the platform kept {fee}"));
    let state = if found.closed { "closed" } else { "open: leases may still be added" };
    format!(
        "total {total} {currency} ({tenant} as {side}, {} to {}, {}; unrounded {}{fee}); {state}",
        found.from, found.until, found.zone, found.exact
    )
}

/// Thousandths as a decimal with three places.
fn thousandths(amount: u64) -> String {
    format!("{}.{:03}", amount / 1_000, amount % 1_000)
}

impl Close {
    /// Does it.
    pub(crate) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let found = match self.month {
            Some(month) => {
                let period = Period::month(&month, "UTC");
                let period = period.map_err(|error| Failure::usage(error.to_string()))?;
                client.close_period(&PeriodClose { until: Time(period.until()) })?
            }
            None => client.periods()?,
        };
        let until = found.closed_until.map_or_else(|| "never".to_owned(), |at| at.to_string());
        context.printer.item(&found, &[("closed until", until)])
    }
}
