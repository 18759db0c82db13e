//! `sublet-audit focus-check`.

use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use sublet_ledger::export::check::{Finding, Severity, check};

use super::output::Output;

/// Most findings that are shown; all are counted.
const SHOWN_MAX: usize = 1_000;

/// Judge a FOCUS 1.2 file in CSV: columns, formats, null rules, allowed values, periods.
///
/// Exit code 0 if there is no error, else 1; warnings are shown and change nothing.
#[derive(Debug, Args)]
pub(crate) struct FocusCheck {
    /// The file.
    file: PathBuf,
}

/// What was found, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    file: String,
    rows: u64,
    errors: u64,
    warnings: u64,
    /// At most 1,000 of them.
    findings: Vec<Shown>,
}

#[derive(Debug, Serialize)]
struct Shown {
    line: u64,
    column: String,
    severity: &'static str,
    what: String,
    value: String,
}

impl FocusCheck {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> Result<u8> {
        let name = self.file.display();
        let file = File::open(&self.file).with_context(|| format!("could not open {name}"))?;
        let mut findings = Vec::new();
        let checked = check(std::io::BufReader::new(file), |finding| {
            if findings.len() < SHOWN_MAX {
                findings.push(shown(finding));
            }
        });
        let checked = checked.with_context(|| format!("could not read {name} as CSV"))?;
        let found = Found {
            file: name.to_string(),
            rows: checked.rows,
            errors: checked.errors,
            warnings: checked.warnings,
            findings,
        };
        output.print(&found, &found.text())?;
        Ok(u8::from(found.errors > 0))
    }
}

fn shown(finding: Finding) -> Shown {
    Shown {
        line: finding.line,
        column: finding.column,
        severity: match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        what: finding.rule.to_string(),
        value: finding.value,
    }
}

impl Found {
    fn text(&self) -> String {
        let mut text = String::new();
        for Shown { line, column, severity, what, value } in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "line {line}: {severity}: {column}: {what} (found {value:?})");
        }
        let all = self.errors.saturating_add(self.warnings);
        if usize::try_from(all).is_ok_and(|all| all > self.findings.len()) {
            let _ = writeln!(text, "… and further ones: only the first {SHOWN_MAX} are shown");
        }
        let Found { rows, errors, warnings, .. } = self;
        let _ = writeln!(text, "{rows} rows, {errors} errors, {warnings} warnings");
        text
    }
}
