//! `sublet-audit check-proof`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use sublet_ledger::audit::{Class, Trust};
use sublet_ledger::merkle::Hash;
use sublet_ledger::note::PublicKey;
use sublet_ledger::proof::{Inclusion, PROOF_BYTES_MAX, Proof};
use sublet_protocol::codec::decode_record;

use super::output::Output;
use super::trust::TrustArgs;

/// Most proofs in a file.
const PROOFS_MAX: u64 = 4_096;

/// Check a proof with nothing but the cell's public key.
///
/// Exit code 0: proven. 2: the file proves nothing. 3: it proves that the key signed two histories.
#[derive(Debug, Args)]
pub(crate) struct CheckProof {
    /// The file with one proof or several.
    file: PathBuf,
    /// The receipt that came with the acknowledgement: the record must be the one that it names.
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What an acknowledgement said.
#[derive(Debug, Deserialize)]
struct Receipt {
    origin: String,
    index: u64,
    leaf: String,
}

/// What was found about one proof, as JSON.
#[derive(Debug, Serialize)]
struct Checked {
    proves: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<serde_json::Value>,
    sizes: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

impl CheckProof {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<u8> {
        let trust = self.trust.read()?;
        let Some(key) = trust.key.clone() else {
            bail!("a proof is worth what its key is worth: give --key or --trust");
        };
        let receipt = self.receipt.as_deref().map(|path| Receipt::read(path, &key)).transpose()?;
        let proofs = read(&self.file)?;
        let checked: Vec<Checked> = proofs
            .iter()
            .map(|proof| check(proof, &key, receipt.as_ref()).seen(&trust, proof))
            .collect();
        let mut text = String::new();
        for one in &checked {
            one.write(&mut text);
        }
        output.print(&checked, &text)?;
        let code = |one: &Checked| match (&one.fault, one.proves) {
            (Some(_), _) => Class::Damaged.exit_code(),
            (None, FORK) => Class::Fork.exit_code(),
            (None, _) => 0,
        };
        let codes: Vec<u8> = checked.iter().map(code).collect();
        let is_bad = codes.contains(&Class::Damaged.exit_code());
        Ok(if is_bad { Class::Damaged.exit_code() } else { codes.into_iter().max().unwrap_or(0) })
    }
}

const FORK: &str = "the key signed two histories";

impl Receipt {
    fn read(path: &Path, key: &PublicKey) -> anyhow::Result<(u64, Hash)> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("could not read {shown}"))?;
        let receipt: Self =
            serde_json::from_str(&text).with_context(|| format!("{shown} is not a receipt"))?;
        if receipt.origin != key.name() {
            bail!("the receipt is of {}, the key of {}", receipt.origin, key.name());
        }
        let bytes: Option<Vec<u8>> = (0..receipt.leaf.len())
            .step_by(2)
            .map(|at| receipt.leaf.get(at..at + 2))
            .map(|digits| digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        let leaf = bytes.with_context(|| format!("the leaf hash in {shown} cannot be read"))?;
        Ok((receipt.index, Hash::from_bytes(leaf)))
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Proof>> {
    let shown = path.display();
    let length = fs::metadata(path).with_context(|| format!("could not read {shown}"))?.len();
    let most = u64::try_from(PROOF_BYTES_MAX).unwrap_or(u64::MAX).saturating_mul(PROOFS_MAX);
    if length > most {
        bail!("{shown} is larger than any file of proofs");
    }
    let text = fs::read(path).with_context(|| format!("could not read {shown}"))?;
    // What is not even text proves nothing, as what is no proof.
    let text = String::from_utf8_lossy(&text);
    let proofs = Proof::read_all(&text).with_context(|| format!("{shown} cannot be read"))?;
    if proofs.is_empty() {
        bail!("{shown} is empty");
    }
    Ok(proofs)
}

fn check(proof: &Proof, key: &PublicKey, receipt: Option<&(u64, Hash)>) -> Checked {
    let nothing = |proves, sizes| Checked {
        proves,
        index: None,
        leaf: None,
        record: None,
        sizes,
        fault: None,
    };
    match proof {
        Proof::Inclusion(inclusion) => included(inclusion, key, receipt),
        Proof::Consistency(proof) => {
            let sizes = vec![proof.old.head().size, proof.new.head().size];
            let fault = proof.check(key).err().map(|error| error.to_string());
            Checked { fault, ..nothing("the later ledger extends the earlier one", sizes) }
        }
        Proof::Fork(proof) => {
            let sizes = vec![proof.one.head().size, proof.other.head().size];
            let fault = proof.check(key).err().map(|error| error.to_string());
            Checked { fault, ..nothing(FORK, sizes) }
        }
    }
}

fn included(proof: &Inclusion, key: &PublicKey, receipt: Option<&(u64, Hash)>) -> Checked {
    let leaf = receipt.map(|(_, leaf)| leaf);
    let (fault, leaf) = match receipt {
        Some((index, _)) if *index != proof.index => {
            (Some(format!("the receipt is for record {index}")), None)
        }
        _ => match proof.check(key, leaf) {
            Ok(leaf) => (None, Some(leaf.to_string())),
            Err(error) => (Some(error.to_string()), None),
        },
    };
    let record = proof.record.as_deref().and_then(|bytes| decode_record(bytes).ok());
    // Not shown where nothing is proven about it.
    let record = record.filter(|_| fault.is_none());
    Checked {
        proves: "the record is in the ledger",
        index: Some(proof.index),
        leaf,
        record: record.and_then(|record| serde_json::to_value(record).ok()),
        sizes: vec![proof.checkpoint.head().size],
        fault,
    }
}

impl Checked {
    /// The same, unless witnesses are asked for and too few of them signed what the proof rests on. A
    /// fork needs no witness: it speaks against the key.
    fn seen(mut self, trust: &Trust, proof: &Proof) -> Self {
        let newest = match proof {
            Proof::Inclusion(inclusion) => &inclusion.checkpoint,
            Proof::Consistency(consistency) => &consistency.new,
            Proof::Fork(_) => return self,
        };
        if self.fault.is_none() && !trust.witnesses.is_empty() && !trust.is_witnessed(newest) {
            let (required, of) = (trust.witnesses_required, trust.witnesses.len());
            self.fault = Some(format!("fewer than {required} of your {of} witnesses signed it"));
            self.record = None;
        }
        self
    }

    fn write(&self, text: &mut String) {
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        let of = sizes.join(" and ");
        let what = self.index.map(|index| format!("record {index}: ")).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = match &self.fault {
            Some(fault) => {
                writeln!(text, "NOT PROVEN  {what}{fault} (checkpoints of {of} records)")
            }
            None => writeln!(text, "proven      {what}{} ({of} records)", self.proves),
        };
        if let Some(record) = &self.record {
            let _ = writeln!(text, "            {record}");
        }
    }
}
