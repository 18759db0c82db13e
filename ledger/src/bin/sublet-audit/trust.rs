//! Whom the auditor believes: from the command line or from `audit.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;
use sublet_ledger::audit::Trust;
use sublet_ledger::checkpoint::Checkpoint;
use sublet_ledger::note::{Kind, PublicKey};

/// What the auditor trusts. Keep the key where whoever runs the ledger cannot change it.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// The cell's public key, as a line NAME+HASH+KEY or a file with it. Without it signatures are
    /// checked only against the key that the folder itself names.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The origin that checkpoints must name; it is the key's name, so this only guards against the
    /// wrong key.
    #[arg(long)]
    origin: Option<String>,
    /// A file with `key`, `origin`, `witnesses` and `witnesses_required`, in place of the options.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "origin", "witness"])]
    trust: Option<PathBuf>,
    /// The public key of a witness, or a file with it. May be given several times.
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
    /// How many of the witnesses must have signed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    witnesses_required: usize,
}

/// `audit.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: String,
    origin: Option<String>,
    #[serde(default)]
    witnesses: Vec<String>,
    witnesses_required: Option<usize>,
}

impl TrustArgs {
    /// Reads keys and checks that they are what they are taken for.
    pub(crate) fn read(&self) -> anyhow::Result<Trust> {
        let (key, origin, witnesses, required, near) = match &self.trust {
            Some(path) => {
                let shown = path.display();
                let text =
                    fs::read_to_string(path).with_context(|| format!("could not read {shown}"))?;
                let file: File = toml::from_str(&text)
                    .with_context(|| format!("{shown} is not as it should be"))?;
                let required = file.witnesses_required.unwrap_or(1);
                let near = path.parent().unwrap_or(Path::new("")).to_owned();
                (Some(file.key), file.origin, file.witnesses, required, near)
            }
            None => {
                let (key, origin, witnesses) =
                    (self.key.clone(), self.origin.clone(), self.witness.clone());
                (key, origin, witnesses, self.witnesses_required, PathBuf::new())
            }
        };
        let key = key.map(|key| read_key(&key, Kind::Log, &near)).transpose()?;
        match (&key, origin) {
            (Some(key), Some(origin)) if key.name() != origin => {
                bail!("the key is that of {}, not of {origin}", key.name());
            }
            (None, Some(_)) => bail!("an origin without a key proves nothing: give --key, too"),
            _ => {}
        }
        let witnesses: Vec<PublicKey> = witnesses
            .iter()
            .map(|witness| read_key(witness, Kind::Witness, &near))
            .collect::<Result<_, _>>()?;
        if !witnesses.is_empty() && !(1..=witnesses.len()).contains(&required) {
            bail!("{required} of {} witnesses cannot be required", witnesses.len());
        }
        Ok(Trust { key, witnesses, witnesses_required: required, against: Vec::new() })
    }
}

/// The key in `text`, or in the file of this name beside `near`.
pub(crate) fn read_key(text: &str, kind: Kind, near: &Path) -> anyhow::Result<PublicKey> {
    let key = match text.parse::<PublicKey>() {
        Ok(key) => key,
        Err(_) => {
            let path = near.join(text);
            let line = fs::read_to_string(&path)
                .with_context(|| format!("{text} is neither a key nor a file with one"))?;
            line.parse().with_context(|| format!("{} holds no public key", path.display()))?
        }
    };
    match (key.kind(), kind) {
        (found, wanted) if found == wanted => Ok(key),
        (Kind::Witness, _) => bail!("the key of {} is a witness's, not a ledger's", key.name()),
        (Kind::Log, _) => bail!("the key of {} is a ledger's, not a witness's", key.name()),
    }
}

/// A checkpoint from a file, which `key`, if there is one, has to have signed.
pub(crate) fn read_checkpoint(path: &Path, key: Option<&PublicKey>) -> anyhow::Result<Checkpoint> {
    let text =
        fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    let checkpoint: Checkpoint =
        text.parse().with_context(|| format!("{} is not a checkpoint", path.display()))?;
    match key {
        Some(key) if !checkpoint.is_of(key) => {
            bail!("{} is not signed by the key of {}", path.display(), key.name())
        }
        _ => Ok(checkpoint),
    }
}
