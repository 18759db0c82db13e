//! `sublet-audit check-proof` of a statement.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use sublet_ledger::audit::{Class, Trust};
use sublet_ledger::chains::{STATEMENT_PROOF, StatementProof};
use sublet_ledger::note::PublicKey;
use sublet_protocol::api::StatementView;

use super::output::{self, Output};

/// What is asked of the proof.
pub(super) struct Asked {
    /// A period that was not closed is good enough.
    pub(super) open: bool,
    /// The statement that has to be the proven one.
    pub(super) statement: Option<String>,
}

/// What was found, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    proves: &'static str,
    /// The statement that is proven; none where nothing is.
    statement: Option<StatementView>,
    /// Whether the statement that was given is the proven one; none if none was given.
    same: Option<bool>,
    fault: Option<String>,
}

/// Whether the text is the proof of a statement.
pub(super) fn is_one(text: &str) -> bool {
    text.starts_with(STATEMENT_PROOF)
}

/// Checks it; the exit code.
pub(super) fn run(
    text: &str,
    asked: &Asked,
    trust: &Trust,
    key: &PublicKey,
    output: &Output,
) -> Result<u8> {
    let is_given = asked.statement.is_some();
    let found = match judge(text, asked, trust, key) {
        Ok(view) => Found {
            proves: "the statement has every charge of the tenant in its period, and no other",
            statement: Some(view),
            same: is_given.then_some(true),
            fault: None,
        },
        Err(fault) => {
            let same = is_given.then_some(false);
            Found { proves: "nothing", statement: None, same, fault: Some(fault) }
        }
    };
    // What is not proven is not shown as a statement.
    let code = if found.fault.is_some() { Class::Damaged.exit_code() } else { 0 };
    output.print(&found, &found.text())?;
    Ok(code)
}

/// The statement that is proven, or why none is.
fn judge(
    text: &str,
    asked: &Asked,
    trust: &Trust,
    key: &PublicKey,
) -> Result<StatementView, String> {
    let proof: StatementProof = text.parse().map_err(|error| output::chain(&error))?;
    let made = proof.check(key).map_err(|error| output::chain(&error))?;
    if !trust.witnesses.is_empty() && !trust.is_witnessed(proof.checkpoint()) {
        let (required, of) = (trust.witnesses_required, trust.witnesses.len());
        return Err(format!("fewer than {required} of your {of} witnesses signed it"));
    }
    let view = made.view(proof.checkpoint().head().size, proof.closed_until());
    let view = view.map_err(|error| output::chain(&error))?;
    if let Some(statement) = &asked.statement {
        let difference = made.difference(statement).map_err(|error| output::chain(&error))?;
        if let Some(difference) = difference {
            return Err(output::chain(&difference));
        }
    }
    if !proof.is_final() && !asked.open {
        return Err(format!(
            "the period was not closed when the first {} records were signed: charges may be \
             missing that were settled later. Ask again once it is closed, or give --open",
            view.records
        ));
    }
    Ok(view)
}

impl Found {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail, here and below.
        let _ = match (&self.fault, &self.statement) {
            (None, Some(view)) => {
                let side = view.side.code();
                let of = if self.same.is_some() { "the statement" } else { "a statement" };
                let lines = view.lines.len();
                let open = if view.closed { "" } else { ", NOT FINAL: the period was open" };
                writeln!(
                    text,
                    "proven      {of} of {} as {side}, {} to {} ({}): {lines} lines, {}, complete \
                     ({} records{open})",
                    view.tenant, view.from, view.until, view.zone, view.total, view.records
                )
            }
            (fault, _) => {
                let fault = fault.as_deref().unwrap_or("nothing");
                writeln!(text, "NOT PROVEN  {fault}")
            }
        };
        text
    }
}
