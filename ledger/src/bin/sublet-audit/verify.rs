//! `sublet-audit verify`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use sublet_ledger::audit::{Audit, Class, Folder, Outcome, Tail};

use super::output::{self, Output};

/// Read every record, segment and hash again, and say where the ledger is not what it should be.
///
/// Nothing in the folder is changed. A broker may run: what it has not sealed yet is then left out.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
}

/// What was found, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    verdict: &'static str,
    ledger: String,
    cell: Option<String>,
    /// Records that are good.
    records: u64,
    /// Those of them that are sealed.
    sealed: u64,
    segments: u32,
    root: String,
    /// `checked`, `in_use`, `no_store` or `not_reached`.
    unsealed: &'static str,
    balanced: bool,
    first_bad: Option<FirstBad>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FirstBad {
    index: u64,
    what: String,
}

impl Verify {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<u8> {
        let folder = Folder::find(&self.dir)?;
        let bar = output.bar(folder.bytes());
        let outcome = Audit::new(&folder).run(|progress| bar.set_position(progress.bytes));
        bar.finish_and_clear();
        let outcome = outcome
            .with_context(|| format!("could not check the ledger in {}", folder.dir().display()))?;
        let found = Found::of(&folder, &outcome);
        output.print(&found, &found.text())?;
        Ok(outcome.class().map_or(0, Class::exit_code))
    }
}

impl Found {
    fn of(folder: &Folder, outcome: &Outcome) -> Self {
        let first_bad = outcome.first_bad.as_ref();
        Self {
            verdict: outcome.class().map_or("ok", word),
            ledger: folder.dir().display().to_string(),
            cell: folder.cell().map(|cell| cell.to_string()),
            records: outcome.records,
            sealed: outcome.sealed,
            segments: outcome.segments,
            root: outcome.root.to_string(),
            unsealed: match outcome.tail {
                Tail::Checked { .. } => "checked",
                Tail::InUse => "in_use",
                Tail::NoStore => "no_store",
                Tail::NotReached => "not_reached",
            },
            balanced: outcome.accounts.is_balanced(),
            first_bad: first_bad
                .map(|bad| FirstBad { index: bad.index, what: output::chain(&bad.finding) }),
            notes: notes(outcome),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<13} {value}");
        };
        line("ledger", &self.ledger);
        line("cell", self.cell.as_deref().unwrap_or("not known: no segment names one"));
        let (records, sealed, segments) = (self.records, self.sealed, self.segments);
        line("good records", &format!("{records}, {sealed} of them in {segments} segments"));
        line("root", &self.root);
        for note in &self.notes {
            line("note", note);
        }
        match &self.first_bad {
            Some(bad) => line("first bad", &format!("record {}: {}", bad.index, bad.what)),
            None => line("books", "balanced"),
        }
        line("verdict", self.verdict);
        text
    }
}

const fn word(class: Class) -> &'static str {
    match class {
        Class::Damaged => "damaged",
        Class::Fork => "fork",
        Class::Books => "unbalanced",
        Class::Version => "unknown_version",
    }
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    match outcome.tail {
        Tail::Checked { records: 0 } | Tail::NotReached => {}
        Tail::Checked { records } => notes.push(format!(
            "{records} records are not sealed yet: only the store and the broker's log hold them"
        )),
        Tail::InUse => notes.push(
            "a broker has the ledger open: the records it has not sealed yet were left out".into(),
        ),
        Tail::NoStore => notes.push(
            "there is no store: records that were not sealed, and the index, were left out".into(),
        ),
    }
    if outcome.records == 0 && outcome.first_bad.is_none() {
        notes.push("there is not one record to check".into());
    }
    notes
}
