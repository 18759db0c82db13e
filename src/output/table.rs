//! Tables as text and as CSV.

use crate::failure::{Exit, Failure, Outcome};

/// How a text for people looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// With the columns that are for wide tables.
    pub(super) is_wide: bool,
    /// With bold headings.
    pub(super) has_color: bool,
}

impl Style {
    fn heading(self, text: &str) -> String {
        if self.has_color { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    is_number: bool,
    is_wide_only: bool,
}

impl Column {
    /// A column of text, set to the left.
    pub(crate) const fn text(name: &'static str) -> Column {
        Column { name, is_number: false, is_wide_only: false }
    }

    /// A column of numbers, set to the right.
    pub(crate) const fn number(name: &'static str) -> Column {
        Column { name, is_number: true, is_wide_only: false }
    }

    /// Shown only in wide tables and in CSV.
    pub(crate) const fn wide(self) -> Column {
        Column { is_wide_only: true, ..self }
    }
}

/// Rows under columns. Each row has one cell per column.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    empty: &'static str,
    footer: Option<String>,
}

impl Table {
    /// An empty table; `empty` is what a person reads if it stays so.
    pub(crate) fn new(columns: &[Column], empty: &'static str) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new(), empty, footer: None }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "one cell per column");
        self.rows.push(cells.into());
    }

    /// The line under the table.
    pub(crate) fn footer(&mut self, text: String) {
        self.footer = Some(text);
    }

    /// For people. Columns are as wide as their widest cell; none is cut.
    pub(super) fn text(&self, style: Style) -> String {
        if self.rows.is_empty() {
            let footer = self.footer.iter().map(|line| format!("\n{line}"));
            return format!("{}{}\n", self.empty, footer.collect::<String>());
        }
        let shown = |index: &usize| style.is_wide || !self.columns[*index].is_wide_only;
        let shown: Vec<usize> = (0..self.columns.len()).filter(shown).collect();
        let width = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].chars().count());
            cells.chain([self.columns[index].name.len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = shown.iter().map(|index| width(*index)).collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let mut out = String::new();
            for (index, width) in shown.iter().zip(&widths) {
                let text = cell(*index);
                let gap = " ".repeat(width.saturating_sub(text.chars().count()));
                out.push_str(if out.is_empty() { "" } else { "  " });
                match self.columns[*index].is_number {
                    true => out.extend([gap, text]),
                    false => out.extend([text, gap]),
                }
            }
            out.trim_end().to_owned()
        };
        let header = line(&|index| self.columns[index].name.to_owned());
        let mut out = format!("{}\n", style.heading(&header));
        for row in &self.rows {
            out.push_str(&line(&|index| row[index].clone()));
            out.push('\n');
        }
        if let Some(footer) = &self.footer {
            out.push_str(footer);
            out.push('\n');
        }
        out
    }

    /// For programs: every column, no footer.
    pub(super) fn csv(&self) -> Outcome<String> {
        let header = self.columns.iter().map(|column| column.name.to_lowercase()).collect();
        csv_lines([header].into_iter().chain(self.rows.iter().cloned()))
    }
}

/// Lines of CSV. A cell that a spreadsheet would take for a formula gets a `'` in front.
pub(super) fn csv_lines(rows: impl IntoIterator<Item = Vec<String>>) -> Outcome<String> {
    let failure = |error: String| Failure::new(Exit::Failed, "cannot write CSV").because(error);
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        let row = row.iter().map(|cell| harmless(cell));
        writer.write_record(row).map_err(|error| failure(error.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|error| failure(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failure(error.to_string()))
}

fn harmless(cell: &str) -> String {
    let is_number = cell.parse::<f64>().is_ok();
    match cell.chars().next() {
        Some('=' | '+' | '-' | '@' | '\t' | '\r') if !is_number && cell.len() > 1 => {
            format!("'{cell}")
        }
        _ => cell.to_owned(),
    }
}

/// Names and values, one pair a line; further lines of a value stand under its first.
pub(super) fn fields_text(fields: &[(&str, String)], style: Style) -> String {
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in fields {
        let mut lines = value.lines();
        let gap = " ".repeat(width.saturating_sub(name.chars().count()));
        let name = style.heading(name);
        out.push_str(format!("{name}{gap}  {}", lines.next().unwrap_or("-")).trim_end());
        out.push('\n');
        for line in lines {
            out.push_str(&format!("{}  {line}\n", " ".repeat(width)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { is_wide: false, has_color: false };

    fn table() -> Table {
        let columns = [Column::text("NAME"), Column::number("GPU"), Column::text("NOTE").wide()];
        let mut table = Table::new(&columns, "nothing");
        table.row(["a".into(), "10".into(), "=1+1".into()]);
        table.row(["long".into(), "1".into(), "x, y".into()]);
        table
    }

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        assert_eq!(table().text(PLAIN), "NAME  GPU\na      10\nlong    1\n");
    }

    #[test]
    fn csv_has_every_column_and_no_formula() {
        assert_eq!(table().csv().unwrap(), "name,gpu,note\na,10,'=1+1\nlong,1,\"x, y\"\n");
    }

    #[test]
    fn an_empty_table_says_so_but_an_empty_csv_keeps_its_header() {
        let table = Table::new(&[Column::text("NAME")], "no leases");
        assert_eq!(table.text(PLAIN), "no leases\n");
        assert_eq!(table.csv().unwrap(), "name\n");
    }

    #[test]
    fn further_lines_of_a_field_stand_under_the_first() {
        let fields = [("id", "l-1".to_owned()), ("why", "one\ntwo".to_owned())];
        assert_eq!(fields_text(&fields, PLAIN), "id   l-1\nwhy  one\n     two\n");
    }
}
