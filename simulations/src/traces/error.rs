//! What can be wrong with a trace, said so that its owner can repair it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// At most this many characters of a bad cell are repeated in a message.
const EXCERPT_CHARACTERS_MAX: usize = 60;

/// Why a trace was not read. `file` is the path as it was given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither the compressed nor the plain file is in the folder.
    #[error(
        "no {stem}.csv.xz and no {stem}.csv in {}: give the folder that holds it (docs/simulation.md \
         says where traces come from; `sublet-sim generate` makes one)", folder.display()
    )]
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// The file's name without its ending.
        stem: &'static str,
    },
    /// The folder itself is missing or is a file.
    #[error("{} is not a folder: give the folder that holds the trace's files", folder.display())]
    NotAFolder {
        /// The path that was given.
        folder: PathBuf,
    },
    /// The file exists and cannot be opened.
    #[error("cannot open {}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Reading failed in the middle of a plain file.
    #[error("cannot read {} after line {line}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The last whole line that was read.
        line: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The xz stream is damaged, or ends before its end mark.
    #[error("{} is damaged or cut short after line {line}: fetch it again", file.display())]
    Compressed {
        /// The file.
        file: PathBuf,
        /// The last whole line that was read.
        line: u64,
        /// What the decoder says.
        source: io::Error,
    },
    /// The file is packed with something else than xz.
    #[error("{} is packed with {kind}: unpack it first, only xz and plain text are read", file.display())]
    OtherCompression {
        /// The file.
        file: PathBuf,
        /// The format's name.
        kind: &'static str,
    },
    /// The file's name ends in `.xz`, its bytes do not begin as xz does.
    #[error("{} is not an xz file in spite of its name: rename it or fetch it again", file.display())]
    NotXz {
        /// The file.
        file: PathBuf,
    },
    /// The file has no bytes at all.
    #[error("{} is empty: fetch it again", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// There is a header and nothing below it.
    #[error("{} has a header and no rows", file.display())]
    NoRows {
        /// The file.
        file: PathBuf,
    },
    /// The first line is not the format's header.
    #[error("{}:1: the header is {found:?}, expected {expected:?}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// The line that was found.
        found: Excerpt,
        /// The columns the format has.
        expected: String,
    },
    /// A row with too few or too many columns.
    #[error("{}:{line}: the row has {found} columns, expected {expected}", file.display())]
    Columns {
        /// The file.
        file: PathBuf,
        /// The line, counting the header as 1.
        line: u64,
        /// Columns in this row.
        found: usize,
        /// Columns in the header.
        expected: usize,
    },
    /// A line longer than any row can be.
    #[error("{}:{line}: the line is longer than {limit} bytes", file.display())]
    LineTooLong {
        /// The file.
        file: PathBuf,
        /// The line, counting the header as 1.
        line: u64,
        /// The longest line allowed, bytes.
        limit: u64,
    },
    /// More text than any of these traces has.
    #[error("{} unpacks to more than {limit} bytes: it is not one of these traces", file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
        /// The most that is read, bytes.
        limit: u64,
    },
    /// A cell that cannot be what its column says.
    #[error("{}:{line}: column {column}: {found:?} {problem}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The line, counting the header as 1.
        line: u64,
        /// The column's name in the header.
        column: &'static str,
        /// The cell, shortened.
        found: Excerpt,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What is wrong with one cell; reads on after the cell itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not digits only.
    #[error("is not a whole number")]
    NotWhole,
    /// Not a decimal number.
    #[error("is not a number")]
    NotNumber,
    /// A number below zero.
    #[error("is negative, expected {least} to {most}")]
    Negative {
        /// The least value allowed.
        least: u64,
        /// The greatest value allowed.
        most: u64,
    },
    /// A number outside what the column can hold.
    #[error("is outside {least} to {most}")]
    OutOfRange {
        /// The least value allowed.
        least: u64,
        /// The greatest value allowed.
        most: u64,
    },
    /// Not a date and time.
    #[error("is not a time like {example}")]
    NotTime {
        /// A time as the format writes it.
        example: &'static str,
    },
    /// A local time that was skipped when the clocks were set forward.
    #[error("does not exist in {zone}, the clocks were set forward")]
    SkippedTime {
        /// The zone's name.
        zone: &'static str,
    },
    /// Not usable as a name of a tenant.
    #[error("is not a name of 1 to 32 letters, digits and hyphens")]
    NotName,
    /// Not one of a closed list.
    #[error("is not one of {allowed}")]
    NotOneOf {
        /// The list, as text.
        allowed: &'static str,
    },
    /// A cell that contradicts others of its row.
    #[error("contradicts its row: {rule} is {expected}")]
    Contradicts {
        /// The sum or product that should have been found.
        rule: &'static str,
        /// Its value.
        expected: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("is not UTF-8 text")]
    NotText,
    /// A key that has already been seen.
    #[error("is listed twice")]
    Twice,
}

/// A cell or line, shortened so that a message stays one line.
#[derive(Clone, PartialEq, Eq)]
pub struct Excerpt(String);

impl Excerpt {
    /// The first 60 characters of `text`, with an ellipsis if there were more.
    pub fn new(text: &str) -> Self {
        let mut short: String = text.chars().take(EXCERPT_CHARACTERS_MAX).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        Self(short)
    }
}

/// Quoted and escaped: bad cells may hold control characters.
impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
