//! `sublet-audit statement`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sublet_ledger::audit::Seen;
use sublet_ledger::chains::{ProofBuilder, StatementProof};
use sublet_ledger::charges::{Charge, ChargeLine, Recount};
use sublet_ledger::periods::Period;
use sublet_ledger::rounding::minor_text;
use sublet_ledger::statement::{Party, Statement as Made, StatementBuilder};
use sublet_protocol::api::{StatementSide, StatementView};
use sublet_protocol::events::Event;
use sublet_protocol::ids::TenantId;
use sublet_protocol::money::Currency;
use sublet_protocol::units::Timestamp;

use super::books;
use super::output::Output;
use super::trust::TrustArgs;

/// Make a tenant's statement for a month or another period, to the cent.
///
/// The ledger is verified and every charge computed again on the way; nothing is printed if anything
/// is wrong.
#[derive(Debug, Args)]
pub(crate) struct Statement {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
    /// Whose statement.
    #[arg(long)]
    tenant: TenantId,
    #[command(flatten)]
    span: Span,
    /// What the tenant owes for its leases, or earned with GPUs that it lent.
    #[arg(long, value_enum, default_value = "borrower")]
    side: Side,
    /// Print the CSV form whose SHA-256 the statement names.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write the proof that the statement is complete to this file, for `check-proof`. The statement
    /// is then made of what the newest signed checkpoint covers, or the first one behind the close of
    /// the period.
    #[arg(long, value_name = "FILE")]
    proof: Option<PathBuf>,
}

/// Which period.
#[derive(Debug, Args)]
pub(crate) struct Span {
    /// A month, as 2026-03.
    #[arg(long, required_unless_present = "from", conflicts_with_all = ["from", "until"])]
    month: Option<String>,
    /// The first day (2026-03-01) or instant (2026-03-01T00:00:00Z).
    #[arg(long, requires = "until")]
    from: Option<String>,
    /// The day or instant behind the last one; it is not in the period.
    #[arg(long, requires = "from")]
    until: Option<String>,
    /// The time zone of months and days.
    #[arg(long, default_value = "UTC")]
    zone: String,
}

impl Span {
    /// The period.
    pub(crate) fn period(&self) -> Result<Period> {
        let period = match (&self.month, &self.from, &self.until) {
            (Some(month), _, _) => Period::month(month, &self.zone),
            (None, Some(from), Some(until)) => Period::between(from, until, &self.zone),
            (None, _, _) => anyhow::bail!("name a period: --month, or --from and --until"),
        };
        Ok(period?)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Side {
    Borrower,
    Lender,
}

impl Statement {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> Result<u8> {
        let period = self.span.period()?;
        let side = match self.side {
            Side::Borrower => StatementSide::Borrower,
            Side::Lender => StatementSide::Lender,
        };
        let party = Party { tenant: self.tenant, side };
        let (mut builder, mut proof) = (None, ProofBuilder::new(party, period.clone()));
        let (mut created, mut charged, mut lines) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let each = |charge: &Charge, books: &Recount| {
            if builder.is_none() {
                let currency = books.currency().context("the cell has no currency")?;
                builder = Some(StatementBuilder::new(party, period.clone(), currency));
            }
            builder.as_mut().map_or(Ok(()), |builder| builder.add(charge))?;
            let (borrower, lender) = (charge.terms.tenant, charge.terms.owner);
            charged.extend([borrower, lender]);
            let whose = if side == StatementSide::Borrower { borrower } else { lender };
            if self.proof.is_some() && whose == party.tenant {
                lines.push(ChargeLine::of(charge, side));
            }
            Ok(())
        };
        let watch = |seen: &Seen<'_>| {
            if let Seen::Record(record, _) = seen
                && let Event::TenantCreated { tenant, .. } = record.event
            {
                created.insert(tenant);
            }
            if self.proof.is_some() {
                proof.take(seen);
            }
        };
        let read = books::read_watching(&self.dir, &self.trust, output, each, watch)?;
        let code = books::complain(&read);
        if code != 0 {
            return Ok(code);
        }
        created.append(&mut charged);
        if !created.contains(&party.tenant) {
            let known: Vec<_> = created.iter().take(50).map(ToString::to_string).collect();
            bail!("no record names {} as a tenant; there are: {}", party.tenant, known.join(", "));
        }
        let currency = read.recount.currency();
        let currency = currency.context("the ledger has no record of its founding")?;
        let (made, records, closed_until) = match &self.proof {
            Some(path) => {
                let again = StatementBuilder::new(party, period, currency);
                proven(path, &write_proof(path, proof, currency)?, again, &lines)?
            }
            None => {
                let empty = || StatementBuilder::new(party, period, currency);
                let made = builder.unwrap_or_else(empty).finish()?;
                (made, read.records, read.recount.closed_until())
            }
        };
        if self.csv {
            made.write_csv(io::stdout().lock())?;
            return Ok(0);
        }
        let view = made.view(records, closed_until)?;
        output.print(&view, &text(&made, &view))?;
        Ok(0)
    }
}

/// The statement of a proof that was written, the records it is made of and up to when they are
/// closed. The chain and the recount, whose `lines` go into `again`, share no code: neither is
/// believed alone.
fn proven(
    path: &Path,
    proof: &StatementProof,
    mut again: StatementBuilder,
    lines: &[ChargeLine],
) -> Result<(Made, u64, Timestamp)> {
    let (made, records) = (proof.statement()?, proof.checkpoint().head().size);
    for line in lines.iter().filter(|line| line.index < records) {
        again.add_line(line)?;
    }
    if again.finish()?.sha256()? != made.sha256()? {
        fs::remove_file(path).context("could not remove the proof again")?;
        if lines.iter().any(|line| line.turn.is_some()) {
            bail!(
                "a charge of this period was reversed, or charged again: the chains by which a \
                 statement is proven complete do not have that yet, so no proof was written \
                 (without --proof the statement is made, and `replay` checks it)"
            );
        }
        bail!("the chain of charges does not have what the records charge");
    }
    Ok((made, records, proof.closed_until()))
}

/// Finishes the proof and writes it.
fn write_proof(path: &Path, proof: ProofBuilder, currency: Currency) -> Result<StatementProof> {
    let proof = proof.finish(currency).context(
        "no signed checkpoint covers a charge of the tenant or its founding: nothing can be proven \
         without one",
    )?;
    let shown = path.display();
    fs::write(path, proof.to_string()).with_context(|| format!("could not write {shown}"))?;
    Ok(proof)
}

/// The statement for people.
fn text(made: &Made, view: &StatementView) -> String {
    let currency = view.total.currency;
    let mut text = String::new();
    let side = view.side.code();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "{} as {side}, {} to {} ({})",
        view.tenant, view.from, view.until, view.zone
    );
    for (line, shown) in made.lines().iter().zip(&view.lines) {
        let _ = writeln!(
            text,
            "  {}  {}  {}  {}/1000 of {}  {:>12} s  {:>12} {currency}{}",
            shown.lease,
            made.period().local(line.begin),
            shown.project.map_or_else(|| "-".to_owned(), |project| project.to_string()),
            shown.gpu,
            shown.model,
            Thousandths(shown.billed_ms),
            minor_text(line.amount, currency),
            if line.is_correction { "  correction" } else { "" },
        );
    }
    for day in made.days() {
        let amount = minor_text(day.amount, currency);
        let _ = writeln!(
            text,
            "  {}  {:>12} s  {amount:>12} {currency}",
            day.day,
            Thousandths(day.billed.get())
        );
    }
    let _ = writeln!(text, "total     {} {currency}", minor_text(made.total(), currency));
    let _ = writeln!(text, "unrounded {}", view.exact);
    if let Some(fee) = &view.fee {
        let _ = writeln!(text, "fee       {fee} (kept by the platform)");
    }
    let closed = if view.closed { "closed" } else { "open: leases may still be added" };
    let _ = writeln!(text, "period    {closed}");
    let _ = writeln!(text, "records   {}", view.records);
    let _ = writeln!(text, "sha256    {}", view.sha256);
    text
}

/// Milliseconds, shown in seconds with three places.
struct Thousandths(u64);

impl std::fmt::Display for Thousandths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1_000, self.0 % 1_000);
        let width = f.width().unwrap_or(0);
        write!(f, "{text:>width$}")
    }
}
