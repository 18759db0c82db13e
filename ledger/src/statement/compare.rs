//! Whether a statement that somebody hands over is the one that the ledger says.

use std::collections::BTreeSet;

use sublet_protocol::api::StatementView;

use super::{Statement, StatementError};

/// Where two statements differ first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// A line of the ledger's is not in the other.
    #[error("a line was left out: {0}")]
    Omitted(String),
    /// A line of the other is not in the ledger's.
    #[error("a line was added: {0}")]
    Added(String),
    /// A line is another one, or in another place.
    #[error("a line says other than the ledger: {found}, not {expected}")]
    Changed {
        /// As it stands in the other.
        found: String,
        /// As the ledger has it.
        expected: String,
    },
    /// Whose it is, its period, its sum or another value beside the lines differs.
    #[error("it says {found} as its {what}, the ledger {expected}")]
    Value {
        /// Which value.
        what: &'static str,
        /// As it stands in the other.
        found: String,
        /// As the ledger has it.
        expected: String,
    },
    /// It is neither a statement in CSV nor one in JSON.
    #[error("it is not a statement: give the form of --csv or of --json")]
    NoStatement,
}

impl Statement {
    /// Where `text`, a statement in its CSV or its JSON form, differs from this one; `None` if it says
    /// the same. Of a JSON form the number of records and whether the period is closed are not
    /// compared: they say when it was made.
    ///
    /// # Errors
    /// [`StatementError::Write`]; not seen, since nothing is written anywhere.
    pub fn difference(&self, text: &str) -> Result<Option<Difference>, StatementError> {
        if text.trim_start().starts_with('{') {
            return match serde_json::from_str::<StatementView>(text) {
                Ok(found) => self.difference_to(&found),
                Err(_) => Ok(Some(Difference::NoStatement)),
            };
        }
        let mut own = Vec::new();
        self.write_csv(&mut own)?;
        let own = String::from_utf8_lossy(&own).into_owned();
        if own == text {
            return Ok(None);
        }
        let [expected, found] = [own.as_str(), text].map(|text| text.lines().collect::<Vec<_>>());
        if found.first() != expected.first() {
            return Ok(Some(Difference::NoStatement));
        }
        // Rows that are alike and other bytes: line breaks.
        let all = || Difference::Value {
            what: "line breaks",
            found: "others".to_owned(),
            expected: "CR LF".to_owned(),
        };
        Ok(Some(first(&expected, &found).unwrap_or_else(all)))
    }

    fn difference_to(&self, found: &StatementView) -> Result<Option<Difference>, StatementError> {
        let own = self.view(found.records, self.period.from())?;
        let json = |line: &_| serde_json::to_string(line).unwrap_or_default();
        let lines = [&own, found].map(|of| of.lines.iter().map(json).collect::<Vec<_>>());
        let [expected, shown] = [&lines[0], &lines[1]]
            .map(|lines| lines.iter().map(String::as_str).collect::<Vec<_>>());
        if let Some(difference) = first(&expected, &shown) {
            return Ok(Some(difference));
        }
        let (expected, shown) = (values(&own), values(found));
        let pairs = expected.into_iter().zip(shown);
        let differing = pairs.map(|((what, expected), (_, found))| (what, expected, found));
        let mut differing = differing.filter(|(_, expected, found)| expected != found);
        Ok(differing.next().map(|(what, expected, found)| Difference::Value {
            what,
            found,
            expected,
        }))
    }
}

/// What stands beside the lines.
fn values(view: &StatementView) -> [(&'static str, String); 10] {
    let days: Vec<String> =
        view.days.iter().map(|day| serde_json::to_string(day).unwrap_or_default()).collect();
    let fee = view.fee.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    [
        ("tenant", view.tenant.to_string()),
        ("side", view.side.code().to_owned()),
        ("begin", view.from.to_string()),
        ("end", view.until.to_string()),
        ("time zone", view.zone.clone()),
        ("total", view.total.to_string()),
        ("sum before rounding", view.exact.to_string()),
        ("fee", fee),
        ("days", days.join(" ")),
        ("sha256", view.sha256.clone()),
    ]
}

/// The first row in which they differ, and how.
fn first(expected: &[&str], found: &[&str]) -> Option<Difference> {
    let at = expected.iter().zip(found).take_while(|(one, other)| one == other).count();
    let later = |rows: &[&str], row: &str| {
        rows.iter().skip(at).copied().collect::<BTreeSet<_>>().contains(row)
    };
    match (expected.get(at), found.get(at)) {
        (None, None) => None,
        (Some(row), None) => Some(Difference::Omitted((*row).to_owned())),
        (None, Some(row)) => Some(Difference::Added((*row).to_owned())),
        (Some(own), Some(row)) => Some(match (later(found, own), later(expected, row)) {
            (false, true) => Difference::Omitted((*own).to_owned()),
            (true, false) => Difference::Added((*row).to_owned()),
            _ => Difference::Changed { found: (*row).to_owned(), expected: (*own).to_owned() },
        }),
    }
}
