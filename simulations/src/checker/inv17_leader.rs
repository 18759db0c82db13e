//! INV-17 (rule LR3): a leader takes nothing back for what it cannot know. After a failover nobody is
//! counted as silent and nobody is preempted before four fifths of the agents have reported to it or ten
//! minutes have passed; nothing is granted on an agent that has not; when all are silent at once, nobody
//! is; and whoever spoke to it within W is not.

use std::collections::BTreeMap;

use sublet_core::State;
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{ClusterId, NodeId};

use super::Checker;

type Name = (ClusterId, NodeId);

/// The share of the agents that must have reported, in thousandths.
const SHARE: usize = 800;
/// Or this long has passed, in milliseconds of the leader's clock.
const LONG: u64 = 600_000;
/// From so many agents on, the silence of all is the broker's own.
const ALL_MIN: usize = 3;

/// Who leads, as far as they know themselves.
#[derive(Debug, Default)]
pub(super) struct Offices(BTreeMap<usize, Office>);

/// A term of a broker as leader, in true time.
#[derive(Debug, Default)]
struct Office {
    since: u64,
    heard: BTreeMap<Name, u64>,
}

impl Office {
    fn silent_for(&self, now: u64, node: &Name) -> u64 {
        now - self.heard.get(node).copied().unwrap_or(self.since)
    }

    /// Whether it may judge who is silent and who must go.
    fn is_warm(&self, now: u64, state: &State) -> bool {
        let awake = state.nodes().iter().filter(|(_, node)| !node.is_silent());
        let (awake, heard) = awake.fold((0, 0), |(awake, heard), (name, _)| {
            (awake + 1, heard + usize::from(self.heard.contains_key(name)))
        });
        now - self.since >= at_least(LONG) || heard * 1_000 >= awake * SHARE
    }
}

/// The least true time in which a leader's clock counts `span`: it may run 5 % too fast.
const fn at_least(span: u64) -> u64 {
    (span * 20 / 21).saturating_sub(1_000)
}

/// The most true time in which it counts `span`.
const fn at_most(span: u64) -> u64 {
    span * 20 / 19 + 1_000
}

impl Checker {
    /// A broker begins to lead.
    pub(crate) fn takes_office(&mut self, now: u64, replica: usize) {
        self.offices.0.insert(replica, Office { since: now, heard: BTreeMap::new() });
    }

    /// A message of the newest start of an agent reaches a leader.
    pub(crate) fn leader_hears(&mut self, now: u64, replica: usize, node: Name) {
        if let Some(office) = self.offices.0.get_mut(&replica) {
            office.heard.insert(node, now);
        }
    }

    /// A leader proposes that an agent is silent.
    pub(crate) fn leader_says_silent(
        &mut self,
        now: u64,
        replica: usize,
        state: &State,
        node: Name,
    ) {
        let Some(office) = self.offices.0.get(&replica) else { return };
        let silence = state.policy().silence().as_millis().get();
        let (is_warm, silent_for) = (office.is_warm(now, state), office.silent_for(now, &node));
        let awake = state.nodes().iter().filter(|(_, node)| !node.is_silent());
        let awake: Vec<Name> = awake.map(|(name, _)| *name).collect();
        let is_silent = |name: &Name| office.silent_for(now, name) >= at_most(silence);
        let are_all = awake.len() >= ALL_MIN && awake.iter().all(is_silent);
        let (cluster, name) = node;
        self.check(17, silent_for >= at_least(silence), || {
            format!("{cluster}/{name} is counted as silent and spoke {silent_for} ms ago")
        });
        self.check(17, is_warm, || {
            format!("{cluster}/{name} is counted as silent before most agents reported")
        });
        self.check(17, !are_all, || {
            format!("{cluster}/{name} is counted as silent when all agents are")
        });
    }

    /// A leader makes a plan.
    pub(crate) fn leader_plans(
        &mut self,
        now: u64,
        replica: usize,
        state: &State,
        groups: &[PlanGroup],
    ) {
        let Some(office) = self.offices.0.get(&replica) else { return };
        let is_warm = office.is_warm(now, state);
        let mut found = None;
        for group in groups {
            let (members, is_recall) = match group {
                PlanGroup::Grant { members, .. } => (members, false),
                PlanGroup::Preempt { members, .. } => (members, true),
                // Neither gives nor takes a slice.
                PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => continue,
            };
            if is_recall && !is_warm {
                found = Some("leases are preempted before most agents reported".to_owned());
            }
            let unheard = members.iter().find(|member| {
                let name = (member.slice.cluster, member.slice.node);
                !office.heard.contains_key(&name)
            });
            if let Some(member) = unheard {
                found = Some(format!("{} is planned and its agent not heard", member.slice));
            }
        }
        if let Some(what) = found {
            self.fail(17, what);
        }
    }
}
