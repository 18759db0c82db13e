//! Reads a stream of server-sent events (WHATWG HTML, "Server-sent events").

use std::io::{self, BufRead};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its kind; `message` if the server names none.
    pub(crate) kind: String,
    /// What to resume after.
    pub(crate) id: Option<String>,
    /// Its data, lines joined.
    pub(crate) data: String,
}

/// Longest event that is read: far above any record (1 MiB) as JSON.
const EVENT_MAX: usize = 16 * 1_024 * 1_024;

/// Events from a reader. Comments (heartbeats) are skipped.
pub(crate) struct Events<R> {
    reader: R,
}

impl<R: BufRead> Events<R> {
    /// Reads from `reader` until it ends.
    pub(crate) fn new(reader: R) -> Events<R> {
        Events { reader }
    }

    fn read(&mut self) -> io::Result<Option<Event>> {
        let (mut kind, mut id, mut data) = (String::new(), None, Vec::<String>::new());
        let mut size = 0;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            size += line.len();
            if size > EVENT_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an event is too long"));
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if data.is_empty() && kind.is_empty() {
                    continue;
                }
                let kind = if kind.is_empty() { "message".to_owned() } else { kind };
                return Ok(Some(Event { kind, id, data: data.join("\n") }));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut kind),
                "id" => id = Some(value.to_owned()),
                "data" => data.push(value.to_owned()),
                _ => {}
            }
        }
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = io::Result<Event>;

    fn next(&mut self) -> Option<io::Result<Event>> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_heartbeats_skipped() {
        let text = ": beat\n\nid: 7\nevent: record\ndata: {\"a\":1}\n\ndata:x\r\ndata: y\r\n\r\n";
        let events: Vec<Event> = Events::new(text.as_bytes()).map(Result::unwrap).collect();
        let event = |kind: &str, id: Option<&str>, data: &str| Event {
            kind: kind.into(),
            id: id.map(Into::into),
            data: data.into(),
        };
        let expected = [event("record", Some("7"), "{\"a\":1}"), event("message", None, "x\ny")];
        assert_eq!(events, expected);
    }

    #[test]
    fn an_event_cut_short_is_not_an_event() {
        assert_eq!(Events::new("data: x\n".as_bytes()).count(), 0);
    }
}
