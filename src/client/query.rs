//! Query strings.

use std::fmt::Write;

/// Names and values of a query, in the order they were added.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// No query.
    pub(crate) fn new() -> Query {
        Query::default()
    }

    /// Adds a value, if there is one.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Query {
        self.0.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// `path` with the query behind it.
    pub(crate) fn path(&self, path: &str) -> String {
        let mut out = path.to_owned();
        for (index, (name, value)) in self.0.iter().enumerate() {
            out.push(if index == 0 { '?' } else { '&' });
            out.push_str(name);
            out.push('=');
            for byte in value.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        out.push(char::from(byte));
                    }
                    _ => {
                        // Writing to a String cannot fail.
                        let _ = write!(out, "%{byte:02X}");
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_missing_ones_left_out() {
        let query =
            Query::new().with("a", Some("x y&z")).with("b", None::<&str>).with("c", Some(1));
        assert_eq!(query.path("/v1/x"), "/v1/x?a=x%20y%26z&c=1");
        assert_eq!(Query::new().path("/v1/x"), "/v1/x");
    }
}
