//! The real rules with a simulated farm round them: every change goes through `sublet_core::apply`.
//!
//! Agents here are perfect and instant: they confirm at once, stop at once and offer again at once.
//! What delays cost is the business of other runs.

use sublet_core::invariants::{self, Violation};
use sublet_core::{Applied, State, StateView, apply};
use sublet_ledger::accounts::{Accounts, PostingError};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome, Stamped};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, NodeId, Region,
    Subject, TenantId,
};
use sublet_protocol::leases::{LeaseTerms, Member};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

use super::GPUS_PER_NODE;

/// The one raft term of a replay.
const TERM: u64 = 1;
/// Offers and promises of idle time outlast every trace: ten years.
const FOR_EVER: Seconds = Seconds::new(10 * 365 * 86_400);
/// A promise that outlasts every trace.
const IDLE_FOR_EVER: IdleFor = IdleFor { p10: FOR_EVER, p50: FOR_EVER, p90: FOR_EVER };
/// Violations kept word by word; the rest is counted.
const VIOLATIONS_KEPT: usize = 10;
/// The smaller of Philly's two kinds of GPU; every job of a replay asks for it.
pub(crate) const GPU_MEMORY: MiB = MiB::new(12 * 1_024);
/// One currency unit per GPU-hour, whatever the tier.
const PRICE: MicroCredits = MicroCredits::new(MicroCredits::PER_UNIT);
/// A tenant may have as many requests open as the longest trace has jobs.
const REQUESTS_PER_TENANT: u32 = 10_000_000;
/// Each node's agent starts once.
pub(crate) const BOOT: Boot = Boot::new(1);

/// Why a replay stopped. Each is a bug here or in the rules, never in the trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rules refused something that must be allowed.
    #[error("the rules refused {command}: {rejection:?}")]
    Refused {
        /// The command's name.
        command: &'static str,
        /// What the rules said.
        rejection: Rejection,
    },
    /// A record does not balance.
    #[error("a record cannot be posted")]
    Books(#[from] PostingError),
    /// Jobs wait, nothing runs and the policy starts none of them.
    #[error("{waiting} jobs wait for ever: nothing runs and the policy starts none")]
    Stuck {
        /// How many.
        waiting: usize,
    },
}

/// A cell of a broker, without the broker.
pub(crate) struct Cell {
    state: State,
    accounts: Accounts,
    now: Timestamp,
    check_every: u64,
    /// Records that the planner has not heard of.
    untold: Vec<Record>,
    /// What was done so far.
    pub(crate) tally: Tally,
}

/// Counts of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands applied.
    pub commands: u64,
    /// Records made.
    pub events: u64,
    /// States whose invariants were checked.
    pub checks: u64,
    /// Violations found.
    pub violations: u64,
    /// The first of them.
    pub first_violations: Vec<Violation>,
    /// Groups of plans that the rules refused.
    pub groups_refused: u64,
}

impl Cell {
    /// Founds the cell at `now`; invariants are checked at every `check_every`-th command.
    pub(crate) fn found(now: Timestamp, check_every: u64) -> Result<Cell, Error> {
        let (state, accounts, tally) = (State::default(), Accounts::new(), Tally::default());
        let mut cell = Cell { state, accounts, now, check_every, tally, untold: Vec::new() };
        let policy = Policy {
            offer_ttl: FOR_EVER,
            requests_per_tenant: REQUESTS_PER_TENANT,
            offers_per_cluster: u32::MAX,
            ..Policy::default()
        };
        let id = CellId::new("replay").expect("a literal id");
        cell.done(operator(), Command::CreateCell { cell: id, policy })?;
        Ok(cell)
    }

    /// Adds a tenant that may hold up to `quota`.
    pub(crate) fn add_tenant(&mut self, tenant: TenantId, quota: GpuMilli) -> Result<(), Error> {
        self.done(operator(), Command::CreateTenant { tenant, parent: None })?;
        self.done(
            operator(),
            Command::SetQuota { tenant, model: model(), quota: Quota::of(quota) },
        )?;
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let price =
                Command::SetPrice { owner: tenant, model: model(), tier, per_gpu_hour: PRICE };
            self.done(operator(), price)?;
        }
        Ok(())
    }

    /// Adds a cluster of `nodes` nodes, the `ordinal`-th, and offers all its GPUs for ever.
    pub(crate) fn add_cluster(
        &mut self,
        cluster: ClusterId,
        owner: TenantId,
        (ordinal, nodes): (usize, u32),
    ) -> Result<(), Error> {
        for slice in self.register_cluster(cluster, owner, (ordinal, nodes))? {
            self.offer(slice, 1, IDLE_FOR_EVER)?;
        }
        Ok(())
    }

    /// Adds a cluster of `nodes` nodes, the `ordinal`-th, that offers nothing yet; returns its GPUs in
    /// the order of its nodes.
    pub(crate) fn register_cluster(
        &mut self,
        cluster: ClusterId,
        owner: TenantId,
        (ordinal, nodes): (usize, u32),
    ) -> Result<Vec<SliceId>, Error> {
        let mut slices = Vec::new();
        let region = Region::new("replay").expect("a literal id");
        let devices_max = nodes.saturating_mul(GPUS_PER_NODE);
        self.done(operator(), Command::CreateCluster { cluster, owner, region, devices_max })?;
        for number in 0..nodes {
            // Padded: offers are found in the order of their nodes' names.
            let node = NodeId::new(&format!("n-{number:06}")).expect("at most 32 characters");
            let host = HostHash([0; 16]);
            let register = Command::RegisterNode { cluster, node, boot: BOOT, host };
            self.done(Actor::Agent { cluster, node }, register)?;
            for gpu in 0..GPUS_PER_NODE {
                let device = device(ordinal, number, gpu);
                slices.push(SliceId { cluster, node, device, part: Part::Whole });
            }
        }
        Ok(slices)
    }

    /// Sets the clock forward.
    pub(crate) fn advance(&mut self, to: Timestamp) {
        self.now = self.now.max(to);
    }

    /// The time of the next command.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// The records since the last call.
    pub(super) fn untold(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.untold)
    }

    /// The state as a planner sees it.
    pub(crate) fn view(&self) -> StateView<'_> {
        StateView { state: &self.state, now: self.now }
    }

    /// The books.
    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Applies a command and posts its records; the answer may be a refusal.
    pub(crate) fn command(&mut self, actor: Actor, command: Command) -> Result<Applied, Error> {
        self.tally.commands += 1;
        let id = CommandId::new(u128::from(self.tally.commands));
        let stamped = Stamped { id, actor, now: self.now, term: TERM, key: None, command };
        let applied = apply(&mut self.state, &stamped, TERM);
        for record in &applied.records {
            self.accounts.post(record)?;
            self.tally.events += 1;
        }
        self.untold.extend(applied.records.iter().cloned());
        if self.tally.commands.is_multiple_of(self.check_every.max(1)) {
            self.check();
        }
        Ok(applied)
    }

    /// Applies a command that the rules must accept.
    pub(crate) fn done(&mut self, actor: Actor, command: Command) -> Result<Applied, Error> {
        let name = command.name();
        let applied = self.command(actor, command)?;
        match applied.outcome {
            Outcome::Refused { rejection } => Err(Error::Refused { command: name, rejection }),
            Outcome::Done { .. } | Outcome::Repeated { .. } => Ok(applied),
        }
    }

    /// Checks every invariant of the present state.
    pub(crate) fn check(&mut self) {
        self.tally.checks += 1;
        for violation in invariants::check(&self.state) {
            self.tally.violations += 1;
            if self.tally.first_violations.len() < VIOLATIONS_KEPT {
                self.tally.first_violations.push(violation);
            }
        }
    }

    /// The agents of a granted lease confirm all its members, which makes it active.
    pub(crate) fn confirm(&mut self, terms: &LeaseTerms) -> Result<(), Error> {
        let (lease, token) = (terms.lease, terms.token);
        for Member { slice, boot, .. } in terms.members.iter().copied() {
            let confirm = Command::ConfirmMember { lease, slice, token, boot };
            self.done(agent_of(slice), confirm)?;
        }
        Ok(())
    }

    /// The agents of a lease report every member stopped, which ends it, and offer the slices anew.
    pub(crate) fn stop(
        &mut self,
        terms: &LeaseTerms,
        used: Millis,
        outcome: GuestOutcome,
    ) -> Result<(), Error> {
        self.stop_all(terms, used, outcome)?;
        for member in &terms.members {
            self.offer(member.slice, member.generation + 1, IDLE_FOR_EVER)?;
        }
        Ok(())
    }

    /// The agents of a lease report every member stopped, which ends it.
    pub(crate) fn stop_all(
        &mut self,
        terms: &LeaseTerms,
        used: Millis,
        outcome: GuestOutcome,
    ) -> Result<(), Error> {
        let (lease, token) = (terms.lease, terms.token);
        for Member { slice, boot, .. } in terms.members.iter().copied() {
            let stopped = Command::ReportStopped { lease, slice, token, boot, used, outcome };
            self.done(agent_of(slice), stopped)?;
        }
        Ok(())
    }

    /// A slice's agent offers it.
    pub(crate) fn offer(
        &mut self,
        slice: SliceId,
        generation: u64,
        idle_for: IdleFor,
    ) -> Result<(), Error> {
        let capacity = Capacity {
            model: model(),
            gpu: GpuMilli::DEVICE,
            memory: GPU_MEMORY,
            cpu: CpuMilli::ZERO,
            host_memory: MiB::ZERO,
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        };
        let offer = OfferTerms {
            slice,
            generation,
            boot: BOOT,
            capacity,
            idle_for,
            recall_notice: Seconds::ZERO,
            ttl: FOR_EVER,
            division: Division::NONE,
            host: HostRoom::Slice,
        };
        self.done(agent_of(slice), Command::OfferCapacity { offer }).map(|_| ())
    }
}

/// The one GPU model of a replay.
pub(crate) fn model() -> GpuModel {
    GpuModel::new("replay").expect("a literal id")
}

/// Who speaks for a slice.
pub(crate) fn agent_of(slice: SliceId) -> Actor {
    Actor::Agent { cluster: slice.cluster, node: slice.node }
}

/// A user of `tenant`.
pub(crate) fn user_of(tenant: TenantId) -> Actor {
    Actor::Tenant { tenant, subject: subject(), key: key() }
}

fn operator() -> Actor {
    Actor::Operator { subject: subject(), key: key() }
}

fn subject() -> Subject {
    "replay".parse().expect("a literal id")
}

fn key() -> KeyId {
    KeyId::new("replay").expect("a literal id")
}

/// Unique over the farm, and in the order of cluster, node and GPU.
fn device(cluster: usize, node: u32, gpu: u32) -> DeviceId {
    let cluster = u128::try_from(cluster).unwrap_or(u128::MAX) & 0xffff_ffff;
    DeviceId::new((cluster << 64) | (u128::from(node) << 32) | u128::from(gpu))
}
