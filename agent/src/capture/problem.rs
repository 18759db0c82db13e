//! What could not be read, and what to do about it.

use serde::Serialize;

/// Most problems kept of one file; the rest is counted in the last one.
pub const PROBLEMS_MAX: usize = 100;

/// Whether a problem leaves its file unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A part was left out or is doubtful; the rest of the file counts.
    Warning,
    /// Nothing of the file counts.
    Error,
}

/// One thing that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1, where one is known.
    pub line: Option<u64>,
    /// The field or element, where one is known.
    pub path: Option<String>,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one clause.
    pub text: String,
    /// What to do.
    pub advice: Option<&'static str>,
}

/// The problems of one file, bounded.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<Problem>,
    left_out: usize,
}

impl Problems {
    /// Notes that a part of the file was left out.
    pub fn warn(&mut self, line: Option<u64>, path: Option<&str>, text: impl Into<String>) {
        self.push(line, path, Severity::Warning, text.into(), None);
    }

    /// Notes that a part was left out, with what to do.
    pub fn warn_with(
        &mut self,
        line: Option<u64>,
        path: Option<&str>,
        text: impl Into<String>,
        advice: &'static str,
    ) {
        self.push(line, path, Severity::Warning, text.into(), Some(advice));
    }

    /// Notes that the file cannot be used, with what to do.
    pub fn fail(&mut self, line: Option<u64>, text: impl Into<String>, advice: &'static str) {
        self.push(line, None, Severity::Error, text.into(), Some(advice));
    }

    fn push(
        &mut self,
        line: Option<u64>,
        path: Option<&str>,
        severity: Severity,
        text: String,
        advice: Option<&'static str>,
    ) {
        if self.found.len() >= PROBLEMS_MAX && severity == Severity::Warning {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        let path = path.map(str::to_owned);
        self.found.push(Problem { file: String::new(), line, path, severity, text, advice });
    }

    /// All of them, under the name of `file`.
    #[must_use]
    pub fn of_file(mut self, file: &str) -> Vec<Problem> {
        if self.left_out > 0 {
            let text = format!("{} more problems in this file", self.left_out);
            self.left_out = 0;
            self.found.push(Problem {
                file: String::new(),
                line: None,
                path: None,
                severity: Severity::Warning,
                text,
                advice: None,
            });
        }
        for problem in &mut self.found {
            file.clone_into(&mut problem.file);
        }
        self.found
    }
}
