//! The text in which fitted shapes are kept: `subject,shape,key,value`, all keys and values integers.

use std::collections::BTreeMap;
use std::fmt;

use sublet_protocol::units::Permille;

use super::shape::{Quantiles, ShapeError, Weights};

const HEADER: &str = "subject,shape,key,value";

/// One number of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose shape: a tenant, or `-` where it is everyone's.
    pub subject: String,
    /// Which shape.
    pub shape: String,
    /// Where in the shape: a quantile in thousandths, an hour, a number of GPUs.
    pub key: u64,
    /// The number.
    pub value: u64,
}

/// A fitted table with the comment that says where it is from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// Lines of the comment at the top.
    pub origin: Vec<String>,
    entries: Vec<Entry>,
}

/// Why a text is not such a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The header is missing or another one.
    #[error("line {line}: expected the header {HEADER}")]
    Header {
        /// The line.
        line: usize,
    },
    /// Not four cells, or a key or value that is no whole number.
    #[error("line {line}: expected {HEADER} with whole numbers for key and value")]
    Entry {
        /// The line.
        line: usize,
    },
    /// A shape that the reader needs is not there.
    #[error("{subject} has no shape {shape}")]
    Absent {
        /// Whose.
        subject: String,
        /// Which.
        shape: &'static str,
    },
    /// The numbers are there and make no shape.
    #[error("{subject}, {shape}")]
    Shape {
        /// Whose.
        subject: String,
        /// Which.
        shape: &'static str,
        /// What is wrong.
        source: ShapeError,
    },
}

impl Table {
    /// An empty table with this comment.
    pub(crate) fn new(origin: &[&str]) -> Self {
        let origin = origin.iter().map(|line| (*line).to_owned()).collect();
        Self { origin, entries: Vec::new() }
    }

    /// Reads what [`Table`]'s `Display` writes.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line)).peekable();
        let mut table = Table::default();
        while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with('#')) {
            table.origin.push(line.trim_start_matches('#').trim().to_owned());
        }
        match lines.next() {
            Some((_, HEADER)) => {}
            other => return Err(TableError::Header { line: other.map_or(1, |(line, _)| line) }),
        }
        for (line, text) in lines {
            let cells: Vec<&str> = text.split(',').collect();
            let [subject, shape, key, value] = cells[..] else {
                return Err(TableError::Entry { line });
            };
            let number = |cell: &str| cell.parse::<u64>().map_err(|_| TableError::Entry { line });
            table.push(subject, shape, number(key)?, number(value)?);
        }
        Ok(table)
    }

    /// Adds one number.
    pub(crate) fn push(&mut self, subject: &str, shape: &str, key: u64, value: u64) {
        let (subject, shape) = (subject.to_owned(), shape.to_owned());
        self.entries.push(Entry { subject, shape, key, value });
    }

    /// Adds all points of `quantiles`.
    pub(crate) fn push_quantiles(&mut self, subject: &str, shape: &str, quantiles: &Quantiles) {
        for (position, value) in quantiles.points() {
            self.push(subject, shape, u64::from(*position), *value);
        }
    }

    /// Adds the counts of `counts`.
    pub(crate) fn push_counts(&mut self, subject: &str, shape: &str, counts: &BTreeMap<u64, u64>) {
        for (key, count) in counts {
            self.push(subject, shape, *key, *count);
        }
    }

    /// All subjects in the order they first appear.
    pub fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for entry in &self.entries {
            if !subjects.contains(&entry.subject.as_str()) {
                subjects.push(&entry.subject);
            }
        }
        subjects
    }

    /// The numbers of one shape, in the order of the table; empty if it is not there.
    fn numbers(&self, subject: &str, shape: &str) -> Vec<(u64, u64)> {
        let of_shape = |entry: &&Entry| entry.subject == subject && entry.shape == shape;
        self.entries.iter().filter(of_shape).map(|entry| (entry.key, entry.value)).collect()
    }

    /// A share in thousandths: the number of a shape at `key`.
    pub(crate) fn permille(
        &self,
        subject: &str,
        shape: &'static str,
        key: u64,
    ) -> Result<Permille, TableError> {
        let numbers = self.numbers(subject, shape);
        let number = numbers.iter().find(|(at, _)| *at == key);
        let share = number
            .and_then(|(_, value)| u16::try_from(*value).ok())
            .filter(|share| *share <= 1_000);
        share
            .map(Permille::new)
            .ok_or_else(|| TableError::Absent { subject: subject.to_owned(), shape })
    }

    /// A shape that is a set of quantiles.
    pub(crate) fn quantiles(
        &self,
        subject: &str,
        shape: &'static str,
    ) -> Result<Quantiles, TableError> {
        self.quantiles_if_any(subject, shape)?
            .ok_or_else(|| TableError::Absent { subject: subject.to_owned(), shape })
    }

    /// A set of quantiles that may be absent.
    pub(crate) fn quantiles_if_any(
        &self,
        subject: &str,
        shape: &'static str,
    ) -> Result<Option<Quantiles>, TableError> {
        let numbers = self.numbers(subject, shape);
        if numbers.is_empty() {
            return Ok(None);
        }
        let wrong = |source| TableError::Shape { subject: subject.to_owned(), shape, source };
        let points =
            numbers.into_iter().map(|(key, value)| Some((u16::try_from(key).ok()?, value)));
        let points =
            points.collect::<Option<Vec<_>>>().ok_or_else(|| wrong(ShapeError::Quantiles))?;
        Quantiles::new(points).map(Some).map_err(wrong)
    }

    /// A shape that is weights by key.
    pub(crate) fn weights(
        &self,
        subject: &str,
        shape: &'static str,
    ) -> Result<Weights<u64>, TableError> {
        let wrong = |source| TableError::Shape { subject: subject.to_owned(), shape, source };
        Weights::new(self.numbers(subject, shape)).map_err(wrong)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.origin {
            writeln!(f, "# {line}")?;
        }
        writeln!(f, "{HEADER}")?;
        for Entry { subject, shape, key, value } in &self.entries {
            writeln!(f, "{subject},{shape},{key},{value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut table = Table::new(&["from here"]);
        table.push("a", "hour", 3, 4);
        table.push("b", "hour", 5, 6);
        assert_eq!(Table::parse(&table.to_string()), Ok(table));
    }

    #[test]
    fn a_damaged_table_is_refused_with_its_line() {
        assert_eq!(Table::parse("# x\nno\n"), Err(TableError::Header { line: 2 }));
        let entry = Err(TableError::Entry { line: 3 });
        assert_eq!(Table::parse("# x\nsubject,shape,key,value\na,b,1\n"), entry);
        assert_eq!(Table::parse("# x\nsubject,shape,key,value\na,b,1,-2\n"), entry);
    }
}
