//! A statement as a table that spreadsheets read, and that has one form only.

use std::borrow::Cow;
use std::io;

use sublet_protocol::api::Time;
use sublet_protocol::rollbacks::ChargeStanding;

use super::{Line, Statement, StatementError};
use crate::rounding::minor_text;

const HEAD: [&str; 17] = [
    "kind",
    "lease",
    "request",
    "project",
    "model",
    "gpu_milli",
    "begin_utc",
    "end_utc",
    "begin_local",
    "end_local",
    "billed_ms",
    "excused_ms",
    "price_per_gpu_hour",
    "reason",
    "exact",
    "amount",
    "currency",
];

impl Statement {
    /// Writes it as CSV: a head, a line for each lease, one for each day, and the total. Rows end with
    /// CR LF (RFC 4180). The bytes depend on nothing but the statement.
    ///
    /// # Errors
    /// [`StatementError::Write`].
    pub fn write_csv(&self, to: impl io::Write) -> Result<(), StatementError> {
        let builder = &mut csv::WriterBuilder::new();
        let mut table = builder.terminator(csv::Terminator::CRLF).from_writer(to);
        self.rows(&mut table).map_err(|error| StatementError::Write(error.into()))?;
        table.flush().map_err(StatementError::Write)
    }

    fn rows(&self, table: &mut csv::Writer<impl io::Write>) -> Result<(), csv::Error> {
        table.write_record(HEAD)?;
        for line in &self.lines {
            table.write_record(self.line(line).iter().map(|cell| safe(cell).into_owned()))?;
        }
        let currency = self.currency.to_string();
        for day in &self.days {
            let mut row = [const { String::new() }; HEAD.len()];
            row[0] = "day".to_owned();
            row[8] = day.day.to_string();
            row[10] = day.billed.to_string();
            row[14] = day.exact.to_string();
            row[15] = minor_text(day.amount, self.currency);
            row[16].clone_from(&currency);
            table.write_record(&row)?;
        }
        let mut row = [const { String::new() }; HEAD.len()];
        row[0] = "total".to_owned();
        row[1] = self.party.tenant.to_string();
        row[2] = self.party.side.code().to_owned();
        row[6] = Time(self.period.from()).to_string();
        row[7] = Time(self.period.until()).to_string();
        row[8] = self.period.local(self.period.from());
        row[9] = self.period.local(self.period.until());
        row[14] = self.exact.to_string();
        row[15] = minor_text(self.total, self.currency);
        row[16] = currency;
        table.write_record(&row)
    }

    fn line(&self, line: &Line) -> [String; HEAD.len()] {
        let kind = match (line.turn, line.is_correction) {
            (Some(ChargeStanding::Reversed), _) => "reversal",
            (Some(ChargeStanding::Charged), _) => "charged again",
            (None, true) => "correction",
            (None, false) => "lease",
        };
        [
            kind.to_owned(),
            line.lease.to_string(),
            line.request.to_string(),
            line.project.map_or_else(String::new, |project| project.to_string()),
            line.model.to_string(),
            line.gpu.to_string(),
            Time(line.begin).to_string(),
            Time(line.end).to_string(),
            self.period.local(line.begin),
            self.period.local(line.end),
            line.billed.to_string(),
            line.excused.to_string(),
            line.price.per_gpu_hour.to_string(),
            line.reason.code().to_owned(),
            line.exact.to_string(),
            minor_text(line.amount, self.currency),
            self.currency.to_string(),
        ]
    }
}

/// A text that no spreadsheet takes for a formula: one that begins with `=`, `+`, `-`, `@`, a tab or
/// a line break gets an apostrophe in front (OWASP, "CSV Injection"). Numbers are no such texts:
/// they are written as they are.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    let is_number = text.strip_prefix('-').is_some_and(|digits| {
        digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) && !is_number {
        return Cow::Owned(format!("'{text}"));
    }
    Cow::Borrowed(text)
}
