//! `sublet ledger`: check and read the ledger.

mod lookback;
mod reconcile;
mod statement;

use clap::{Args, Subcommand};
use sublet_protocol::api::VerifyView;

use super::amounts::show_money;
use super::global::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{self, Column, Table};

/// Check and read the ledger.
#[derive(Debug, Subcommand)]
pub(super) enum Ledger {
    /// Have every record, hash, segment and posting checked.
    Verify(Verify),
    /// Show how far the ledger is, and its root.
    State(State),
    /// Show what differs between two states of the cell.
    Diff(lookback::Diff),
    /// Show the accounts of the double-entry books.
    Accounts(Accounts),
    /// Print the newest signed checkpoint: keep it for the next audit.
    Checkpoint(Checkpoint),
    /// Get the proof that a record is in the ledger.
    Prove(Prove),
    /// Show what a tenant owes, or earned by lending, for a month or another period.
    Statement(statement::Statement),
    /// Hold ledger, broker and agents against each other, and show what leaks.
    Reconcile(reconcile::Reconcile),
    /// Close the books of a month: what is settled later appears in the next one, as a correction.
    Close(statement::Close),
}

/// Have every record, hash, segment and posting checked. Exit code 1 if anything is wrong.
#[derive(Debug, Args)]
pub(super) struct Verify {}

/// Show how far the ledger is, and its root; or the state of the cell as it was.
#[derive(Debug, Args)]
pub(super) struct State {
    /// As it was behind so many records, or at an instant as 2026-03-01T10:00:00Z. Needs an operator's token.
    #[arg(long, value_name = "RECORDS|TIME")]
    at: Option<String>,
}

/// Show the accounts of the double-entry books.
#[derive(Debug, Args)]
pub(super) struct Accounts {}

/// Print the newest signed checkpoint: keep it for the next audit. The key that stands beside it
/// proves nothing against whoever runs the server: take it from elsewhere.
#[derive(Debug, Args)]
pub(super) struct Checkpoint {}

/// Get the proof that a record is in the ledger, for `sublet-audit check-proof`.
#[derive(Debug, Args)]
pub(super) struct Prove {
    /// The record's index, as its receipt names it.
    #[arg(long)]
    index: u64,
}

impl Ledger {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        match self {
            Ledger::Verify(Verify {}) => verify(context),
            Ledger::State(State { at: None }) => state(context).map(|()| Exit::Done),
            Ledger::State(State { at: Some(at) }) => {
                lookback::state_at(context, at).map(|()| Exit::Done)
            }
            Ledger::Diff(diff) => diff.run(context).map(|()| Exit::Done),
            Ledger::Accounts(Accounts {}) => accounts(context).map(|()| Exit::Done),
            Ledger::Checkpoint(Checkpoint {}) => checkpoint(context).map(|()| Exit::Done),
            Ledger::Prove(Prove { index }) => prove(context, index).map(|()| Exit::Done),
            Ledger::Reconcile(reconcile::Reconcile {}) => reconcile::Reconcile::run(context),
            Ledger::Statement(statement) => statement.run(context).map(|()| Exit::Done),
            Ledger::Close(close) => close.run(context).map(|()| Exit::Done),
        }
    }
}

fn verify(context: &Context) -> Outcome<Exit> {
    let found = context.client()?.verify()?;
    let is_fine = found.verified && found.balanced;
    let mut fields = vec![
        ("verified", yes_no(found.verified)),
        ("records", found.records.to_string()),
        ("root", found.root.clone()),
        ("balanced", yes_no(found.balanced)),
    ];
    if !found.findings.is_empty() {
        fields.push(("findings", found.findings.join("\n")));
    }
    context.printer.item(&found, &fields)?;
    if is_fine { Ok(Exit::Done) } else { Err(damaged(&found)) }
}

fn damaged(found: &VerifyView) -> Failure {
    let first = found.findings.first().map_or("the books do not balance", String::as_str);
    Failure::new(Exit::Failed, "the ledger is not as it must be").because(first)
}

fn state(context: &Context) -> Outcome<()> {
    let state = context.client()?.ledger()?;
    let cell = state.cell.map_or_else(|| "not founded".to_owned(), |cell| cell.to_string());
    let fields = [
        ("cell", cell),
        ("records", state.size.to_string()),
        ("sealed", state.sealed.to_string()),
        ("root", state.root.clone()),
        ("last record", state.time.to_string()),
    ];
    context.printer.item(&state, &fields)
}

fn checkpoint(context: &Context) -> Outcome<()> {
    let Some(found) = context.client()?.signed_checkpoint()? else {
        let what = "there is no signed checkpoint";
        return Err(Failure::new(Exit::NotFound, what)
            .because("nothing is sealed yet, or this broker does not have the ledger's key"));
    };
    match context.printer.is_data() {
        false => output::print(&found.note),
        true => context.printer.item(&found, &[("note", found.note.clone())]),
    }
}

fn prove(context: &Context, index: u64) -> Outcome<()> {
    let Some(found) = context.client()?.proof(index)? else {
        let what = format!("there is no proof of record {index}");
        return Err(Failure::new(Exit::NotFound, what).because(
            "it is not sealed yet (at most ten minutes), not yours, or not there; \
             or this broker does not have the ledger's key",
        ));
    };
    match context.printer.is_data() {
        false => output::print(&found.proof),
        true => context.printer.item(&found, &[("proof", found.proof.clone())]),
    }
}

fn accounts(context: &Context) -> Outcome<()> {
    let accounts = context.client()?.accounts()?;
    let columns = [
        Column::text("ACCOUNT"),
        Column::number("DEBIT"),
        Column::number("CREDIT"),
        Column::text("CURRENCY"),
    ];
    let mut table = Table::new(&columns, "no money has moved that this token may see");
    for account in &accounts {
        table.row([
            account.account.clone(),
            show_money(account.debit.amount),
            show_money(account.credit.amount),
            account.credit.currency.to_string(),
        ]);
    }
    context.printer.list(&accounts, &table)
}

fn yes_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
