//! Names for people to read. They are not ids, and they can be erased.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a tenant is called: 1 to 128 bytes of UTF-8 in one line, no blank at either end, no control
/// characters, and nothing that changes the direction of what stands after it.
///
/// It may be the name of a person, so it is in no record of the ledger, and debug output does not
/// show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DisplayName(String);

/// A text that is no [`DisplayName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, or only blanks.
    #[error("a name has at least one character that is no blank")]
    Empty,
    /// Longer than [`DisplayName::MAX`].
    #[error("a name has at most {} bytes", DisplayName::MAX)]
    Long,
    /// It begins or ends with a blank.
    #[error("a name neither begins nor ends with a blank")]
    Blank,
    /// It has a character that cannot be shown.
    #[error("a name has no control characters, line breaks or marks of direction")]
    Character,
}

impl DisplayName {
    /// Most bytes.
    pub const MAX: usize = 128;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What would break a line, or show what follows otherwise than it is (Unicode TR 36, 3.7).
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl TryFrom<String> for DisplayName {
    type Error = NameError;
    fn try_from(text: String) -> Result<DisplayName, NameError> {
        if text.trim().is_empty() {
            Err(NameError::Empty)
        } else if text.len() > DisplayName::MAX {
            Err(NameError::Long)
        } else if text.chars().any(is_harmful) {
            Err(NameError::Character)
        } else if text.trim() != text {
            Err(NameError::Blank)
        } else {
            Ok(DisplayName(text))
        }
    }
}

impl FromStr for DisplayName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<DisplayName, NameError> {
        text.to_owned().try_into()
    }
}

impl From<DisplayName> for String {
    fn from(name: DisplayName) -> String {
        name.0
    }
}

impl fmt::Display for DisplayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for DisplayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DisplayName(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_the_world_are_taken_as_they_are() {
        let longest = "ü".repeat(64);
        for name in ["Zürich / 团队 \"Ltd\"", "a", "=SUM(A1)", "Ünï-çödé 🏔", "عربي", &longest]
        {
            assert_eq!(name.parse::<DisplayName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn what_cannot_be_shown_in_a_line_is_refused_with_its_reason() {
        let long = "x".repeat(129);
        for (name, error) in [
            ("", NameError::Empty),
            (" \t", NameError::Empty),
            (&long, NameError::Long),
            (" a", NameError::Blank),
            ("a\u{a0}", NameError::Blank),
            ("a\nb", NameError::Character),
            ("a\u{1b}[31mb", NameError::Character),
            ("a\u{0}", NameError::Character),
            ("a\u{202e}b", NameError::Character),
            ("a\u{2028}b", NameError::Character),
            ("\u{feff}a", NameError::Character),
        ] {
            assert_eq!(name.parse::<DisplayName>(), Err(error), "{name:?}");
        }
    }

    #[test]
    fn no_log_shows_one_by_accident() {
        let name: DisplayName = "Jane Doe".parse().unwrap();
        assert!(!format!("{name:?} {:?}", Some(&name)).contains("Jane"));
    }
}
