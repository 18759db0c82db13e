//! What commands print: tables for people, JSON and CSV for programs.
//!
//! JSON is what the API said, unchanged; a table shows a choice of it. Ids are never cut.

mod table;

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::{Exit, Failure, Outcome};

use table::Style;
pub(crate) use table::{Column, Table};

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    Table,
    /// All columns.
    Wide,
    /// What the API said.
    Json,
    /// All columns, comma-separated, with a header line.
    Csv,
}

/// Whether the user wants colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Never.
    Never,
}

/// Where and how to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    /// The form.
    pub(crate) format: Format,
    has_color: bool,
}

impl Printer {
    /// Colours only a terminal, and not if the user wants none.
    pub(crate) fn new(format: Format, color: Color) -> Printer {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_wanted = color == Color::Auto && !no_color;
        Printer { format, has_color: is_wanted && io::stdout().is_terminal() }
    }

    fn style(self) -> Style {
        Style { is_wide: self.format == Format::Wide, has_color: self.has_color }
    }

    /// Whether programs read it, so that nothing but the data may be printed.
    pub(crate) fn is_data(self) -> bool {
        matches!(self.format, Format::Json | Format::Csv)
    }

    /// Prints a list: `items` as the API gave them, `table` made of them.
    pub(crate) fn list<T: Serialize>(self, items: &T, table: &Table) -> Outcome<()> {
        match self.format {
            Format::Json => self.json(items),
            Format::Csv => print(&table.csv()?),
            Format::Table | Format::Wide => print(&table.text(self.style())),
        }
    }

    /// Prints one thing: `item` as the API gave it, or its fields, one a line.
    pub(crate) fn item<T: Serialize>(self, item: &T, fields: &[(&str, String)]) -> Outcome<()> {
        match self.format {
            Format::Json => self.json(item),
            Format::Csv => {
                let header = fields.iter().map(|(name, _)| (*name).to_owned());
                let row = fields.iter().map(|(_, value)| value.clone());
                print(&table::csv_lines([header.collect(), row.collect()])?)
            }
            Format::Table | Format::Wide => print(&table::fields_text(fields, self.style())),
        }
    }

    /// Prints one line of CSV, of a list that is printed line by line.
    pub(crate) fn csv(self, cells: &[String]) -> Outcome<()> {
        print(&table::csv_lines([cells.to_vec()])?)
    }

    /// Prints JSON, indented for a terminal, on one line else.
    pub(crate) fn json<T: Serialize>(self, value: &T) -> Outcome<()> {
        let text = match io::stdout().is_terminal() {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        let text = text.map_err(|error| {
            Failure::new(Exit::Failed, "cannot write the answer as JSON").because(error)
        })?;
        print(&format!("{text}\n"))
    }
}

/// Writes to standard output and flushes, so that a reader that has gone is noticed here.
pub(crate) fn print(text: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a line to standard error. Nobody may be reading there; that changes nothing.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
