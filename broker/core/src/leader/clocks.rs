//! How far off the wall clocks of agents are.
//!
//! Soft state: no decision in the log depends on it, and no span does anywhere. Spans are counted on
//! monotonic clocks; a wall clock that is wrong shows that something is wrong with its machine, so a
//! person is told and nothing new is put there. A new leader begins with nothing and has measured every
//! agent again within one inventory.

use std::collections::{BTreeMap, VecDeque};

use sublet_protocol::agent::ClockReading;
use sublet_protocol::ids::{Boot, ClusterId, NodeId};
use sublet_protocol::policy::Policy;
use sublet_protocol::units::{ClockOffset, Millis, Seconds, Timestamp};

/// Readings that are looked back on: the one that was underway for the shortest time counts.
const READINGS_MAX: usize = 16;
/// No reading counts for longer: a rate error of 1 % makes 3 s of it, less than what is warned of.
const LOOK_BACK: Millis = Millis::new(300_000);

/// Whether an agent's wall clock can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockState {
    /// It shows what the broker's shows, about.
    Right,
    /// It is off by more than the policy's warning.
    Off,
    /// It is off by more than the policy's limit: no new leases there.
    Far,
}

/// What is known of an agent's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentClock {
    /// By how much it is ahead of the broker's, as estimated from the last reading.
    pub offset: ClockOffset,
    /// What that means.
    pub state: ClockState,
}

/// An agent's clock is judged otherwise than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockChange {
    /// Which agent.
    pub node: (ClusterId, NodeId),
    /// What was known; before the first reading it counts as right.
    pub before: ClockState,
    /// What is known now.
    pub now: AgentClock,
}

/// The clocks of all agents that have told theirs in this term.
#[derive(Debug, Default)]
pub(super) struct Clocks(BTreeMap<(ClusterId, NodeId), Measured>);

#[derive(Debug)]
struct Measured {
    boot: Boot,
    clock: AgentClock,
    /// When each reading came on our monotonic clock, and by how much that was ahead of the agent's.
    lags: VecDeque<(Millis, ClockOffset)>,
}

impl Clocks {
    /// Takes a reading of a known agent's start that came when our own clocks showed `ours`.
    ///
    /// The estimate is `theirs.wall − ours.wall + (lag − least lag)` with `lag = ours.monotonic −
    /// theirs.monotonic`: a message that was underway for longer than the quickest of the last five
    /// minutes is put right by the difference, as NTP's clock filter prefers the sample with the
    /// least delay (RFC 5905 §10). What is left of the error is the time the quickest was underway:
    /// a clock looks that much less ahead than it is.
    pub(super) fn measure(
        &mut self,
        policy: &Policy,
        (node, boot): ((ClusterId, NodeId), Boot),
        theirs: ClockReading,
        ours: ClockReading,
    ) -> Option<ClockChange> {
        let fresh = Measured {
            boot,
            clock: AgentClock { offset: ClockOffset::default(), state: ClockState::Right },
            lags: VecDeque::new(),
        };
        let measured = self.0.entry(node).or_insert(fresh);
        if measured.boot != boot {
            // The machine may have been started anew, and its monotonic clock with it.
            measured.boot = boot;
            measured.lags.clear();
        }
        let lag = ClockOffset::between(instant(ours.monotonic), instant(theirs.monotonic));
        let lags = &mut measured.lags;
        lags.retain(|(came, _)| ours.monotonic.saturating_sub(*came) <= LOOK_BACK);
        if lags.len() == READINGS_MAX {
            lags.pop_front();
        }
        lags.push_back((ours.monotonic, lag));
        let least = lags.iter().map(|(_, lag)| lag.get()).min().unwrap_or(lag.get());
        let late = Millis::new(lag.get().abs_diff(least));
        let offset = ClockOffset::between(theirs.wall, ours.wall).ahead_by(late);
        let before = measured.clock.state;
        let now = AgentClock { offset, state: judge(policy, before, offset) };
        measured.clock = now;
        (now.state != before).then_some(ClockChange { node, before, now })
    }

    pub(super) fn of(&self, node: (ClusterId, NodeId)) -> Option<AgentClock> {
        self.0.get(&node).map(|measured| measured.clock)
    }

    /// The node is no more.
    pub(super) fn forget(&mut self, node: (ClusterId, NodeId)) {
        self.0.remove(&node);
    }

    /// Agents whose clocks are too far off for new leases.
    pub(super) fn far(&self) -> impl Iterator<Item = (ClusterId, NodeId)> + '_ {
        let far = self.0.iter().filter(|(_, one)| one.clock.state == ClockState::Far);
        far.map(|(node, _)| *node)
    }
}

/// An instant of a monotonic clock, to be compared.
const fn instant(monotonic: Millis) -> Timestamp {
    Timestamp::new(monotonic.get())
}

/// A bound counts as crossed back only at four fifths of it, so that a clock at the bound is not told
/// of again and again.
fn judge(policy: &Policy, before: ClockState, offset: ClockOffset) -> ClockState {
    let is_over = |bound: Seconds, was_over: bool| {
        let bound = bound.as_millis().get();
        offset.size().get() > if was_over { bound / 5 * 4 } else { bound }
    };
    if is_over(policy.clock_limit, before == ClockState::Far) {
        ClockState::Far
    } else if is_over(policy.clock_warning, before != ClockState::Right) {
        ClockState::Off
    } else {
        ClockState::Right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Broker time of the first reading.
    const BEGIN: u64 = 1_772_445_600_000;

    fn node() -> (ClusterId, NodeId) {
        (ClusterId::new("c").unwrap(), NodeId::new("n").unwrap())
    }

    /// An agent whose wall clock is ahead by `ahead` sends at `sent`; the message takes `takes`.
    fn hear(clocks: &mut Clocks, sent: u64, takes: u64, ahead: i64) -> Option<ClockChange> {
        let wall = (BEGIN + sent).checked_add_signed(ahead).unwrap();
        let theirs =
            ClockReading { wall: Timestamp::new(wall), monotonic: Millis::new(50_000 + sent) };
        let came = sent + takes;
        let ours =
            ClockReading { wall: Timestamp::new(BEGIN + came), monotonic: Millis::new(7 + came) };
        clocks.measure(&Policy::default(), (node(), Boot::new(1)), theirs, ours)
    }

    fn offset(clocks: &Clocks) -> i64 {
        clocks.of(node()).unwrap().offset.get()
    }

    #[test]
    fn an_offset_is_estimated_to_within_the_time_of_the_quickest_message() {
        let mut clocks = Clocks::default();
        assert_eq!(hear(&mut clocks, 0, 40, 2_000), None);
        assert_eq!(offset(&clocks), 1_960);
        assert_eq!(hear(&mut clocks, 30_000, 5, 2_000), None);
        assert_eq!(offset(&clocks), 1_995);
    }

    #[test]
    fn a_message_that_was_underway_for_a_minute_and_a_half_makes_no_clock_look_wrong() {
        let mut clocks = Clocks::default();
        hear(&mut clocks, 0, 10, 0);
        assert_eq!(hear(&mut clocks, 30_000, 90_000, 0), None);
        assert_eq!(offset(&clocks), -10);
    }

    #[test]
    fn each_bound_is_told_of_once_when_it_is_crossed_and_once_when_it_is_crossed_back() {
        let mut clocks = Clocks::default();
        let mut states = Vec::new();
        let offsets =
            [5_000, 5_001, 4_900, 5_001, 3_000, -61_000, -59_000, -47_000, -600_000, 95_000, 0];
        for (at, ahead) in (0..).zip(offsets) {
            let change = hear(&mut clocks, at * 30_000, 0, ahead);
            states.extend(change.map(|change| (ahead, change.before, change.now.state)));
        }
        use ClockState::{Far, Off, Right};
        let expected = [
            (5_001, Right, Off),
            (3_000, Off, Right),
            (-61_000, Right, Far),
            (-47_000, Far, Off),
            (-600_000, Off, Far),
            (0, Far, Right),
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn a_step_in_mid_run_shows_at_the_next_reading_and_what_is_looked_back_on_is_bounded() {
        let mut clocks = Clocks::default();
        for at in 0..1_000 {
            hear(&mut clocks, at * 1_000, 3, 0);
        }
        assert!(clocks.0[&node()].lags.len() <= READINGS_MAX);
        let change = hear(&mut clocks, 1_000_000, 3, -600_000).unwrap();
        assert_eq!(change.now.offset, ClockOffset::new(-600_003));
        assert_eq!(clocks.far().collect::<Vec<_>>(), [node()]);
    }

    #[test]
    fn a_new_start_of_the_machine_begins_anew() {
        let mut clocks = Clocks::default();
        hear(&mut clocks, 0, 10, 0);
        // Booted: its monotonic clock is far behind where it was, its wall clock right.
        let wall = Timestamp::new(BEGIN + 100_000);
        let theirs = ClockReading { wall, monotonic: Millis::new(3) };
        let ours = ClockReading { wall, monotonic: Millis::new(100_007) };
        let of = (node(), Boot::new(2));
        assert_eq!(clocks.measure(&Policy::default(), of, theirs, ours), None);
        assert_eq!(offset(&clocks), 0);
    }
}
