//! What is printed: text for people or one JSON object, and a progress bar on a terminal.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sublet_ledger::proof::Proof;

/// How results are printed.
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// As JSON, or as text.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints `value` as JSON, or `text`.
    pub(crate) fn print(&self, value: &impl Serialize, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, value).context("could not write the result")?;
            writeln!(out)?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        Ok(out.flush()?)
    }

    /// A bar of `bytes` on the terminal; hidden where there is none, and beside JSON.
    pub(crate) fn bar(&self, bytes: u64) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = "{spinner} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let style =
            ProgressStyle::with_template(style).expect("a fixed template that a test reads");
        ProgressBar::new(bytes).with_style(style)
    }
}

/// Whether the reader of the output has gone away (`… | head -1`), which is no failure.
pub(crate) fn nobody_reads(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Writes the proof of a fork to `path`; the name of the file. What was found is told, and the exit code
/// is that of a fork, also when the proof cannot be written.
pub(crate) fn keep_proof(path: &Path, proof: &Proof) -> Option<String> {
    let shown = path.display().to_string();
    match fs::write(path, proof.to_string()) {
        Ok(()) => Some(shown),
        Err(error) => {
            let error = anyhow::Error::new(error);
            complain(&error.context(format!(
                "could not write the proof of the fork to {shown}: name another file with --proof"
            )));
            None
        }
    }
}

/// Prints a remark to standard error.
pub(crate) fn note(text: &str) {
    // There is nobody left to tell if this fails.
    drop(writeln!(io::stderr().lock(), "note: {text}"));
}

/// Prints a failure with its causes to standard error.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut text = format!("sublet-audit: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("  because: {cause}\n"));
    }
    // There is nobody left to tell if this fails.
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// The finding and everything behind it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_a_style_that_can_be_read() {
        let style = "{spinner} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        assert!(ProgressStyle::with_template(style).is_ok());
    }
}
