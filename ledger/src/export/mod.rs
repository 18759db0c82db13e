//! Exports: charges as tables for spreadsheets, data tools and FinOps tools.
//!
//! Two layouts ([`Layout`]), two formats ([`Format`]). Rows are made and written one after the other:
//! what is held in memory does not grow with the ledger. Periods are months of UTC, half-open. Numbers
//! are plain decimals; times are UTC. [`check`] judges a FOCUS file, ours or another's.

mod charges;
pub mod check;
mod focus;
mod parquet;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::io;

use crate::periods::PeriodError;

pub use self::focus::{FOCUS_VERSION, MANDATORY, Names};
pub use self::write::Writer;

/// What the rows of an export are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One row for each lease and month, with all that the ledger knows of its money.
    Charges,
    /// The FinOps Open Cost and Usage Specification, for those who pay.
    Focus,
}

/// How they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text with commas (RFC 4180), safe to open in a spreadsheet.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// Why an export broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A charge lies in no month.
    #[error("record {index} has a charge that is in no month")]
    Month {
        /// The record that settled it.
        index: u64,
        /// Why.
        #[source]
        why: PeriodError,
    },
    /// It could not be written.
    #[error("the export could not be written")]
    Write(#[source] io::Error),
    /// The Parquet writer failed.
    #[error("the Parquet file could not be written")]
    Parquet(#[source] ::parquet::errors::ParquetError),
    /// Too much for one row: an amount or a time that a column cannot hold.
    #[error("record {index} has a number that is too large for a column")]
    TooLarge {
        /// The record that settled it.
        index: u64,
    },
}
