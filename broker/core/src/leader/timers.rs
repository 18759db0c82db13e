//! What the leader does by time: sweeps, usage, silence, seals, plans, and what is said again.

use sublet_protocol::commands::{Command, USAGE_ENTRIES_MAX, Usage};
use sublet_protocol::ids::{ClusterId, NodeId};
use sublet_protocol::units::Timestamp;

use super::{ALL_SILENT_MIN, Effect, Leader, PLAN_INTERVAL, SILENCE_INTERVAL, USAGE_INTERVAL};
use crate::mutation::Mutation;
use crate::state::State;

impl Leader {
    /// Everything that is due at `now`. The shell carries the effects out in order and calls again
    /// at [`Leader::next_wake`].
    pub fn tick(&mut self, state: &State, now: Timestamp) -> Vec<Effect> {
        let mut effects = self.speak_due(state, now);
        if state.next_due().is_some_and(|at| at <= now) {
            effects.push(Effect::Propose(Command::Sweep));
        }
        if now >= self.usage_at {
            self.usage_at = now.after(USAGE_INTERVAL);
            effects.extend(self.record_usage(state));
            effects.extend(self.declare_stalled(state, now));
        }
        if now >= self.silence_at {
            self.silence_at = now.after(SILENCE_INTERVAL);
            effects.extend(self.declare_silent(state, now));
        }
        let is_plan_due = self.is_plan_due || now >= self.plan_at;
        if is_plan_due && !state.waiting().is_empty() {
            self.is_plan_due = false;
            self.plan_at = now.after(PLAN_INTERVAL);
            effects.push(Effect::Plan);
        }
        if let Some((rollback, open)) = state.rollback_due() {
            let done = open.done();
            effects.push(Effect::Propose(Command::AdvanceRollback { rollback, done }));
        }
        if state.is_seal_due(now) {
            effects.push(Effect::Propose(Command::SealTail));
        }
        effects
    }

    /// What grew since it was last committed, in batches.
    fn record_usage(&mut self, state: &State) -> Vec<Effect> {
        let grown = std::mem::take(&mut self.usage)
            .into_iter()
            .filter(|(id, used)| state.leases().get(id).is_some_and(|lease| *used > lease.used()));
        let entries: Vec<Usage> = grown.map(|(lease, used)| Usage { lease, used }).collect();
        let batches = entries.chunks(USAGE_ENTRIES_MAX);
        batches
            .map(|batch| Effect::Propose(Command::RecordUsage { entries: batch.to_vec() }))
            .collect()
    }

    /// Agents that were silent for so long that their guests are gone by their own deadlines (LR2).
    fn declare_silent(&self, state: &State, now: Timestamp) -> Vec<Effect> {
        if !self.is_warm(state, now) {
            return Vec::new();
        }
        let silence = state.policy().silence().as_millis();
        let is_silent = |node: &(ClusterId, NodeId)| {
            self.heard.get(node).is_some_and(|at| now.since(*at) >= silence)
        };
        let awake = state.nodes().iter().filter(|(_, node)| !node.is_silent());
        let silent = awake.clone().filter(|(id, _)| is_silent(id));
        let (awake_count, silent_count) = (awake.count(), silent.clone().count());
        // All at once: more likely the broker is cut off than every agent dead. Nothing is expired.
        let are_all = awake_count >= ALL_SILENT_MIN && silent_count == awake_count;
        if are_all && !state.leaves_out(Mutation::AllSilent) {
            return Vec::new();
        }
        let commands = silent.map(|((cluster, node), known)| Command::DeclareSilent {
            cluster: *cluster,
            node: *node,
            boot: known.boot(),
        });
        commands.map(Effect::Propose).collect()
    }
}
