//! What a command reports when it cannot do what was asked, and the exit code it ends with.
//!
//! A failure says what went wrong and where, and what to do about it. Only `main` prints one.

use std::fmt::{self, Write as _};
use std::process::ExitCode;

/// How the program ended, as the shell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; an empty list is done, too.
    Done,
    /// Something that has no code of its own.
    Failed,
    /// The command line or an input file is wrong.
    Usage,
    /// No such thing.
    NotFound,
    /// No valid token, or not the rights.
    Auth,
    /// The rules refuse it.
    Refused,
    /// Nothing is free that fits, and waiting was not wanted.
    NoCapacity,
    /// The lease ended before its work did.
    LeaseFailed,
    /// The server cannot be reached or is busy; the same command may work later.
    Temporary,
    /// The time given on the command line is over.
    TimedOut,
    /// Interrupted from the keyboard.
    Interrupted,
    /// Nobody reads the output any longer (`… | head -1`): ends in silence.
    NobodyReads,
    /// The exit code of the guest that ran on the lease.
    Guest(u8),
}

impl Exit {
    /// The number the shell sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Exit::Done | Exit::NobodyReads => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Auth => 4,
            Exit::Refused => 5,
            Exit::NoCapacity => 6,
            Exit::LeaseFailed => 7,
            Exit::Temporary => 75,
            Exit::TimedOut => 124,
            Exit::Interrupted => 130,
            Exit::Guest(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// A command that was not done.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    what: String,
    causes: Vec<String>,
    hints: Vec<String>,
}

/// What every command returns: how it ended, or why it did not.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with this exit code. `what` is one lower-case sentence without a full stop.
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Failure {
        Failure { exit, what: what.into(), causes: Vec::new(), hints: Vec::new() }
    }

    /// The command line is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, what)
    }

    /// Adds what lies behind it, or where it is.
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.causes.push(cause.to_string());
        self
    }

    /// Adds what the user can do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hints.push(hint.into());
        self
    }

    /// The same, with another exit code.
    pub(crate) fn ending(self, exit: Exit) -> Failure {
        Failure { exit, ..self }
    }

    /// Whether the server gave this code as the reason.
    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.causes.iter().any(|cause| cause.split(' ').next() == Some(code))
    }

    /// The exit code it ends with.
    pub(crate) const fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        for cause in &self.causes {
            write!(f, "\n  because: {}", indented(cause))?;
        }
        for hint in &self.hints {
            write!(f, "\n  try: {}", indented(hint))?;
        }
        Ok(())
    }
}

/// Follow-up lines of a longer text stand under its first one.
fn indented(text: &str) -> String {
    let mut lines = text.lines();
    let mut out = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        let _ = write!(out, "\n      {line}");
    }
    out
}

impl std::error::Error for Failure {}

/// Writing to standard output failed: silence if the reader has gone.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        let exit = match error.kind() {
            std::io::ErrorKind::BrokenPipe => Exit::NobodyReads,
            _ => Exit::Failed,
        };
        Failure::new(exit, "cannot write the output").because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_do() {
        let failure = Failure::new(Exit::Temporary, "no server answers")
            .because("connection refused")
            .hint("start one:\nsublet dev");
        assert_eq!(
            failure.to_string(),
            "no server answers\n  because: connection refused\n  try: start one:\n      sublet dev"
        );
        assert_eq!(failure.exit().code(), 75);
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let gone = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(gone.exit().code(), 0);
    }
}
