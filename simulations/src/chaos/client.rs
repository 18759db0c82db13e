//! Tenants and the operator: they ask under idempotency keys, hear nothing now and then, and ask
//! again under the same key, since silence means that they do not know (LK2).

use std::collections::BTreeMap;

use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};
use sublet_protocol::ids::{
    ClusterId, KeyId, LeaseId, NodeId, Project, RequestId, Subject, TenantId,
};
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

use super::fault::Fault;
use super::queue::Event;
use super::raft::Waiter;
use super::rule::Rule;
use super::setup;
use super::world::World;

/// A client waits this long for an answer.
const PATIENCE: u64 = 15_000;
/// Requests a tenant keeps open.
const OPEN_MAX: u32 = 6;

/// Everybody who asks.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) tenants: Vec<TenantId>,
    operations: BTreeMap<u64, Operation>,
    next: u64,
}

/// Something asked until it is answered.
#[derive(Debug)]
struct Operation {
    /// Nothing for the operator.
    tenant: Option<TenantId>,
    ask: Ask,
    tries: u32,
    is_misuse: bool,
    key: u64,
}

/// What can be asked.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Submit(Box<RequestSpec>),
    Cancel(RequestId),
    Release(LeaseId),
    Revoke(LeaseId),
    Quota(TenantId, GpuMilli),
    Remove(ClusterId, NodeId),
}

impl World {
    pub(super) fn schedule_client(&mut self, client: usize) {
        let at = self.now + 2_000 + self.random.below(self.profile.client_every);
        self.queue.push(at, Event::Client { client });
    }

    /// A client does something; the one after the last tenant is the operator.
    pub(super) fn on_client(&mut self, client: usize) {
        if self.is_calm {
            return;
        }
        self.schedule_client(client);
        let Some(tenant) = self.clients.tenants.get(client).copied() else {
            return self.operate();
        };
        let roll = self.random.below(10);
        let lease = self.checker.lease_of(tenant, self.random.below(64));
        let request = self.checker.request_of(tenant, self.random.below(64));
        match (roll, lease, request) {
            (0, Some(lease), _) => self.ask(Some(tenant), Ask::Release(lease)),
            (1, _, Some(request)) => self.ask(Some(tenant), Ask::Cancel(request)),
            _submit => {
                if self.checker.open_requests(tenant) < OPEN_MAX {
                    let spec = self.spec();
                    self.ask(Some(tenant), Ask::Submit(Box::new(spec)));
                }
            }
        }
    }

    fn operate(&mut self) {
        let whose = usize::try_from(self.random.below(4)).unwrap_or(0);
        let Some(tenant) = self.clients.tenants.get(whose).copied() else { return };
        if self.random.chance(1, 8)
            && let Some(lease) = self.checker.lease_of(tenant, self.random.below(64))
        {
            return self.ask(None, Ask::Revoke(lease));
        }
        let amount = GpuMilli::new(1_000 * (2 + self.random.below(7)));
        if self.checker.held_by(tenant) > amount {
            self.faults.count(Fault::QuotaCut);
        }
        self.ask(None, Ask::Quota(tenant, amount));
    }

    fn spec(&mut self) -> RequestSpec {
        let class = match self.random.below(8) {
            0 => Class::Latency,
            1 | 2 => Class::Training,
            3 | 4 => Class::Batch,
            _most => Class::Experiment,
        };
        let on_recall = if self.random.chance(1, 2) { OnRecall::Requeue } else { OnRecall::Close };
        let count = match self.random.below(8) {
            0 => 3,
            1 | 2 => 2,
            _most => 1,
        };
        RequestSpec {
            priority: u8::try_from(self.random.below(4)).unwrap_or(0),
            count,
            placement: if self.random.chance(1, 3) { Placement::Node } else { Placement::Cluster },
            duration: Seconds::new(60 + self.random.below(5_400)),
            on_recall,
            ..plain_spec(class)
        }
    }

    /// Begins an operation; gives its number.
    pub(super) fn ask(&mut self, tenant: Option<TenantId>, ask: Ask) {
        let id = self.clients.next;
        self.clients.next += 1;
        let operation = Operation { tenant, ask, tries: 0, is_misuse: false, key: id };
        self.clients.operations.insert(id, operation);
        self.try_operation(id);
    }

    fn try_operation(&mut self, id: u64) {
        let is_forgetful = self.is_without(Rule::Lk2Unknown);
        let Some(operation) = self.clients.operations.get_mut(&id) else { return };
        operation.tries += 1;
        let tries = operation.tries;
        let number = u128::from(id) << 16 | u128::from(tries);
        let command = match operation.ask.clone() {
            // The broker draws a number for each try; the key makes them one.
            Ask::Submit(spec) => {
                let spec = *spec;
                let tenant = operation.tenant.unwrap_or_else(|| setup::name("nobody"));
                Command::SubmitRequest { request: RequestId::new(number), tenant, spec }
            }
            Ask::Cancel(request) => Command::CancelRequest { request },
            Ask::Release(lease) => Command::ReleaseLease { lease },
            Ask::Revoke(lease) => Command::RevokeLease { lease },
            Ask::Remove(cluster, node) => Command::RemoveNode { cluster, node },
            Ask::Quota(tenant, nominal) => {
                Command::SetQuota { tenant, model: setup::model(), quota: Quota::of(nominal) }
            }
        };
        let key = if is_forgetful { number } else { u128::from(operation.key) };
        let body = if operation.is_misuse { u128::MAX } else { u128::from(operation.key) };
        let key = IdempotencyKey { key: key.to_le_bytes(), body: body.to_le_bytes() };
        let actor = match operation.tenant {
            Some(tenant) => user(tenant),
            None => operator(),
        };
        self.queue.push(self.now + PATIENCE, Event::ClientTimeout { operation: id, tries });
        let offices = (0..self.replicas.len()).filter(|r| self.replicas[*r].office.is_some());
        let offices: Vec<usize> = offices.collect();
        let count = u64::try_from(offices.len()).unwrap_or(0);
        let place = usize::try_from(self.random.below(count)).unwrap_or(0);
        if let Some(replica) = offices.get(place).copied()
            && let Some(office) = &self.replicas[replica].office
        {
            let term = office.term;
            self.propose(replica, term, (actor, Some(key)), command, Waiter::Client(id));
        }
    }

    pub(super) fn on_client_timeout(&mut self, id: u64, tries: u32) {
        if self.clients.operations.get(&id).is_some_and(|one| one.tries == tries) {
            self.faults.count(Fault::Retried);
            self.try_operation(id);
        }
    }

    /// The answer, if it arrives.
    pub(super) fn answer_client(&mut self, id: u64, outcome: &Outcome) {
        let is_lost = !self.is_calm && self.random.chance(1, 10);
        if is_lost {
            return;
        }
        let Some(operation) = self.clients.operations.remove(&id) else { return };
        if operation.is_misuse {
            self.checker.misused(operation.tenant, outcome);
            return;
        }
        self.checker.acknowledged(outcome);
        if let Outcome::Refused { rejection: Rejection::KeyReused } = outcome {
            self.fail(5, "a client's own key is refused as used for something else");
        }
        let is_done = !matches!(outcome, Outcome::Refused { .. });
        let is_used = is_done && self.checker.is_key_used(operation.tenant, operation.key);
        if is_used && !self.is_calm && self.random.chance(1, 20) {
            self.faults.count(Fault::KeyMisused);
            let again = Operation { tries: 0, is_misuse: true, ..operation };
            let next = self.clients.next;
            self.clients.next += 1;
            self.clients.operations.insert(next, again);
            self.try_operation(next);
        }
    }

    /// Operations that were not answered.
    pub(super) fn open_operations(&self) -> usize {
        self.clients.operations.len()
    }
}

/// A request for one GPU.
pub(super) fn plain_spec(class: Class) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").expect("a project's name"),
        class,
        priority: 0,
        models: Vec::new(),
        count: 1,
        gpu: GpuMilli::new(500),
        memory: MiB::new(8_000),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: Seconds::new(60),
        max_price: None,
        regions: Vec::new(),
        on_recall: OnRecall::Close,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

fn subject() -> (Subject, KeyId) {
    let subject = "someone".parse().expect("a subject");
    (subject, KeyId::new("k").expect("a key's name"))
}

pub(super) fn user(tenant: TenantId) -> Actor {
    let (subject, key) = subject();
    Actor::Tenant { tenant, subject, key }
}

pub(super) fn operator() -> Actor {
    let (subject, key) = subject();
    Actor::Operator { subject, key }
}
