//! `sublet-audit diff`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use sublet_ledger::audit::{Class, Folder, Prover};
use sublet_ledger::checkpoint::Checkpoint;
use sublet_ledger::merkle::TreeHead;
use sublet_ledger::note::PublicKey;
use sublet_ledger::proof::{Fork, Proof};

use super::output::{self, Output};
use super::trust::{TrustArgs, read_checkpoint};

/// Compare two ledgers, or two checkpoints, or one with the other: the same, one extends the other,
/// or neither does.
///
/// Exit code 0: the same, or one extends the other. 3: the key signed both of two histories; the
/// proof is written. 2: they differ, but the key has not signed both.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// A folder with a ledger, or a file with a checkpoint.
    a: PathBuf,
    /// Another one.
    b: PathBuf,
    /// Where to write the proof of a fork.
    #[arg(long, value_name = "FILE", default_value = "fork-proof.txt")]
    proof: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What was found, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    /// `same`, `a_extends_b`, `b_extends_a`, `fork` or `differ`.
    verdict: &'static str,
    a: u64,
    b: u64,
    /// The first record in which they differ, where both are folders.
    first_difference: Option<u64>,
    proof: Option<String>,
}

enum Side<'a> {
    Ledger(Box<Prover<'a>>),
    Checkpoint(Checkpoint),
}

impl Side<'_> {
    fn head(&self) -> TreeHead {
        match self {
            Self::Ledger(prover) => prover.head(),
            Self::Checkpoint(checkpoint) => checkpoint.head(),
        }
    }

    /// The root over the first `size` records, as far as that can be told.
    fn root_at(&mut self, size: u64) -> anyhow::Result<Option<sublet_ledger::merkle::Hash>> {
        Ok(match self {
            Self::Ledger(prover) => Some(prover.root_at(size)?),
            Self::Checkpoint(checkpoint) => {
                let head = checkpoint.head();
                (head.size == size).then_some(head.root)
            }
        })
    }

    fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Self::Ledger(prover) => prover.newest().ok(),
            Self::Checkpoint(checkpoint) => Some(checkpoint),
        }
    }
}

impl Diff {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<u8> {
        let trust = self.trust.read()?;
        let (in_a, in_b) = (folder(&self.a)?, folder(&self.b)?);
        let mut a = side(&self.a, in_a.as_ref(), trust.key.as_ref())?;
        // Without a key of the auditor's, both have to be signed by the same one.
        let key = match (&trust.key, &a) {
            (Some(key), _) => Some(key.clone()),
            (None, Side::Ledger(prover)) => prover.key().cloned(),
            (None, Side::Checkpoint(_)) => None,
        };
        let mut b = side(&self.b, in_b.as_ref(), key.as_ref())?;
        let (of_a, of_b) = (a.head(), b.head());
        let common = of_a.size.min(of_b.size);
        let (Some(left), Some(right)) = (a.root_at(common)?, b.root_at(common)?) else {
            bail!(
                "the longer one is a checkpoint: it takes its ledger to tell whether it extends the other"
            );
        };
        let mut found = Found {
            verdict: "same",
            a: of_a.size,
            b: of_b.size,
            first_difference: None,
            proof: None,
        };
        if left == right {
            found.verdict = match of_a.size.cmp(&of_b.size) {
                std::cmp::Ordering::Less => "b_extends_a",
                std::cmp::Ordering::Equal => "same",
                std::cmp::Ordering::Greater => "a_extends_b",
            };
            output.print(&found, &found.text())?;
            return Ok(0);
        }
        if let (Side::Ledger(a), Side::Ledger(b)) = (&mut a, &mut b) {
            found.first_difference = a.first_difference(b)?;
        }
        let fork = fork(&mut a, &mut b)?;
        let (fork, class) = match (fork, key.or_else(|| key_of(&a)).or_else(|| key_of(&b))) {
            (Some(fork), Some(key)) if fork.check(&key).is_ok() => (Some(fork), Class::Fork),
            _ => (None, Class::Damaged),
        };
        found.verdict = if fork.is_some() { "fork" } else { "differ" };
        if let Some(fork) = fork {
            found.proof = output::keep_proof(&self.proof, &Proof::Fork(fork));
        }
        output.print(&found, &found.text())?;
        Ok(class.exit_code())
    }
}

impl Found {
    fn text(&self) -> String {
        let words = match self.verdict {
            "same" => "they are the same",
            "a_extends_b" => "the first extends the second",
            "b_extends_a" => "the second extends the first",
            "fork" => "two histories were signed",
            _ => "they differ, and the key has not signed both",
        };
        let mut text = format!("{words} ({} and {} sealed records)\n", self.a, self.b);
        if let Some(index) = self.first_difference {
            text.push_str(&format!("the first record that differs is {index}\n"));
        }
        if let Some(proof) = &self.proof {
            text.push_str(&format!("the proof is in {proof}\n"));
        }
        text
    }
}

fn folder(path: &Path) -> anyhow::Result<Option<Folder>> {
    if path.is_dir() { Ok(Some(Folder::find(path)?)) } else { Ok(None) }
}

fn side<'a>(
    path: &Path,
    folder: Option<&'a Folder>,
    key: Option<&PublicKey>,
) -> anyhow::Result<Side<'a>> {
    Ok(match folder {
        Some(folder) => Side::Ledger(Box::new(Prover::new(folder, key.cloned())?)),
        None => Side::Checkpoint(read_checkpoint(path, key)?),
    })
}

fn key_of(side: &Side<'_>) -> Option<PublicKey> {
    match side {
        Side::Ledger(prover) => prover.key().cloned(),
        Side::Checkpoint(_) => None,
    }
}

/// The proof that both were signed, if their checkpoints contradict each other.
fn fork<'a>(a: &mut Side<'a>, b: &mut Side<'a>) -> anyhow::Result<Option<Fork>> {
    let (Some(of_a), Some(of_b)) = (a.checkpoint().cloned(), b.checkpoint().cloned()) else {
        return Ok(None);
    };
    let (earlier, later) = if of_a.head().size <= of_b.head().size { (of_a, b) } else { (of_b, a) };
    Ok(match later {
        Side::Ledger(prover) => prover.fork(&earlier)?,
        Side::Checkpoint(later) if later.head().size == earlier.head().size => Some(Fork {
            prefix: later.head().root,
            path: Vec::new(),
            one: earlier,
            other: later.clone(),
        }),
        Side::Checkpoint(_) => None,
    })
}
