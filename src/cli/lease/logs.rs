//! What a guest prints, read in a thread of its own so that ctrl-c is heard meanwhile.

use std::io::BufRead;
use std::sync::mpsc::{self, Receiver};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sublet_protocol::agent::Stream;
use sublet_protocol::api::LogLine;
use sublet_protocol::leases::EndReason;

use crate::client::Body;

/// Lines that may wait to be printed: a guest that prints faster is slowed by the connection.
const LINES_MAX: usize = 64;

/// Something about a guest.
pub(super) enum Said {
    /// It printed these bytes.
    Output {
        /// On which stream.
        stream: Stream,
        /// How many bytes were lost just before.
        missed: u64,
        /// Where to read on after them.
        next: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Its lease has ended.
    End {
        /// Its exit code, if it finished by itself.
        exit_code: Option<i32>,
        /// Why the lease ended.
        reason: EndReason,
    },
    /// The connection broke; there may be more.
    Broken(String),
}

/// Reads `body` until the lease has ended or the connection breaks.
pub(super) fn follow(body: Body) -> Receiver<Said> {
    let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in body.lines() {
            let said = match line {
                Ok(line) if line.trim().is_empty() => continue,
                Ok(line) => read(&line),
                Err(error) => Said::Broken(error.to_string()),
            };
            let is_last = !matches!(said, Said::Output { .. });
            if sender.send(said).is_err() || is_last {
                return;
            }
        }
        // The receiver may have gone; then nobody wants to know.
        let _ = sender.send(Said::Broken("the stream ended early".to_owned()));
    });
    receiver
}

fn read(line: &str) -> Said {
    match serde_json::from_str(line) {
        Ok(LogLine::Output { stream, offset, missed, base64 }) => match STANDARD.decode(base64) {
            Ok(bytes) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                Said::Output { stream, missed, next: offset.saturating_add(length), bytes }
            }
            Err(error) => Said::Broken(error.to_string()),
        },
        Ok(LogLine::End { exit_code, reason }) => Said::End { exit_code, reason },
        Err(error) => Said::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_decoded_and_says_where_to_read_on() {
        let line = r#"{"kind":"output","stream":"stdout","offset":5,"missed":0,"base64":"aGkK"}"#;
        let Said::Output { next, bytes, .. } = read(line) else { panic!("not output") };
        assert_eq!((next, bytes.as_slice()), (8, "hi\n".as_bytes()));
    }

    #[test]
    fn the_end_carries_the_exit_code() {
        let line = r#"{"kind":"end","exit_code":3,"reason":"guest_failed"}"#;
        let Said::End { exit_code, reason } = read(line) else { panic!("not the end") };
        assert_eq!((exit_code, reason), (Some(3), EndReason::GuestFailed));
    }
}
