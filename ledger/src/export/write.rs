//! Writes charges, one after the other, in a layout and a format.

use std::io;

use sublet_protocol::api::Time;
use sublet_protocol::money::Currency;
use sublet_protocol::units::Timestamp;

use super::parquet::ParquetRows;
use super::table::{Column, Value, decimal};
use super::{ExportError, Format, Layout, Names, charges, focus};
use crate::charges::{Charge, Part};
use crate::periods::Period;
use crate::statement::safe;

/// Writes an export.
pub struct Writer<W: io::Write + Send> {
    layout: Layout,
    currency: Currency,
    names: Names,
    sink: Sink<W>,
    rows: u64,
}

enum Sink<W: io::Write + Send> {
    Csv(Box<csv::Writer<W>>),
    Parquet(Box<ParquetRows<W>>),
}

impl<W: io::Write + Send> Writer<W> {
    /// Begins an export.
    ///
    /// # Errors
    /// [`ExportError::Write`], [`ExportError::Parquet`].
    pub fn new(
        to: W,
        (layout, format): (Layout, Format),
        currency: Currency,
        names: Names,
    ) -> Result<Self, ExportError> {
        let columns: &'static [Column] = match layout {
            Layout::Charges => &charges::COLUMNS,
            Layout::Focus => &focus::COLUMNS,
        };
        let sink = match format {
            Format::Csv => {
                let builder = &mut csv::WriterBuilder::new();
                let mut table = builder.terminator(csv::Terminator::CRLF).from_writer(to);
                let head = columns.iter().map(|column| column.name);
                table.write_record(head).map_err(|error| ExportError::Write(error.into()))?;
                Sink::Csv(Box::new(table))
            }
            Format::Parquet => Sink::Parquet(Box::new(ParquetRows::new(to, columns)?)),
        };
        Ok(Self { layout, currency, names, sink, rows: 0 })
    }

    /// Writes the rows of a charge that count in `[from, until)`, one for each month of UTC.
    ///
    /// # Errors
    /// As the variants of [`ExportError`] say.
    pub fn charge(
        &mut self,
        charge: &Charge,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<(), ExportError> {
        // What is booked last is the end, or the first instant that was open; nothing is before the begin.
        let last = charge.end().max(charge.closed_until).min(until);
        let mut at = charge.begin().max(from);
        loop {
            let month = Period::utc_month_of(at);
            let month = month.map_err(|why| ExportError::Month { index: charge.index, why })?;
            for part in charge.parts(month.from().max(from), month.until().min(until)) {
                self.part(charge, &part, &month)?;
            }
            at = month.until();
            if at > last || at >= until {
                return Ok(());
            }
        }
    }

    fn part(&mut self, charge: &Charge, part: &Part, month: &Period) -> Result<(), ExportError> {
        let row = match self.layout {
            Layout::Charges => Some(charges::row(charge, part, month, self.currency.as_str())?),
            Layout::Focus => focus::row(charge, part, month, self.currency, &self.names)?,
        };
        let Some(row) = row else { return Ok(()) };
        self.rows = self.rows.saturating_add(1);
        match &mut self.sink {
            Sink::Csv(table) => {
                let cells = row.iter().map(|value| cell(value, self.layout));
                table.write_record(cells).map_err(|error| ExportError::Write(error.into()))
            }
            Sink::Parquet(rows) => rows.push(row),
        }
    }

    /// Ends the export; how many rows it has.
    ///
    /// # Errors
    /// [`ExportError::Write`], [`ExportError::Parquet`].
    pub fn finish(self) -> Result<u64, ExportError> {
        match self.sink {
            Sink::Csv(mut table) => table.flush().map_err(ExportError::Write)?,
            Sink::Parquet(rows) => rows.finish()?,
        }
        Ok(self.rows)
    }
}

/// A value as a cell: nothing for null. FOCUS wants seconds, else times have milliseconds.
fn cell(value: &Value, layout: Layout) -> String {
    match value {
        Value::Null => String::new(),
        Value::Text(text) => safe(text).into_owned(),
        Value::Decimal(millionths, places) => decimal(*millionths, *places),
        Value::Time(instant) => {
            let text = Time(*instant).to_string();
            match layout {
                Layout::Focus => text.replace(".000Z", "Z"),
                Layout::Charges => text,
            }
        }
        Value::Whole(number) => number.to_string(),
    }
}
