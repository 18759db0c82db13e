//! `sublet backup` and `sublet restore`: a copy of the ledger, and a cell made of it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sublet_broker::backup::{self, Checked};

use super::global::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output;

/// Keep a copy of the ledger from which the cell can be made anew.
///
/// The copy is taken from the running cell and holds all that was acknowledged before. It is read
/// again and checked as a whole (bytes, records, root, books, state) before the file has its name.
#[derive(Debug, Args)]
pub(super) struct Backup {
    /// The file to be written; there must be none of this name.
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    to: Option<PathBuf>,
    /// Check this backup instead; no server is asked.
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    check: Option<PathBuf>,
}

/// Make a cell of one broker from a backup.
///
/// The broker is the one that the configuration describes; its number must be new to the cell and its
/// data folder empty. The old brokers must not run any more: see docs/operate/backup.md.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup.
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The configuration of the broker.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The data folder, if it is not that of the configuration.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// What a backup holds, for `--json`.
#[derive(Debug, Serialize)]
struct View {
    file: String,
    cell: String,
    records: u64,
    root: String,
    epoch: u32,
    brokers: Vec<u64>,
    bytes: u64,
    balanced: bool,
}

impl Backup {
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let (file, checked) = match (self.to, self.check) {
            (Some(file), _) => {
                if file.exists() {
                    let what = format!("{} exists already", file.display());
                    return Err(Failure::usage(what).hint("name another file"));
                }
                let body = context.client()?.backup()?;
                let kept = backup::keep(body, &file);
                (file, kept)
            }
            (None, Some(file)) => {
                let checked = backup::check(&file);
                (file, checked)
            }
            (None, None) => return Err(Failure::usage("name a file: --to FILE")),
        };
        let checked = checked.map_err(|error| failure(&error))?;
        let view = view(&file, &checked);
        let fields = [
            ("backup", view.file.clone()),
            ("cell", format!("{}, restored {} times", view.cell, view.epoch)),
            ("brokers", format!("{:?}", view.brokers)),
            ("records", view.records.to_string()),
            ("root", view.root.clone()),
            ("books", if view.balanced { "balance" } else { "DO NOT BALANCE" }.to_owned()),
            ("bytes", view.bytes.to_string()),
        ];
        context.printer.item(&view, &fields)
    }
}

impl Restore {
    pub(super) fn run(self) -> Outcome<Exit> {
        let (checked, folder, broker) =
            crate::server::restore(&self.config, &self.from, self.data_dir)?;
        let header = &checked.header;
        output::print(&format!(
            "cell {} has been restored from {}: {} records, root {}\n  \
             its only broker is {broker}, in {}\n",
            header.cell,
            self.from.display(),
            header.records,
            header.root,
            folder.display(),
        ))?;
        Ok(Exit::Done)
    }
}

fn view(file: &Path, checked: &Checked) -> View {
    let header = &checked.header;
    View {
        file: file.display().to_string(),
        cell: header.cell.to_string(),
        records: header.records,
        root: header.root.clone(),
        epoch: header.epoch,
        brokers: header.brokers.clone(),
        bytes: checked.bytes,
        balanced: checked.accounts.is_balanced(),
    }
}

/// What is wrong with a backup, with all its causes.
pub(crate) fn failure(error: &backup::Error) -> Failure {
    let exit = match error {
        backup::Error::Occupied { .. }
        | backup::Error::OldBroker { .. }
        | backup::Error::OtherCell { .. } => Exit::Refused,
        _ => Exit::Failed,
    };
    let mut failure = Failure::new(exit, error.to_string());
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        failure = failure.because(next);
        cause = next.source();
    }
    failure
}
