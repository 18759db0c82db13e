//! What lending costs, in time.

use sublet_protocol::units::Seconds;

/// What it takes to lend. The defaults are the agent's and the cell's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Friction {
    /// A GPU is offered once it has been idle this long.
    pub idle_after: Seconds,
    /// Nodes are looked at this often: idleness and the owner's return are seen at the next look.
    pub sample: Seconds,
    /// From a grant to a guest that runs: messages, preparing, starting.
    pub start: Seconds,
    /// Fetching what a guest needs before it does any work.
    pub staging: Seconds,
    /// Guests save their work this often; none = never, and a guest that is stopped begins anew.
    pub checkpoint: Option<Seconds>,
}

impl Default for Friction {
    fn default() -> Friction {
        Friction {
            idle_after: Seconds::new(600),
            sample: Seconds::new(30),
            start: Seconds::new(5),
            staging: Seconds::new(60),
            checkpoint: Some(Seconds::new(1_800)),
        }
    }
}

impl Friction {
    /// Time at the start of every lease in which a guest does no work.
    pub(crate) fn overhead(&self) -> Seconds {
        self.start.saturating_add(self.staging)
    }

    /// The first look at or after `at`.
    pub(crate) fn next_look(&self, at: Seconds) -> Seconds {
        let every = self.sample.get().max(1);
        Seconds::new(at.get().div_ceil(every).saturating_mul(every))
    }

    /// What of `ran` seconds of a stopped guest is work that is kept, and what is work that is lost.
    pub(crate) fn kept(&self, ran: Seconds) -> (Seconds, Seconds) {
        let work = ran.saturating_sub(self.overhead());
        let every = self.checkpoint.map_or(0, Seconds::get);
        let kept = work.get().checked_div(every).map_or(0, |saves| saves.saturating_mul(every));
        (Seconds::new(kept), work.saturating_sub(Seconds::new(kept)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_guest_keeps_what_it_saved_and_starting_is_no_work() {
        let friction = Friction::default();
        let kept = |ran| {
            let (kept, lost) = friction.kept(Seconds::new(ran));
            (kept.get(), lost.get())
        };
        assert_eq!(
            [10, 65, 66, 1_864, 1_865, 5_000].map(kept),
            [(0, 0), (0, 0), (0, 1), (0, 1_799), (1_800, 0), (3_600, 1_335),]
        );
        let never = Friction { checkpoint: None, ..friction };
        assert_eq!(never.kept(Seconds::new(5_065)), (Seconds::ZERO, Seconds::new(5_000)));
    }

    #[test]
    fn things_are_seen_at_the_next_look_and_not_before() {
        let friction = Friction::default();
        let look = |at| friction.next_look(Seconds::new(at)).get();
        assert_eq!([0, 1, 29, 30, 31].map(look), [0, 30, 30, 30, 60]);
    }
}
