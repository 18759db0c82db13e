//! What a `sublet dev` came to. Every number is read from the journal or counted where records are
//! written; nothing is assumed.

use std::collections::BTreeMap;

use serde::Serialize;
use sublet_broker::counters::Counters;
use sublet_ledger::verify::Report;

use super::load::Counted;

/// The summary, as the last line of `sublet dev --json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Leases granted since this start.
    pub(super) leases_granted: u64,
    /// Leases ended since this start.
    pub(super) leases_ended: u64,
    /// The same, by reason.
    pub(super) leases_ended_by_reason: BTreeMap<&'static str, u64>,
    /// Leases that their GPUs' owner took back.
    pub(super) owner_reclaims: u64,
    /// Leases that had to go for one of higher rank.
    pub(super) preemptions: u64,
    /// Measured guest time × GPUs, in lease time.
    pub(super) gpu_seconds_lent: u64,
    /// Real seconds from the start of the process's work to the first lease; none without one.
    pub(super) first_lease_seconds: Option<f64>,
    /// The ledger, verified from its files after the cell was shut down.
    pub(super) ledger: Ledger,
    /// The books.
    pub(super) accounts: Accounts,
    /// What was checked while it ran.
    pub(super) invariants: Invariants,
    /// What became of the jobs of the load.
    pub(super) load: Counted,
    /// Real seconds it ran.
    pub(super) uptime_seconds: f64,
    /// Seconds of lease time that passed.
    pub(super) lease_seconds: u64,
    /// Lease seconds in a second.
    pub(super) speed: u32,
    /// What load and owners were drawn from.
    pub(super) seed: u64,
    /// Resident memory at its highest, MiB; none where the system does not say.
    pub(super) resident_mib_max: Option<u64>,
}

/// The ledger in the summary.
#[derive(Debug, Serialize)]
pub(super) struct Ledger {
    /// How many records.
    pub(super) records: u64,
    /// The RFC 6962 root over all of them.
    pub(super) root: String,
    /// Whether every record, hash, segment and posting is as it must be.
    pub(super) verified: bool,
    /// The first thing that is not, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) finding: Option<String>,
}

/// The books in the summary.
#[derive(Debug, Serialize)]
pub(super) struct Accounts {
    /// Whether debits and credits are equal.
    pub(super) balanced: bool,
    /// The leases with money set aside.
    pub(super) open_holds: usize,
}

/// The invariants in the summary.
#[derive(Debug, Serialize)]
pub(super) struct Invariants {
    /// How often all of them were checked.
    pub(super) checked: u64,
    /// How many commands were applied.
    pub(super) commands: u64,
    /// How many violations were found.
    pub(super) violations: u64,
    /// The newest of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) newest: Vec<String>,
}

impl Ledger {
    /// From a verifier's report.
    pub(super) fn of(report: &Report) -> Ledger {
        let finding = report.first_bad.as_ref();
        Ledger {
            records: report.records,
            root: report.root.to_string(),
            verified: report.is_good(),
            finding: finding.map(|bad| format!("record {}: {}", bad.index, bad.finding)),
        }
    }
}

impl Invariants {
    /// From what the cell counted.
    pub(super) fn of(counters: &Counters, newest: Vec<String>) -> Invariants {
        Invariants {
            checked: counters.invariants_checked,
            commands: counters.commands,
            violations: counters.invariant_violations,
            newest,
        }
    }
}

impl Summary {
    /// Whether ledger, books and rules are as they must be.
    pub(super) const fn is_good(&self) -> bool {
        self.ledger.verified && self.accounts.balanced && self.invariants.violations == 0
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let reasons = self.leases_ended_by_reason.iter();
        let reasons: Vec<String> = reasons.map(|(reason, n)| format!("{n} {reason}")).collect();
        let ledger = &self.ledger;
        let verified = if ledger.verified { "verified" } else { "DAMAGED" };
        let balanced = if self.accounts.balanced { "balanced" } else { "NOT BALANCED" };
        let mut lines = vec![
            format!(
                "leases: {} granted, {} ended ({})",
                self.leases_granted,
                self.leases_ended,
                reasons.join(", ")
            ),
            format!(
                "taken back by owners: {}, preempted by rank: {}, lent: {} GPU-seconds",
                self.owner_reclaims, self.preemptions, self.gpu_seconds_lent
            ),
            format!("ledger: {} records, {verified}, root {}", ledger.records, ledger.root),
            format!(
                "books: {balanced}; invariants: checked {} times over {} commands, {} violations",
                self.invariants.checked, self.invariants.commands, self.invariants.violations
            ),
        ];
        lines.extend(ledger.finding.clone());
        lines.extend(self.invariants.newest.iter().cloned());
        lines
    }
}

/// Resident memory of this process at its highest, in MiB, as Linux counts it.
pub(super) fn resident_mib_max() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1_024)
}
