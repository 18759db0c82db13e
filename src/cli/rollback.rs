//! `sublet rollback`: undo a batch of leases.

use clap::{Args, Subcommand};
use sublet_protocol::api::{
    RollbackApprove, RollbackCreate, RollbackPlan, RollbackSelect, RollbackView, Time,
};
use sublet_protocol::ids::{ClusterId, CommandId, GpuModel, RollbackId, Subject, TenantId};

use super::amounts;
use super::global::Context;
use crate::failure::Outcome;
use crate::output::{Column, Table, note};

/// Undo a batch of leases: live ones end, charges are reversed. Nothing is deleted, and a rollback can be
/// rolled back.
#[derive(Debug, Subcommand)]
pub(super) enum Rollback {
    /// Show what undoing these leases would do. Changes nothing.
    Plan(Select),
    /// Undo what a plan showed; above the limit of the policy, propose it to another operator.
    Apply(Apply),
    /// Let a rollback that another operator proposed begin.
    Approve(Approve),
    /// Drop a rollback that waits for its approval.
    Reject(Which),
    /// Show how far a rollback has come.
    Show(Which),
    /// Show rollbacks that wait or run, and the newest that are over.
    List,
}

/// Which leases: those that everything that is named is true of.
#[derive(Debug, Args)]
pub(super) struct Select {
    /// Granted at this instant or later, as 2026-03-01T10:00:00Z.
    #[arg(long, required_unless_present = "rollback")]
    from: Option<Time>,
    /// Granted before this instant. Without it, leases that are granted meanwhile change the plan.
    #[arg(long)]
    until: Option<Time>,
    /// Leases of this tenant.
    #[arg(long, value_parser = amounts::tenant)]
    tenant: Option<TenantId>,
    /// Leases on this cluster.
    #[arg(long, value_parser = amounts::cluster)]
    cluster: Option<ClusterId>,
    /// Leases of this GPU model.
    #[arg(long, value_parser = amounts::model)]
    model: Option<GpuModel>,
    /// Leases whose request this person or program submitted.
    #[arg(long)]
    requested_by: Option<Subject>,
    /// Leases that this plan granted: the cause of their grants, as `sublet events` shows it.
    #[arg(long)]
    plan: Option<CommandId>,
    /// Leases whose request came with a prediction of this version of the predictor's model.
    #[arg(long)]
    predictor: Option<u32>,
    /// Undo what this earlier rollback did.
    #[arg(long)]
    rollback: Option<RollbackId>,
}

impl Select {
    fn body(self) -> RollbackSelect {
        let Select { from, until, tenant, cluster, model, requested_by, plan, predictor, rollback } =
            self;
        RollbackSelect {
            tenant,
            cluster,
            model,
            from,
            until,
            requested_by,
            plan,
            predictor,
            rollback,
        }
    }
}

/// Undo what a plan showed, with the same flags and its digest.
#[derive(Debug, Args)]
pub(super) struct Apply {
    #[command(flatten)]
    select: Select,
    /// The digest that the plan showed.
    #[arg(long)]
    digest: String,
}

/// Approve a rollback of another operator.
#[derive(Debug, Args)]
pub(super) struct Approve {
    /// Which.
    id: RollbackId,
    /// The digest of what you looked at, as `sublet rollback show` or the plan shows it.
    #[arg(long)]
    digest: String,
}

/// A rollback.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Which.
    id: RollbackId,
}

impl Rollback {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let view = match self {
            Rollback::Plan(select) => {
                return print_plan(context, &client.plan_rollback(&select.body())?);
            }
            Rollback::List => return list(context, &client.rollbacks()?),
            Rollback::Apply(Apply { select, digest }) => {
                client.roll_back(&RollbackCreate { select: select.body(), digest })?
            }
            Rollback::Approve(Approve { id, digest }) => {
                client.approve_rollback(id, &RollbackApprove { digest })?
            }
            Rollback::Reject(Which { id }) => client.reject_rollback(id)?,
            Rollback::Show(Which { id }) => client.rollback(id)?,
        };
        context.printer.item(&view, &fields(&view))
    }
}

fn print_plan(context: &Context, plan: &RollbackPlan) -> Outcome<()> {
    let columns = [
        Column::text("TENANT"),
        Column::number("LEASES"),
        Column::number("LIVE"),
        Column::number("EXPENSE"),
        Column::number("HOLD-BACK"),
        Column::number("REVENUE"),
        Column::text("CURRENCY"),
    ];
    let mut table = Table::new(&columns, "nothing that is selected can be undone");
    for row in &plan.tenants {
        table.row([
            row.tenant.to_string(),
            row.leases.to_string(),
            row.live.to_string(),
            amounts::show_money(row.expense.amount),
            amounts::show_money(row.hold.amount),
            amounts::show_money(row.revenue.amount),
            row.expense.currency.to_string(),
        ]);
    }
    context.printer.list(plan, &table)?;
    if !context.printer.is_data() && plan.leases > 0 {
        note(&format!(
            "{} leases are undone: {} live ones end ({} of their requests wait again), {} charges turn; \
             {} selected have nothing to undo; at most {} move, the platform's fees change by {}",
            plan.leases,
            plan.live,
            plan.requeued,
            plan.leases.saturating_sub(plan.live),
            plan.untouched,
            plan.money,
            plan.fee
        ));
        let approval = match plan.needs_approval {
            true => "; another operator must approve it",
            false => "",
        };
        note(&format!("to do it: the same flags with `apply --digest {}`{approval}", plan.digest));
    }
    Ok(())
}

fn list(context: &Context, views: &[RollbackView]) -> Outcome<()> {
    let columns = [
        Column::text("ROLLBACK"),
        Column::text("STATE"),
        Column::text("SINCE"),
        Column::number("LEASES"),
        Column::number("DONE"),
        Column::number("TURNED"),
        Column::text("PROPOSED-BY"),
    ];
    let mut table = Table::new(&columns, "there was no rollback yet");
    for view in views {
        table.row([
            view.id.to_string(),
            amounts::word(&view.state),
            view.since.to_string(),
            view.leases.to_string(),
            view.done.to_string(),
            view.turned.to_string(),
            view.proposed_by.to_string(),
        ]);
    }
    context.printer.list(&views, &table)
}

fn fields(view: &RollbackView) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("rollback", view.id.to_string()),
        ("state", amounts::word(&view.state)),
        ("since", view.since.to_string()),
        ("proposed by", view.proposed_by.to_string()),
        ("proposed at", view.proposed_at.to_string()),
    ];
    fields.extend(view.rollback.map(|rollback| ("undoes", rollback.to_string())));
    fields.extend(view.approve_by.map(|by| ("approve by", by.to_string())));
    fields.extend(view.approved_by.as_ref().map(|by| ("approved by", by.to_string())));
    fields.extend(view.dropped.map(|cause| ("dropped", amounts::word(&cause))));
    fields.extend([
        ("leases", view.leases.to_string()),
        ("done", view.done.to_string()),
        ("nothing to undo", view.untouched.to_string()),
        ("were live", view.live.to_string()),
        ("charges turned", view.turned.to_string()),
        ("money at most", view.money.to_string()),
        ("digest", view.digest.clone()),
    ]);
    fields
}
