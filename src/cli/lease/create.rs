//! `sublet lease create`: plan, confirm, ask, wait.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use sublet_protocol::api::{LeaseView, PlanOutcome, PlanView, RequestView};
use sublet_protocol::units::Seconds;

use super::super::global::Context;
use super::grant::{self, Waited};
use super::plan;
use super::show;
use super::spec::Spec;
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output;
use crate::signals::Signals;
use crate::units::parse_seconds;

/// Ask for GPUs: show the plan, confirm, wait for the lease.
#[derive(Debug, Args)]
pub(in crate::cli) struct Create {
    #[command(flatten)]
    spec: Spec,
    /// Do not ask whether to go on.
    #[arg(long, short)]
    yes: bool,
    /// Only if it can be granted at once; else exit code 6 and nothing is asked for.
    #[arg(long)]
    now: bool,
    /// How long to wait for the lease; after that the request goes on waiting by itself.
    #[arg(long, value_parser = parse_seconds, default_value = "30s", value_name = "SPAN")]
    wait: Seconds,
}

impl Create {
    /// Does it.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<Exit> {
        let body = self.spec.body(client)?;
        body.check()?;
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !self.yes && !can_ask {
            return Err(
                Failure::usage("there is no terminal to confirm the request on").hint("add --yes")
            );
        }
        let plan = client.plan(&body.json)?;
        if !context.printer.is_data() {
            plan::print(context.printer, &plan, &body)?;
            output::print("\n")?;
        }
        check(&plan, Wanted::of(self.now))?;
        if !self.yes && !confirmed()? {
            output::note("nothing was asked for");
            return Ok(Exit::Done);
        }
        let signals = Signals::listen()?;
        let request = client.submit(&body.json)?;
        let deadline = Instant::now() + Duration::from_secs(self.wait.get());
        let waited = grant::wait(client, request.id, Some(deadline), &signals)?;
        finish(context, client, waited)
    }
}

/// When a lease is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// At once, or not at all.
    Now,
    /// Whenever it can be had.
    Sometime,
}

impl Wanted {
    /// From the flag `--now`.
    pub(super) const fn of(now: bool) -> Wanted {
        if now { Wanted::Now } else { Wanted::Sometime }
    }
}

/// Stops where the plan says that asking is useless.
pub(super) fn check(plan: &PlanView, wanted: Wanted) -> Outcome<()> {
    match &plan.outcome {
        PlanOutcome::Refuse { .. } => Err(plan::refusal(plan)),
        PlanOutcome::Preempt { .. } | PlanOutcome::Wait { .. } if wanted == Wanted::Now => {
            Err(Failure::new(Exit::NoCapacity, "nothing that fits is free now")
                .because(&plan.text)
                .hint("without --now it is asked for and waits"))
        }
        PlanOutcome::Grant { .. } | PlanOutcome::Preempt { .. } | PlanOutcome::Wait { .. } => {
            Ok(())
        }
    }
}

fn confirmed() -> Outcome<bool> {
    let mut err = io::stderr().lock();
    write!(err, "Ask for it? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn finish(context: &Context, client: &Client, waited: Waited) -> Outcome<Exit> {
    match waited {
        Waited::Granted(lease) => {
            let request = client.request(lease.request)?;
            print(context, &request, Some(&lease))?;
            Ok(Exit::Done)
        }
        Waited::OutOfTime(request) => {
            print(context, &request, None)?;
            output::note(&format!("it still waits; to wait on: sublet lease wait {}", request.id));
            Ok(Exit::Done)
        }
        Waited::Interrupted(request) => {
            print(context, &request, None)?;
            let id = request.id;
            output::note(&format!("it still waits; to withdraw it: sublet lease end {id}"));
            Ok(Exit::Interrupted)
        }
        Waited::Over(request) => {
            print(context, &request, None)?;
            let what = format!("request {} had no lease that lasted", request.id);
            Err(Failure::new(Exit::LeaseFailed, what).because(&request.state_reason.text))
        }
    }
}

fn print(context: &Context, request: &RequestView, lease: Option<&LeaseView>) -> Outcome<()> {
    let both = json!({ "request": request, "lease": lease });
    let fields = match lease {
        Some(lease) => show::lease_fields(lease),
        None => show::request_fields(request),
    };
    context.printer.item(&both, &fields)
}
