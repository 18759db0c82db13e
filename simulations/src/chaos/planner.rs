//! A leader's plans: made on what it knows, committed when they come to the log.

use sublet_core::{StateView, matching};
use sublet_protocol::commands::{Command, PlanGroup};
use sublet_protocol::units::Timestamp;

use super::broker::Office;
use super::fault::Fault;
use super::queue::Event;
use super::world::World;

/// One plan in so many is long on its way.
const LATE: u64 = 64;
/// For less than this, in true milliseconds.
const LATE_MAX: u64 = 60_000;

impl World {
    pub(super) fn make_plan(&mut self, replica: usize) {
        let one = &mut self.replicas[replica];
        let now: Timestamp = one.clock.now(self.now);
        let Some(office) = &mut one.office else { return };
        if office.is_planning {
            // What came of the last plan is unknown: now and then it does not wait for that.
            if self.is_calm || !self.random.chance(1, 8) {
                office.is_plan_stale = true;
                return;
            }
            self.faults.count(Fault::PlanTwice);
        }
        let term = office.term;
        let limits = office.leader.limits(&one.state, now);
        let groups = matching::plan_within(StateView { state: &one.state, now }, &limits);
        if groups.is_empty() {
            return;
        }
        office.is_planning = true;
        self.checker.leader_plans(self.now, replica, &one.state, &groups);
        // One that is deposed and does not know it plans on what was; none of that is committed.
        if self.raft.leader == Some(replica) && self.raft.term == term {
            self.checker.plan_is_in_order(&groups, &limits, now, &one.state);
        }
        let at = self.now + self.planning_time();
        self.queue.push(at, Event::Planned { replica, term, groups });
    }

    /// How long a plan takes from the state it is made on to the log: now and then the planner
    /// stands still.
    fn planning_time(&mut self) -> u64 {
        if self.is_calm || !self.random.chance(1, LATE) {
            return self.random.below(400);
        }
        self.faults.count(Fault::PlanLate);
        self.random.below(LATE_MAX)
    }

    pub(super) fn on_planned(&mut self, replica: usize, term: u64, groups: Vec<PlanGroup>) {
        let is_its = |office: &&Office| office.term == term;
        if self.replicas[replica].office.as_ref().filter(is_its).is_some() {
            self.lead(replica, term, Command::CommitPlan { groups });
        }
    }
}
