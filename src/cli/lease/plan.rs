//! `sublet lease plan`: what would come of a request.

use clap::Args;
use sublet_protocol::api::{Origin, PlanOutcome, PlanView};

use super::super::amounts::{show_money, word};
use super::super::global::Context;
use super::super::why;
use super::spec::{Body, Spec};
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{self, Column, Printer, Table};
use crate::units::show_seconds;
use sublet_protocol::units::Seconds;

/// Say what would come of a request, without sending it. Exit code 5 if it would be refused.
#[derive(Debug, Args)]
pub(in crate::cli) struct Plan {
    #[command(flatten)]
    spec: Spec,
}

/// What every borrower must know; no rule of the cell can change it.
const ROOT_NOTE: &str = "whoever is root on the lender's machines can read what your guest holds \
    in memory, on disk and on the GPU";

impl Plan {
    /// Prints the plan.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<Exit> {
        let body = self.spec.body(client)?;
        body.check()?;
        let plan = client.plan(&body.json)?;
        print(context.printer, &plan, &body)?;
        match &plan.outcome {
            PlanOutcome::Refuse { .. } => Err(refusal(&plan)),
            PlanOutcome::Grant { .. } | PlanOutcome::Preempt { .. } | PlanOutcome::Wait { .. } => {
                Ok(Exit::Done)
            }
        }
    }
}

/// The failure for a plan that says no.
pub(super) fn refusal(plan: &PlanView) -> Failure {
    let mut failure = Failure::new(Exit::Refused, plan.text.clone());
    if let PlanOutcome::Refuse { code, text: _, errors } = &plan.outcome {
        failure = failure.because(code);
        for error in errors {
            let place = error.pointer.clone().or_else(|| error.parameter.clone());
            failure = failure.because(format!("{}: {}", place.unwrap_or_default(), error.detail));
        }
        if code == "QUOTA_TOO_SMALL" {
            failure = failure.hint("how much a tenant may hold of which GPU: sublet quota list");
        }
        if code == "MODEL_UNKNOWN" {
            failure = failure.hint("the models that are known: sublet price list");
        }
    }
    failure
}

/// Prints a plan in the form that is wanted.
pub(super) fn print(printer: Printer, plan: &PlanView, body: &Body) -> Outcome<()> {
    if printer.is_data() {
        return printer.list(plan, &values(plan, body));
    }
    printer.item(plan, &fields(plan))?;
    output::print("\n")?;
    printer.list(plan, &values(plan, body))
}

fn fields(plan: &PlanView) -> Vec<(&'static str, String)> {
    let mut fields = vec![("outcome", plan.text.clone())];
    match &plan.outcome {
        PlanOutcome::Grant { cluster, model, per_gpu_hour, slices, gpu: _ } => {
            let price = format!("{} {}", show_money(per_gpu_hour.amount), per_gpu_hour.currency);
            fields.push(("where", format!("{slices} × {model} in {cluster}")));
            fields.push(("price", format!("{price} per GPU-hour")));
        }
        PlanOutcome::Preempt { victims, own } => {
            let own: Vec<String> = own.iter().map(ToString::to_string).collect();
            let own =
                if own.is_empty() { String::new() } else { format!(", yours: {}", own.join(", ")) };
            let leases = if *victims == 1 { "lease" } else { "leases" };
            fields.push(("makes way", format!("{victims} {leases} of lower rank{own}")));
        }
        PlanOutcome::Wait { why: reason } => {
            let told = why::fields(reason).into_iter();
            fields.extend(told.filter(|(name, _)| *name != "state" && *name != "id"));
        }
        PlanOutcome::Refuse { .. } => {}
    }
    let hold = plan.hold.map_or_else(
        // Which offer it would get, so at what price, is not known yet.
        || "not known before it is granted; --max-price bounds it".to_owned(),
        |hold| {
            let hold = format!("{} {}", show_money(hold.amount), hold.currency);
            format!("{hold} is set aside for the whole duration; what is not used is given back")
        },
    );
    fields.push(("worst case", hold));
    let terms = &plan.preemption;
    let ranks: Vec<String> = terms.preempted_by.iter().map(word).collect();
    let ranks = if ranks.is_empty() { "nobody".to_owned() } else { ranks.join(", ") };
    let spared = show_seconds(Seconds::new(terms.min_run));
    let grace = show_seconds(Seconds::new(terms.grace));
    fields.push(("rank", format!("{}, preempted by: {ranks}", word(&terms.tier))));
    fields.push(("taken away", terms.text.clone()));
    fields.push((
        "",
        format!("spared for {spared}, {grace} of grace, then: {}", word(&terms.on_recall)),
    ));
    fields.push(("privacy", ROOT_NOTE.to_owned()));
    fields
}

fn values(plan: &PlanView, body: &Body) -> Table {
    let columns = [Column::text("VALUE"), Column::text("EFFECTIVE"), Column::text("FROM")];
    let mut table = Table::new(&columns, "nothing is declared");
    for value in &plan.effective {
        let is_ours = body.defaulted.contains(&value.field.as_str());
        let origin = if is_ours && value.origin == Origin::Declared {
            "default of this command".to_owned()
        } else {
            word(&value.origin)
        };
        let given = body.given.iter().find(|(field, _)| *field == value.field);
        let shown = match given {
            Some((_, text)) => format!("{} (from {text})", value.value),
            None => value.value.clone(),
        };
        table.row([value.field.clone(), shown, origin]);
    }
    table
}
