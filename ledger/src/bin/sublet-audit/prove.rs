//! `sublet-audit prove`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use sublet_ledger::audit::{Folder, Prover};
use sublet_ledger::proof::Proof;
use sublet_protocol::ids::LeaseId;

use super::output::Output;
use super::trust::{TrustArgs, read_checkpoint};

/// Make a proof that can be checked with the cell's public key alone.
///
/// A record is proven to be in the ledger that the newest signed checkpoint of the folder names;
/// with --against, that ledger is proven to extend an earlier checkpoint.
#[derive(Debug, Args)]
pub(crate) struct Prove {
    /// The ledger, or a folder that holds it.
    dir: PathBuf,
    #[command(flatten)]
    what: What,
    /// Write the proof to this file in place of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Every sealed record that names this lease: one proof each, in one file.
    #[arg(long)]
    lease: Option<LeaseId>,
    /// The record with this index.
    #[arg(long)]
    index: Option<u64>,
    /// The ledger extends this earlier checkpoint.
    #[arg(long, value_name = "CHECKPOINT")]
    against: Option<PathBuf>,
}

/// What was made, as JSON.
#[derive(Debug, Serialize)]
struct Made {
    proofs: usize,
    bytes: usize,
    file: Option<String>,
    text: Option<String>,
}

impl Prove {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<u8> {
        let trust = self.trust.read()?;
        let folder = Folder::find(&self.dir)?;
        let mut prover = Prover::new(&folder, trust.key)?;
        let mut proofs = Vec::new();
        if let Some(path) = &self.what.against {
            let old = read_checkpoint(path, prover.key())?;
            proofs.push(Proof::Consistency(prover.consistency(&old)?));
        }
        let indexes = match (self.what.lease, self.what.index) {
            (Some(lease), _) => prover.of_lease(lease)?,
            (None, index) => index.into_iter().collect(),
        };
        for index in indexes {
            proofs.push(Proof::Inclusion(prover.inclusion(index)?));
        }
        let text: String = proofs.iter().map(Proof::to_string).collect();
        let (proofs, bytes) = (proofs.len(), text.len());
        let Some(path) = &self.out else {
            let made = Made { proofs, bytes, file: None, text: Some(text.clone()) };
            output.print(&made, &text)?;
            return Ok(0);
        };
        std::fs::write(path, &text)
            .with_context(|| format!("could not write {}", path.display()))?;
        let file = path.display().to_string();
        let said = format!("{proofs} proofs, {bytes} bytes, in {file}\n");
        output.print(&Made { proofs, bytes, file: Some(file), text: None }, &said)?;
        Ok(0)
    }
}
