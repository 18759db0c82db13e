//! `sublet lease`: plan, ask for, use and end leases.

mod checkpoint;
mod console;
mod create;
mod end;
mod grant;
mod list;
mod logs;
mod plan;
mod recall;
mod run;
mod show;
mod spec;
mod wait;

use clap::Subcommand;

use super::global::Context;
use crate::client::Client;
use crate::config::Role;
use crate::failure::{Exit, Outcome};

/// Plan, ask for, use and end leases.
#[derive(Debug, Subcommand)]
pub(super) enum Lease {
    /// Say what would come of a request, without sending it.
    Plan(plan::Plan),
    /// Ask for GPUs: show the plan, confirm, wait for the lease.
    Create(create::Create),
    /// Lease GPUs, run a command on them, print its output, end with its exit code.
    Run(run::Run),
    /// Show leases, or requests that wait.
    List(list::List),
    /// Show one lease or request.
    Show(show::Show),
    /// Wait until a lease runs or has ended.
    Wait(wait::Wait),
    /// Give a lease back, or withdraw a request that waits.
    End(end::End),
    /// Say that the work of a lease is saved.
    Checkpoint(checkpoint::Checkpoint),
    /// Recall a lease on your own GPUs.
    Recall(recall::Recall),
}

impl Lease {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        let client = client(context)?;
        match self {
            Lease::Plan(plan) => plan.run(context, &client),
            Lease::Create(create) => create.run(context, &client),
            Lease::Run(run) => run.run(&client),
            Lease::List(list) => list.run(context, &client).map(|()| Exit::Done),
            Lease::Show(show) => show.run(context, &client).map(|()| Exit::Done),
            Lease::Wait(wait) => wait.run(context, &client),
            Lease::End(end) => end.run(context, &client).map(|()| Exit::Done),
            Lease::Checkpoint(it) => it.run(context, &client).map(|()| Exit::Done),
            Lease::Recall(recall) => recall.run(context, &client).map(|()| Exit::Done),
        }
    }
}

/// A client that acts, and sees, for one tenant only.
pub(super) fn client(context: &Context) -> Outcome<Client> {
    context.client_as(vec![Role::Tenant])
}
