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
use sublet_protocol::api::Time;
use sublet_protocol::codec::decode_record;
use sublet_protocol::units::Timestamp;

use super::check_statement;
use super::output::{self, Output};
use super::trust::TrustArgs;

/// Most proofs in a file.
const PROOFS_MAX: u64 = 4_096;

/// Check a proof with nothing but the cell's public key.
///
/// Proofs of records show that each of them is in the ledger, not that there are no others. A
/// statement is proven complete by its own proof: name the statement (as `statement --csv` or
/// `--json` gave it) and then the proof.
///
/// Exit code 0: proven. 2: the file proves nothing. 3: it proves that the key signed two histories.
#[derive(Debug, Args)]
pub(crate) struct CheckProof {
    /// The file with one proof or several; or a statement, if its proof is named behind it.
    file: PathBuf,
    /// The proof of the statement.
    proof: Option<PathBuf>,
    /// Take a statement of a period that was not closed when it was proven: charges may be added.
    #[arg(long)]
    open: bool,
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
    time: Time,
}

/// What a receipt says, once it is of this ledger.
struct Said {
    index: u64,
    leaf: Hash,
    time: Timestamp,
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
        let bytes = read(self.proof.as_ref().unwrap_or(&self.file))?;
        if check_statement::is_one(&bytes) || self.proof.is_some() {
            if self.receipt.is_some() {
                bail!("a receipt is for one record: it has no place beside a statement");
            }
            let statement = self.proof.as_ref().map(|_| read(&self.file)).transpose()?;
            let asked = check_statement::Asked { open: self.open, statement };
            return check_statement::run(&bytes, &asked, &trust, &key, output);
        }
        let receipt = self.receipt.as_deref().map(|path| Receipt::read(path, &key)).transpose()?;
        let checked = match (Proof::read_all(&bytes), receipt) {
            (Ok(proofs), _) if proofs.is_empty() => vec![Checked::nothing("the file is empty")],
            (Ok(_), Some(Err(fault))) => vec![Checked::nothing(&fault)],
            (Ok(proofs), receipt) => {
                let receipt = receipt.and_then(Result::ok);
                let check = |proof| check(proof, &key, receipt.as_ref()).seen(&trust, proof);
                proofs.iter().map(check).collect()
            }
            (Err(fault), _) => vec![Checked::nothing(&output::chain(&fault))],
        };
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
    /// What the receipt in `path` says; `Err` if it is none, or of another ledger.
    fn read(path: &Path, key: &PublicKey) -> anyhow::Result<Result<Said, String>> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("could not read {shown}"))?;
        let receipt: Self = match serde_json::from_str(&text) {
            Ok(receipt) => receipt,
            Err(error) => return Ok(Err(format!("{shown} is not a receipt: {error}"))),
        };
        let Self { origin, index, leaf, time } = receipt;
        if origin != key.name() {
            return Ok(Err(format!("the receipt is of {origin}, the key of {}", key.name())));
        }
        let Ok(leaf) = leaf.parse() else {
            return Ok(Err(format!("the leaf hash in {shown} cannot be read")));
        };
        Ok(Ok(Said { index, leaf, time: time.0 }))
    }
}

/// The text of a file of proofs. What is not even text proves nothing, as what is no proof.
fn read(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let length = fs::metadata(path).with_context(|| format!("could not read {shown}"))?.len();
    let most = u64::try_from(PROOF_BYTES_MAX).unwrap_or(u64::MAX).saturating_mul(PROOFS_MAX);
    if length > most {
        bail!("{shown} is larger than any file of proofs");
    }
    let text = fs::read(path).with_context(|| format!("could not read {shown}"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn check(proof: &Proof, key: &PublicKey, receipt: Option<&Said>) -> Checked {
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

fn included(proof: &Inclusion, key: &PublicKey, receipt: Option<&Said>) -> Checked {
    let record = proof.record.as_deref().and_then(|bytes| decode_record(bytes).ok());
    let (fault, leaf) = match (receipt, &record) {
        (Some(said), _) if said.index != proof.index => {
            (Some(format!("the receipt is for record {}", said.index)), None)
        }
        (Some(said), Some(record)) if said.time != record.time => {
            let (said, found) = (Time(said.time), Time(record.time));
            (Some(format!("the receipt says {said} as its time, the record {found}")), None)
        }
        _ => match proof.check(key, receipt.map(|said| &said.leaf)) {
            Ok(leaf) => (None, Some(leaf.to_string())),
            Err(error) => (Some(error.to_string()), None),
        },
    };
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
    /// Of a file that is no proof.
    fn nothing(fault: &str) -> Self {
        Self {
            proves: "nothing",
            index: None,
            leaf: None,
            record: None,
            sizes: Vec::new(),
            fault: Some(fault.to_owned()),
        }
    }

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
            Some(fault) if self.sizes.is_empty() => writeln!(text, "NOT PROVEN  {fault}"),
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
