//! Statements: what a borrower owes, or a lender is owed, for a period.
//!
//! A statement has one line for each charge that counts in the period. Amounts are micro-units until
//! the end; the total is rounded once and the lines are made to add up to it
//! ([`rounding`](crate::rounding)). Days only group: a lease's cost up to midnight is the price times
//! the time up to midnight.

mod build;
mod compare;
mod csv;
#[cfg(test)]
mod tests;

use std::io;

use sha2::{Digest, Sha256};
use sublet_protocol::api::{
    Money, StatementDayView, StatementLineView, StatementSide, StatementView, Time,
};
use sublet_protocol::ids::{GpuModel, LeaseId, Project, RequestId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Currency, MicroCredits, Price};
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use crate::periods::{Day, Period, PeriodError};

pub use self::build::StatementBuilder;
pub use self::compare::Difference;
pub(crate) use self::csv::safe;

/// Why a statement cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// A sum is too large to be written.
    #[error("the sum of the statement is too large to be written")]
    TooLarge,
    /// A charge lies outside the years that calendars know.
    #[error("record {index} has a charge that is in no day")]
    Day {
        /// The record that settled it.
        index: u64,
        /// Why.
        #[source]
        why: PeriodError,
    },
    /// Its text could not be written.
    #[error("the statement could not be written")]
    Write(#[source] io::Error),
}

/// Whose statement it is, and from which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// Whose.
    pub tenant: TenantId,
    /// Who pays whom.
    pub side: StatementSide,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Which lease.
    pub lease: LeaseId,
    /// Which request it served.
    pub request: RequestId,
    /// What it was for; a lender is not told.
    pub project: Option<Project>,
    /// The model of its GPUs.
    pub model: GpuModel,
    /// The share of GPUs of all its members together.
    pub gpu: GpuMilli,
    /// The first instant of the billed time.
    pub begin: Timestamp,
    /// The first instant behind it.
    pub end: Timestamp,
    /// How much time is billed.
    pub billed: Millis,
    /// What of the lease's whole time is not billed.
    pub excused: Millis,
    /// The price frozen at the grant.
    pub price: Price,
    /// Why the lease ended.
    pub reason: EndReason,
    /// Whether its time was closed when it was settled.
    pub is_correction: bool,
    /// If a rollback turned the charge: whether this takes it back or charges it again.
    pub turn: Option<ChargeStanding>,
    /// The record that settled it.
    pub index: u64,
    /// The amount before rounding.
    pub exact: MicroCredits,
    /// The amount in whole minor units.
    pub amount: MicroCredits,
}

/// What one day adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayTotal {
    /// The day.
    pub day: Day,
    /// Billed time of all leases, at most what can be written.
    pub billed: Millis,
    /// The amount before rounding.
    pub exact: MicroCredits,
    /// The amount in whole minor units.
    pub amount: MicroCredits,
}

/// A finished statement.
#[derive(Debug, Clone)]
pub struct Statement {
    party: Party,
    period: Period,
    currency: Currency,
    lines: Vec<Line>,
    days: Vec<DayTotal>,
    exact: MicroCredits,
    total: MicroCredits,
    fee: MicroCredits,
}

impl Statement {
    /// Its lines, in the order of their begin, then of their leases.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The period, with its time zone.
    #[must_use]
    pub const fn period(&self) -> &Period {
        &self.period
    }

    /// The same by days.
    #[must_use]
    pub fn days(&self) -> &[DayTotal] {
        &self.days
    }

    /// The sum in whole minor units.
    #[must_use]
    pub const fn total(&self) -> MicroCredits {
        self.total
    }

    /// The sum before rounding.
    #[must_use]
    pub const fn exact(&self) -> MicroCredits {
        self.exact
    }

    /// SHA-256 of its CSV form.
    ///
    /// # Errors
    /// [`StatementError::Write`]; not seen, since nothing is written anywhere.
    pub fn sha256(&self) -> Result<[u8; 32], StatementError> {
        let mut hasher = Hasher(Sha256::new());
        self.write_csv(&mut hasher)?;
        Ok(hasher.0.finalize().into())
    }

    /// The statement as the API shows it, made from the first `records` records of a ledger in which
    /// everything before `closed_until` is closed.
    ///
    /// # Errors
    /// [`StatementError::Write`], as [`Statement::sha256`].
    pub fn view(
        &self,
        records: u64,
        closed_until: Timestamp,
    ) -> Result<StatementView, StatementError> {
        let money = |amount| Money::new(amount, self.currency);
        let line = |line: &Line| StatementLineView {
            lease: line.lease,
            request: line.request,
            project: line.project,
            model: line.model,
            gpu: line.gpu.get(),
            begin: Time(line.begin),
            end: Time(line.end),
            billed_ms: line.billed.get(),
            excused_ms: line.excused.get(),
            price: money(line.price.per_gpu_hour),
            price_version: line.price.version,
            reason: line.reason,
            correction: line.is_correction,
            turn: line.turn,
            record: line.index,
            exact: money(line.exact),
            amount: money(line.amount),
        };
        let day = |day: &DayTotal| StatementDayView {
            day: day.day.to_string(),
            billed_ms: day.billed.get(),
            exact: money(day.exact),
            amount: money(day.amount),
        };
        let sha256 = self.sha256()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(StatementView {
            tenant: self.party.tenant,
            side: self.party.side,
            from: Time(self.period.from()),
            until: Time(self.period.until()),
            zone: self.period.zone_name().to_owned(),
            closed: closed_until >= self.period.until(),
            records,
            total: money(self.total),
            exact: money(self.exact),
            fee: match self.party.side {
                StatementSide::Borrower => None,
                StatementSide::Lender => Some(money(self.fee)),
            },
            sha256,
            lines: self.lines.iter().map(line).collect(),
            days: self.days.iter().map(day).collect(),
        })
    }
}

/// Hashes what is written to it.
struct Hasher(Sha256);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
