//! Rows of a CSV file with a known header, and cells that name themselves when they are wrong.
//!
//! None of the formats quotes cells; a quoted one is taken without its quotes, and a comma inside quotes
//! is reported as a wrong number of columns.

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::source::{LINE_BYTES_MAX, Limit, Packing, Source, TEXT_BYTES_MAX, open};
use super::{Error, Excerpt, Problem, VcName};

/// The columns of a format, in order, as its header spells them.
pub(crate) type Columns = &'static [&'static str];

/// A CSV file whose header has been checked.
pub(crate) struct Table {
    reader: Reader<Box<dyn Read>>,
    file: PathBuf,
    packing: Packing,
    columns: Columns,
    record: ByteRecord,
    rows: u64,
}

impl Table {
    /// Opens `file` and finds which of `formats` its header is.
    pub(crate) fn open(file: &Path, formats: &[Columns]) -> Result<Self, Error> {
        let Source { file, packing, text } = open(file)?;
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .quoting(false)
            .buffer_capacity(1 << 16)
            .from_reader(text);
        let columns = formats[0];
        let mut table = Self { reader, file, packing, columns, record: ByteRecord::new(), rows: 0 };
        if !table.read_record()? {
            return Err(Error::Empty { file: table.file });
        }
        let found: Vec<_> =
            table.record.iter().map(|cell| String::from_utf8_lossy(unquoted(cell))).collect();
        match formats.iter().find(|columns| found == **columns) {
            Some(columns) => table.columns = columns,
            None => {
                return Err(Error::Header {
                    found: Excerpt::new(&found.join(",")),
                    expected: formats
                        .iter()
                        .map(|format| format.join(","))
                        .collect::<Vec<_>>()
                        .join(" or "),
                    file: table.file,
                });
            }
        }
        Ok(table)
    }

    /// The columns the header named.
    pub(crate) fn columns(&self) -> Columns {
        self.columns
    }

    /// The next row, `None` at the end. A table without any row is [`Error::NoRows`].
    pub(crate) fn next_row(&mut self) -> Result<Option<Row<'_>>, Error> {
        if !self.read_record()? {
            return if self.rows == 0 {
                Err(Error::NoRows { file: self.file.clone() })
            } else {
                Ok(None)
            };
        }
        self.rows += 1;
        let row = Row { file: &self.file, columns: self.columns, record: &self.record };
        if self.record.len() != self.columns.len() {
            return Err(Error::Columns {
                file: self.file.clone(),
                line: row.line(),
                found: self.record.len(),
                expected: self.columns.len(),
            });
        }
        Ok(Some(row))
    }

    fn read_record(&mut self) -> Result<bool, Error> {
        self.reader.read_byte_record(&mut self.record).map_err(|error| {
            let file = self.file.clone();
            let line = self.reader.position().line().saturating_sub(1);
            match error.into_kind() {
                ErrorKind::Io(source) => read_error(file, self.packing, line, source),
                // With flexible rows of bytes and no deserialisation nothing but reading can fail.
                other => unreachable!("csv reader: {other:?}"),
            }
        })
    }
}

fn read_error(file: PathBuf, packing: Packing, line: u64, source: std::io::Error) -> Error {
    let limit = source.get_ref().and_then(|inner| inner.downcast_ref::<Limit>()).copied();
    match (limit, packing) {
        (Some(Limit::Line), _) => {
            Error::LineTooLong { file, line: line + 1, limit: LINE_BYTES_MAX }
        }
        (Some(Limit::Text), _) => Error::TooLong { file, limit: TEXT_BYTES_MAX },
        (None, Packing::Plain) => Error::Read { file, line, source },
        (None, Packing::Xz) => Error::Compressed { file, line, source },
    }
}

/// A cell without surrounding blanks and one pair of quotes.
fn unquoted(cell: &[u8]) -> &[u8] {
    let cell = cell.trim_ascii();
    cell.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(cell)
}

/// One row. Cells are addressed by their position in the format's columns.
pub(crate) struct Row<'a> {
    file: &'a Path,
    columns: Columns,
    record: &'a ByteRecord,
}

impl Row<'_> {
    /// The line in the file, counting the header as 1.
    pub(crate) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// The cell as text.
    pub(crate) fn text(&self, column: usize) -> Result<&str, Error> {
        let cell = unquoted(&self.record[column]);
        str::from_utf8(cell).map_err(|_| self.wrong(column, Problem::NotText))
    }

    /// A whole number within `range`.
    pub(crate) fn whole(&self, column: usize, range: RangeInclusive<u64>) -> Result<u64, Error> {
        whole(self.text(column)?, range).map_err(|problem| self.wrong(column, problem))
    }

    /// As [`Row::whole`], for columns whose bound fits 32 bits.
    pub(crate) fn whole_u32(
        &self,
        column: usize,
        range: RangeInclusive<u32>,
    ) -> Result<u32, Error> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        let value = self.whole(column, range.clone())?;
        u32::try_from(value).map_err(|_| self.wrong(column, out_of(&range)))
    }

    /// A decimal number of units within `range`, a fraction rounded up to the next whole unit.
    pub(crate) fn rounded_up(
        &self,
        column: usize,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Error> {
        let rounded = decimal(self.text(column)?, &range).and_then(|(units, thousandths)| {
            let value = units.saturating_add(u64::from(thousandths > 0));
            if range.contains(&value) { Ok(value) } else { Err(out_of(&range)) }
        });
        rounded.map_err(|problem| self.wrong(column, problem))
    }

    /// A decimal fraction of 0 to 1 as thousandths, further digits cut off.
    pub(crate) fn permille(&self, column: usize) -> Result<u32, Error> {
        let range = 0..=1;
        match decimal(self.text(column)?, &range) {
            Ok((0, thousandths)) => Ok(thousandths),
            Ok((1, 0)) => Ok(1_000),
            Ok(_) => Err(self.wrong(column, out_of(&range))),
            Err(problem) => Err(self.wrong(column, problem)),
        }
    }

    /// A virtual cluster's name.
    pub(crate) fn name(&self, column: usize) -> Result<VcName, Error> {
        VcName::new(self.text(column)?).ok_or_else(|| self.wrong(column, Problem::NotName))
    }

    /// The error that says `problem` of the cell.
    pub(crate) fn wrong(&self, column: usize, problem: Problem) -> Error {
        Error::Value {
            file: self.file.to_owned(),
            line: self.line(),
            column: self.columns[column],
            found: Excerpt::new(&String::from_utf8_lossy(&self.record[column])),
            problem,
        }
    }
}

fn out_of(range: &RangeInclusive<u64>) -> Problem {
    Problem::OutOfRange { least: *range.start(), most: *range.end() }
}

fn whole(text: &str, range: RangeInclusive<u64>) -> Result<u64, Problem> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::NotWhole);
    }
    if digits.len() < text.len() {
        return Err(Problem::Negative { least: *range.start(), most: *range.end() });
    }
    match digits.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(out_of(&range)),
    }
}

/// Whole units and thousandths of a plain decimal number (no exponent); digits past the third only tell
/// that something is left, as one more thousandth if the first three were 0.
fn decimal(text: &str, range: &RangeInclusive<u64>) -> Result<(u64, u32), Problem> {
    let (units, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::NotNumber);
    }
    let units = match whole(units, 0..=u64::MAX) {
        Ok(units) => units,
        Err(Problem::NotWhole) => return Err(Problem::NotNumber),
        Err(Problem::Negative { .. }) => {
            return Err(Problem::Negative { least: *range.start(), most: *range.end() });
        }
        Err(_) => return Err(out_of(range)),
    };
    let mut digits = fraction.bytes().chain([b'0', b'0', b'0']).map(|byte| u32::from(byte - b'0'));
    let first_three = digits.by_ref().take(3).fold(0, |sum, digit| sum * 10 + digit);
    let rest_is_zero = digits.all(|digit| digit == 0);
    Ok((units, if first_three == 0 && !rest_is_zero { 1 } else { first_three }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_without_floats() {
        let range = 0..=u64::MAX;
        assert_eq!(decimal("2240194.0", &range), Ok((2_240_194, 0)));
        assert_eq!(decimal("0.922", &range), Ok((0, 922)));
        assert_eq!(decimal("7", &range), Ok((7, 0)));
        assert_eq!(decimal("7.0004", &range), Ok((7, 1)));
        assert_eq!(decimal("7.5", &range), Ok((7, 500)));
        for bad in ["", ".", "7.", ".5", "1e3", "nan", "inf", "7.5.0", "+7", "0x7", " "] {
            assert_eq!(decimal(bad, &range), Err(Problem::NotNumber), "{bad:?}");
        }
        assert_eq!(decimal("-3.0", &(1..=9)), Err(Problem::Negative { least: 1, most: 9 }));
        let huge = "9".repeat(30);
        assert!(matches!(decimal(&huge, &range), Err(Problem::OutOfRange { .. })));
    }
}
