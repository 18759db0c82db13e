//! The last things that happened, in words, for who looks for a bug.

use std::collections::VecDeque;

use sublet_protocol::agent::{DownEnvelope, Reply, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::commands::Stamped;
use sublet_protocol::records::Record;

use super::queue::Event;
use super::world::World;

/// A list of bounded length; the oldest lines go first.
#[derive(Debug)]
pub(super) struct Log {
    most: usize,
    lines: VecDeque<String>,
}

impl Log {
    pub(super) const fn new(most: usize) -> Log {
        Log { most, lines: VecDeque::new() }
    }

    fn push(&mut self, line: String) {
        if self.lines.len() >= self.most {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}

impl World {
    /// Notes `line` with the time, if notes are taken.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let (now, step) = (self.now, self.steps);
        if let Some(log) = &mut self.log {
            log.push(format!("{step} {now} {}", line()));
        }
    }

    pub(super) fn log_event(&mut self, event: &Event) {
        let line = match event {
            Event::Up { bytes } => {
                format!("up {:?}", codec::decode::<UpEnvelope>(bytes).ok())
            }
            Event::Down { agent, bytes } => {
                format!("down to {agent}: {:?}", codec::decode::<DownEnvelope>(bytes).ok())
            }
            Event::Reply { agent, sequence, bytes, .. } => {
                let reply = codec::decode::<Reply>(bytes).ok();
                format!("reply to {agent} #{sequence}: {reply:?}")
            }
            other => format!("{other:?}"),
        };
        self.note(|| line);
    }

    pub(super) fn log_entry(&mut self, replica: usize, stamped: &Stamped, records: &[Record]) {
        if self.log.is_none() {
            return;
        }
        let (command, actor) = (format!("{:?}", stamped.command), format!("{:?}", stamped.actor));
        self.note(|| format!("applied by {replica}: {actor} {command}"));
        for record in records {
            self.note(|| format!("  {} {} {:?}", record.index, record.time, record.event));
        }
    }
}
