//! Where a guest's output goes, and what is said about it.

use std::io::{self, IsTerminal, Write};

use sublet_protocol::agent::Stream;

use crate::failure::Outcome;
use crate::output;

/// The guest's two streams, passed on byte for byte.
pub(super) struct Console {
    is_terminal: bool,
    is_line_open: bool,
    lost: u64,
    gaps: u64,
}

impl Console {
    /// Nothing has been printed yet.
    pub(super) fn new() -> Console {
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        Console { is_terminal, is_line_open: false, lost: 0, gaps: 0 }
    }

    /// Passes on what the guest printed.
    pub(super) fn print(&mut self, stream: Stream, bytes: &[u8]) -> Outcome<()> {
        if let Some(last) = bytes.last() {
            self.is_line_open = *last != b'\n';
        }
        match stream {
            Stream::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()?;
            }
            Stream::Stderr => io::stderr().lock().write_all(bytes)?,
        }
        Ok(())
    }

    /// Counts bytes that did not arrive; the first time it says so where they are missing.
    pub(super) fn lost(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if self.gaps == 0 {
            self.break_line();
            output::note("(output is lost from here on: it is printed faster than it arrives)");
        }
        self.lost = self.lost.saturating_add(bytes);
        self.gaps += 1;
    }

    /// Before this command says something on a terminal, where a line of the guest is still open.
    pub(super) fn break_line(&mut self) {
        if self.is_terminal && self.is_line_open {
            output::note("");
            self.is_line_open = false;
        }
    }

    /// After the last byte: closes the line and says how much is missing in all.
    pub(super) fn end(&mut self) {
        self.break_line();
        if let Some(text) = self.missing() {
            output::note(&text);
        }
    }

    fn missing(&self) -> Option<String> {
        let places = if self.gaps == 1 { "place" } else { "places" };
        (self.gaps > 0).then(|| {
            format!(
                "warning: {} bytes of output were lost in {} {places}; write large output to a file",
                self.lost, self.gaps
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_output_is_summed_up_once() {
        let mut console = Console::new();
        assert_eq!(console.missing(), None);
        for bytes in [0, 10, 5] {
            console.lost(bytes);
        }
        let text = console.missing().unwrap();
        assert!(text.contains("15 bytes of output were lost in 2 places"), "{text}");
    }
}
