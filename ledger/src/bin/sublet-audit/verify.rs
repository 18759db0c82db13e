//! `sublet-audit verify`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use sublet_ledger::audit::{Audit, Class, Folder, Outcome, Prover, Tail};
use sublet_ledger::proof::Proof;
use sublet_ledger::verify::Finding;

use super::output::{self, Output};
use super::trust::{TrustArgs, read_checkpoint};

/// Read every record, segment and hash again, and say where the ledger is not what it should be.
///
/// Nothing in the folder is changed. A broker may run: what it has not sealed yet is then left out.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
    /// A checkpoint kept from before: the ledger has to extend it. May be given several times.
    #[arg(long, value_name = "CHECKPOINT")]
    against: Vec<PathBuf>,
    /// Where to write the proof of a fork.
    #[arg(long, value_name = "FILE", default_value = "fork-proof.txt")]
    proof: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
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
    /// The name of the key whose signatures were checked.
    origin: Option<String>,
    /// Whether the auditor brought the key; `false`: the folder named it.
    key_is_pinned: bool,
    /// Records up to the newest checkpoint that the key signed.
    signed: u64,
    /// Segments beside which there is no checkpoint that the key signed.
    without_checkpoint: Vec<u32>,
    /// Records up to the newest checkpoint that the witnesses signed.
    witnessed: u64,
    /// Records up to the newest checkpoint from before.
    confirmed: u64,
    first_bad: Option<FirstBad>,
    /// The file with the proof of a fork.
    proof: Option<String>,
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
        let mut trust = self.trust.read()?;
        let folder = Folder::find(&self.dir)?;
        let key = trust.key.as_ref();
        for path in &self.against {
            trust.against.push(read_checkpoint(path, key)?);
        }
        let bar = output.bar(folder.bytes());
        let audit = Audit::new(&folder).trusting(trust);
        let outcome = audit.run(|progress| {
            bar.set_length(progress.of);
            bar.set_position(progress.bytes);
        });
        bar.finish_and_clear();
        let outcome = outcome
            .with_context(|| format!("could not check the ledger in {}", folder.dir().display()))?;
        let mut found = Found::of(&folder, &outcome);
        if let Some(Finding::Fork { kept, .. }) = outcome.first_bad.as_ref().map(|bad| &bad.finding)
        {
            let mut prover = Prover::new(&folder, outcome.signatures.key.clone())?;
            let fork = prover.fork(kept)?.context("the fork cannot be proven")?;
            found.proof = output::keep_proof(&self.proof, &Proof::Fork(fork));
        }
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
            origin: outcome.signatures.key.as_ref().map(|key| key.name().to_owned()),
            key_is_pinned: outcome.signatures.is_pinned,
            signed: outcome.signatures.signed,
            without_checkpoint: outcome.signatures.without.clone(),
            witnessed: outcome.signatures.witnessed,
            confirmed: outcome.confirmed,
            proof: None,
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
        let by = match (&self.origin, self.key_is_pinned) {
            (Some(origin), true) => format!("by the key of {origin} that you gave"),
            (Some(origin), false) => format!("by the key of {origin} THAT THE FOLDER ITSELF NAMES"),
            (None, _) => "no key is known".to_owned(),
        };
        line("signed", &format!("{} records, {by}", self.signed));
        if self.witnessed > 0 {
            line("witnessed", &format!("{} records", self.witnessed));
        }
        if self.confirmed > 0 {
            line("extends", &format!("a checkpoint from before of {} records", self.confirmed));
        }
        for note in &self.notes {
            line("note", note);
        }
        match &self.first_bad {
            Some(bad) => line("first bad", &format!("record {}: {}", bad.index, bad.what)),
            None => line("books", "balanced"),
        }
        if let Some(proof) = &self.proof {
            line("proof", proof);
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
    let signatures = &outcome.signatures;
    if !signatures.is_pinned {
        let key = signatures.key.as_ref().map(ToString::to_string);
        let whose = key.map_or_else(
            || "SIGNATURES WERE NOT CHECKED: no key was given and the folder names none".to_owned(),
            |key| {
                format!(
                    "SIGNATURES PROVE NOTHING against whoever wrote the folder: the key came with \
                     it. Ask the operator for the cell's key on another way and give --key; here \
                     it says {key}"
                )
            },
        );
        notes.push(whose);
    }
    if signatures.signed < outcome.sealed && signatures.key.is_some() {
        notes.push(format!("records from {} on are not signed", signatures.signed));
    }
    // Those behind the newest signature are told above.
    let is_passed = |number: &&u32| signatures.newest.is_some() && **number < outcome.segments;
    let passed: Vec<String> =
        signatures.without.iter().filter(is_passed).take(20).map(u32::to_string).collect();
    if signatures.key.is_some() && signatures.signed > 0 && !passed.is_empty() {
        notes.push(format!(
            "NO CHECKPOINT THAT THE KEY SIGNED lies beside {} of {} segments ({}{}): it is missing, \
             changed or another key's; later signatures cover the records",
            signatures.without.len(),
            outcome.segments,
            passed.join(", "),
            if signatures.without.len() > passed.len() { ", …" } else { "" },
        ));
    }
    if outcome.records == 0 && outcome.first_bad.is_none() {
        notes.push("there is not one record to check".into());
    }
    notes
}
