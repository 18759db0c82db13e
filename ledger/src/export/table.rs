//! Columns and values, whatever they are written as.

use sublet_protocol::units::Timestamp;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text.
    Text,
    /// A decimal with at most six places.
    Decimal,
    /// An instant in UTC.
    Time,
    /// A whole number.
    Whole,
}

/// One column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_nullable: bool,
}

impl Column {
    pub(super) const fn new(name: &'static str, kind: Kind) -> Column {
        Column { name, kind, is_nullable: false }
    }

    pub(super) const fn nullable(name: &'static str, kind: Kind) -> Column {
        Column { name, kind, is_nullable: true }
    }
}

/// One cell of a row, of its column's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Not there. Only where the column says so.
    Null,
    Text(String),
    /// Millionths, and how many places are shown at least.
    Decimal(i64, Places),
    Time(Timestamp),
    Whole(i64),
}

/// How many places of a decimal are shown at least; further ones only if they are not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Places {
    None,
    Two,
}

impl Value {
    #[allow(clippy::needless_pass_by_value, reason = "most that is shown is an id, which is Copy")]
    pub(super) fn text(text: impl ToString) -> Value {
        Value::Text(text.to_string())
    }
}

/// Millionths as a plain decimal: `4.80`, `2`, `-0.000001`.
pub(super) fn decimal(millionths: i64, places: Places) -> String {
    let sign = if millionths < 0 { "-" } else { "" };
    let magnitude = millionths.unsigned_abs();
    let fraction = format!("{:06}", magnitude % 1_000_000);
    let least = match places {
        Places::None => 0,
        Places::Two => 2,
    };
    let shown = fraction.trim_end_matches('0').len().max(least);
    let point = if shown == 0 { "" } else { "." };
    format!("{sign}{}{point}{}", magnitude / 1_000_000, &fraction[..shown])
}
