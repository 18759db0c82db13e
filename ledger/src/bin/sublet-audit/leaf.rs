//! `sublet-audit leaf`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use sublet_ledger::merkle::Hash;
use sublet_protocol::codec::encode_record;
use sublet_protocol::records::Record;

use super::output::Output;

/// Print the canonical bytes and the leaf hash of a record that is given as JSON.
#[derive(Debug, Args)]
pub(crate) struct Leaf {
    /// The file with one record, as `check-proof --json` shows it.
    file: PathBuf,
}

/// What was computed, as JSON.
#[derive(Debug, Serialize)]
struct Computed {
    index: u64,
    bytes: String,
    leaf: String,
}

impl Leaf {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<u8> {
        let shown = self.file.display();
        let text = std::fs::read(&self.file).with_context(|| format!("could not read {shown}"))?;
        let record: Record =
            serde_json::from_slice(&text).with_context(|| format!("{shown} is not a record"))?;
        let bytes = encode_record(&record).with_context(|| format!("{shown} has no bytes"))?;
        let leaf = Hash::of_leaf(&bytes).to_string();
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let said = format!("bytes {bytes}\nleaf  {leaf}\n");
        output.print(&Computed { index: record.index, bytes, leaf }, &said)?;
        Ok(0)
    }
}
