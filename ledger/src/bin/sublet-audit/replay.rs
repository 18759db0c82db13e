//! `sublet-audit replay`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use sublet_protocol::money::MicroCredits;

use super::books;
use super::output::Output;
use super::trust::TrustArgs;

/// Compute every hold and every charge again from the records alone, and say which is the first that
/// is not what it must be.
///
/// A charge is the price posted when the lease was granted, times the time that agents measured (at
/// most the time bought and the time since activation), times the share of GPUs; nothing if the owner
/// took the GPU back before the minimum run time. Everything that `verify` checks is checked on the
/// way. Exit code 4 if a charge is wrong.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What was found, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    verdict: &'static str,
    ledger: String,
    records: u64,
    /// Charges that were computed again and are right.
    charges: u64,
    /// Reversals, and charges that count again after one.
    turned: u64,
    currency: Option<String>,
    /// Sum of the costs.
    cost: String,
    /// Sum of what the platform kept.
    fee: String,
    /// Sum of what lenders earned.
    earned: String,
    first_bad: Option<FirstBad>,
}

#[derive(Debug, Serialize)]
struct FirstBad {
    index: u64,
    what: String,
}

/// Sums over all charges, in micro-units; they may be larger than one amount can be.
#[derive(Default)]
struct Sums {
    cost: i128,
    fee: i128,
    /// By end reason: how many.
    reasons: BTreeMap<&'static str, u64>,
}

impl Replay {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> Result<u8> {
        let mut sums = Sums::default();
        let read = books::read(&self.dir, &self.trust, output, |charge, _| {
            sums.cost += i128::from(charge.signed(charge.settlement.cost).get());
            sums.fee += i128::from(charge.signed(charge.settlement.fee).get());
            if charge.turn.is_some() {
                return Ok(());
            }
            *sums.reasons.entry(charge.reason.code()).or_default() += 1;
            Ok(())
        })?;
        let found = Found {
            verdict: match read.wrong.as_ref().map(|wrong| wrong.code) {
                None => "ok",
                Some(4) => "unbalanced",
                Some(5) => "unknown_version",
                Some(3) => "fork",
                Some(_) => "damaged",
            },
            ledger: read.ledger.clone(),
            records: read.records,
            charges: read.recount.leases(),
            turned: read.recount.turns(),
            currency: read.recount.currency().map(|currency| currency.to_string()),
            cost: decimal(sums.cost),
            fee: decimal(sums.fee),
            earned: decimal(sums.cost - sums.fee),
            first_bad: read
                .wrong
                .as_ref()
                .map(|wrong| FirstBad { index: wrong.index, what: wrong.what.clone() }),
        };
        output.print(&found, &found.text(&sums))?;
        Ok(read.wrong.map_or(0, |wrong| wrong.code))
    }
}

/// Micro-units as a decimal with six places.
fn decimal(micros: i128) -> String {
    let unit = i128::from(MicroCredits::PER_UNIT);
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.abs();
    format!("{sign}{}.{:06}", micros / unit, micros % unit)
}

impl Found {
    fn text(&self, sums: &Sums) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<13} {value}");
        };
        line("ledger", &self.ledger);
        line("good records", &self.records.to_string());
        line("right charges", &self.charges.to_string());
        if self.turned > 0 {
            line("turned", &self.turned.to_string());
        }
        let currency = self.currency.as_deref().unwrap_or("");
        line("borrowers pay", &format!("{} {currency}", self.cost));
        line("lenders earn", &format!("{} {currency}", self.earned));
        line("platform fee", &format!("{} {currency}", self.fee));
        for (reason, count) in &sums.reasons {
            line("ended", &format!("{count} {reason}"));
        }
        if let Some(bad) = &self.first_bad {
            line("first bad", &format!("record {}: {}", bad.index, bad.what));
        }
        line("verdict", self.verdict);
        text
    }
}
