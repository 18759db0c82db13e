//! What every command on the books shares: the ledger is checked while it is read, and every charge is
//! computed again.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use sublet_ledger::audit::{Audit, Class, Folder, Seen};
use sublet_ledger::charges::{Charge, ChargeError, Recount};
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;

use super::output::{self, Output};
use super::trust::TrustArgs;

/// How a reading of the books ended.
pub(crate) struct Read {
    /// The books after the last record that was taken.
    pub(crate) recount: Recount,
    /// Where the ledger was found.
    pub(crate) ledger: String,
    /// Records that are good.
    pub(crate) records: u64,
    /// What is wrong first, if anything is.
    pub(crate) wrong: Option<Wrong>,
}

/// The first thing that is wrong.
pub(crate) struct Wrong {
    /// The record.
    pub(crate) index: u64,
    /// What.
    pub(crate) what: String,
    /// The exit code for it.
    pub(crate) code: u8,
}

/// Reads a ledger, checks it, computes every charge again and hands each over in order, with the books
/// as they stand behind it. Behind the first thing that is wrong nothing is handed over.
///
/// # Errors
/// There is no ledger, the system failed, or `each` did.
pub(crate) fn read(
    dir: &Path,
    trust: &TrustArgs,
    output: &Output,
    each: impl FnMut(&Charge, &Recount) -> Result<()>,
) -> Result<Read> {
    read_watching(dir, trust, output, each, |_| ())
}

/// As [`read`], and hands over all that the check finds good.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_watching(
    dir: &Path,
    trust: &TrustArgs,
    output: &Output,
    mut each: impl FnMut(&Charge, &Recount) -> Result<()>,
    mut watch: impl FnMut(&Seen<'_>),
) -> Result<Read> {
    let trust = trust.read()?;
    let folder = Folder::find(dir)?;
    let bar = output.bar(folder.bytes());
    let (mut recount, mut wrong) = (Recount::keeping(turned(&folder)?), None::<(u64, ChargeError)>);
    let mut failed = None;
    let outcome = Audit::new(&folder).trusting(trust).run_watching(
        |progress| bar.set_position(progress.bytes),
        |seen| {
            watch(&seen);
            let Seen::Record(record, _) = seen else { return };
            if wrong.is_some() || failed.is_some() {
                return;
            }
            match recount.take(record) {
                Ok(None) => {}
                Ok(Some(charge)) => failed = each(&charge, &recount).err(),
                Err(error) => wrong = Some((record.index, error)),
            }
        },
    );
    bar.finish_and_clear();
    let ledger = folder.dir().display().to_string();
    let outcome = outcome.with_context(|| format!("could not read the ledger in {ledger}"))?;
    if let Some(error) = failed {
        return Err(error);
    }
    if !outcome.signatures.is_pinned {
        output::note(
            "signatures were checked with no key of yours, so whoever holds the folder can have \
             written all of it: give the cell's key with --key",
        );
    }
    let wrong = match (wrong, &outcome.first_bad) {
        (Some((index, error)), bad) if bad.as_ref().is_none_or(|bad| index < bad.index) => {
            let code = Class::Books.exit_code();
            Some(Wrong { index, what: error.to_string(), code })
        }
        (_, Some(bad)) => {
            let (what, code) = (output::chain(&bad.finding), bad.finding.class().exit_code());
            Some(Wrong { index: bad.index, what, code })
        }
        (_, None) => None,
    };
    Ok(Read { recount, ledger, records: outcome.records, wrong })
}

/// The leases whose charges are turned anywhere: only of these must the charge be held until then. It
/// reads the ledger once more, up to the first thing that is wrong.
fn turned(folder: &Folder) -> Result<BTreeSet<LeaseId>> {
    let mut found = BTreeSet::new();
    let ledger = folder.dir().display().to_string();
    let outcome = Audit::new(folder).run_visiting(
        |_progress| {},
        |record| {
            if let Event::ChargeTurned { turn } = &record.event {
                found.insert(turn.lease);
            }
        },
    );
    outcome.with_context(|| format!("could not read the ledger in {ledger}"))?;
    Ok(found)
}

/// The exit code for what is wrong, and a complaint on standard error. Zero if nothing is.
pub(crate) fn complain(read: &Read) -> u8 {
    let Some(wrong) = &read.wrong else { return 0 };
    output::complain(&anyhow::anyhow!(
        "record {} of {} is wrong: {}",
        wrong.index,
        read.ledger,
        wrong.what
    ));
    wrong.code
}
