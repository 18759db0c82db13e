//! The live line: how the cell is just now.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use sublet_broker::Cell;
use sublet_core::LeaseStage;
use sublet_protocol::units::{Seconds, Timestamp};

use crate::output;
use crate::units::show_seconds;

/// Where people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Standard output.
    Output,
    /// Standard error: standard output is for JSON.
    Error,
}

/// On a terminal one line is written over and over; elsewhere there is a line now and then.
pub(super) struct Live {
    is_terminal: bool,
    place: Place,
    begin: Timestamp,
}

impl Live {
    /// Writes to `place`. `begin` is the start of the story.
    pub(super) fn new(place: Place, begin: Timestamp) -> Live {
        let is_terminal = match place {
            Place::Error => io::stderr().is_terminal(),
            Place::Output => io::stdout().is_terminal(),
        };
        Live { is_terminal, place, begin }
    }

    /// How often to write.
    pub(super) const fn every(&self) -> Duration {
        if self.is_terminal { Duration::from_millis(500) } else { Duration::from_secs(5) }
    }

    /// Writes the line.
    pub(super) fn show(&self, cell: &Cell) {
        let line = self.line(cell);
        match self.is_terminal {
            // Back to the first column, and what an older, longer line left over is cleared.
            true => self.write(&format!("\r{line}\u{1b}[K")),
            false => self.write(&format!("{line}\n")),
        }
    }

    /// Ends the live line, so that what follows stands below it.
    pub(super) fn end(&self) {
        if self.is_terminal {
            self.write("\n");
        }
    }

    /// Writes a line of text.
    pub(super) fn say(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    fn write(&self, text: &str) {
        // A reader that has gone does not stop the cell.
        match self.place {
            Place::Error => drop(io::stderr().lock().write_all(text.as_bytes())),
            Place::Output => drop(output::print(text)),
        }
    }

    fn line(&self, cell: &Cell) -> String {
        let counters = cell.counters();
        let (free, waiting, active, live) = cell.read_stale(|state| {
            let is_active =
                |lease: &&sublet_core::Lease| matches!(lease.stage(), LeaseStage::Active { .. });
            let active = state.leases().values().filter(is_active).count();
            (state.offers().len(), state.waiting().len(), active, state.leases().len())
        });
        let lent = Seconds::new(counters.gpu_millis_lent / 1_000);
        let story = cell.now().since(self.begin).as_seconds_floor();
        format!(
            "{:>7}  {active} of {live} leases active · {free} GPUs free · {waiting} waiting · {} \
             granted · {} ended · {} taken back · {} preempted · {} GPU time lent · {} records",
            show_seconds(story),
            counters.leases_granted,
            counters.leases_ended_total(),
            counters.owner_reclaims,
            counters.preemptions,
            show_seconds(lent),
            counters.records,
        )
    }
}
