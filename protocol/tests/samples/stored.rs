//! Commands, outcomes and records.

use sublet_protocol::capacity::Part;
use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, GuestOutcome, IdempotencyKey, NackReason, Outcome, PlanGroup,
    PlanMember, Recall, ReclaimCause, Stamped, Usage,
};
use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{CellId, CommandId, KeyId, Region, RollbackId, Subject};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Account, Line, MicroCredits, Price};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::{Basis, Budget, Quota, Reclaim, TenantTerms, Weight};
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{PromiseCause, SpecError, Tier};
use sublet_protocol::rollbacks::{ChargeStanding, DropCause, RollbackSelector};
use sublet_protocol::units::{GpuMilli, GpuTime, Millis, Seconds, Timestamp};

use super::{
    boot, calendar, cluster, host, lease, model, node, offer, owner, request, slice, spec, tenant,
    terms, token, whole,
};

fn key_id() -> KeyId {
    KeyId::new("key-1").unwrap()
}

fn subject() -> Subject {
    "ada@example.com".parse().unwrap()
}

fn key() -> IdempotencyKey {
    IdempotencyKey { key: [1; 16], body: [2; 16] }
}

fn cell() -> CellId {
    CellId::new("eu-1").unwrap()
}

fn region() -> Region {
    Region::new("eu-north").unwrap()
}

fn rollback() -> RollbackId {
    RollbackId::new(3)
}

fn selector() -> RollbackSelector {
    RollbackSelector {
        tenant: Some(tenant()),
        cluster: Some(cluster()),
        model: Some(model()),
        from: Some(Timestamp::new(1_700_000_000_000)),
        until: Some(Timestamp::new(1_700_003_600_000)),
        requested_by: Some(subject()),
        plan: Some(CommandId::new(77)),
        predictor: Some(4),
        rollback: Some(RollbackId::new(2)),
    }
}

fn rollback_events() -> Vec<Event> {
    let (rollback, lease) = (rollback(), lease());
    let settlement = Settlement {
        billed: Millis::new(3_600_000),
        cost: MicroCredits::new(2_000_000),
        fee: MicroCredits::new(100_000),
    };
    let turn = ChargeTurn {
        rollback,
        of: 900,
        standing: ChargeStanding::Reversed,
        lease,
        request: request(),
        tenant: tenant(),
        owner: owner(),
        granted_at: Timestamp::new(1_700_000_000_000),
        gpu: GpuMilli::new(1_000),
        price: Price { per_gpu_hour: MicroCredits::new(2_000_000), version: 1 },
        settlement,
        lines: vec![
            Line::credit(Account::Expense(tenant()), MicroCredits::new(2_000_000)),
            Line::debit(Account::Revenue(owner()), MicroCredits::new(1_900_000)),
            Line::debit(Account::Fee, MicroCredits::new(100_000)),
        ],
    };
    vec![
        Event::RollbackProposed {
            rollback,
            proposed_by: subject(),
            selector: selector(),
            leases: vec![lease],
            money: MicroCredits::new(2_000_000),
            digest: [7; 32],
            approve_by: Some(Timestamp::new(1_700_086_400_000)),
        },
        Event::RollbackApproved { rollback, approved_by: subject() },
        Event::RollbackDropped { rollback, cause: DropCause::Expired },
        Event::LeaseRolledBack {
            rollback,
            lease,
            tenant: tenant(),
            standing: ChargeStanding::Charged,
        },
        Event::ChargeTurned { turn },
        Event::RollbackAdvanced { rollback, done: 64, untouched: 1 },
        Event::RollbackFinished { rollback },
    ]
}

fn quota() -> Quota {
    Quota {
        nominal: GpuMilli::new(16_000),
        borrow_limit: Some(GpuMilli::new(4_000)),
        lend_limit: Some(GpuMilli::new(8_000)),
        basis: Basis::Hardware,
    }
}

fn tenant_terms() -> TenantTerms {
    let budget = Budget {
        gpu_time: Some(GpuTime::new(3_600_000_000_000)),
        money: Some(MicroCredits::new(5_000_000_000)),
    };
    TenantTerms { weight: Weight::new(2_000), budget, reclaim: Reclaim::LowerPriority }
}

fn actors() -> [Actor; 4] {
    [
        Actor::Tenant { tenant: tenant(), subject: subject(), key: key_id() },
        Actor::Operator { subject: subject(), key: key_id() },
        Actor::Agent { cluster: cluster(), node: node() },
        Actor::Leader,
    ]
}

fn all_commands() -> Vec<Command> {
    let (lease, request, token, boot, slice) = (lease(), request(), token(), boot(), whole());
    let member = PlanMember { slice, generation: 5 };
    let grant = PlanGroup::Grant { request, members: vec![member] };
    let (victims, freed) = (vec![lease], vec![slice]);
    let preempt = PlanGroup::Preempt { request, victims, freed, members: vec![member] };
    vec![
        Command::CreateCell { cell: cell(), policy: Policy::default() },
        Command::SetPolicy { policy: Policy::default() },
        Command::CreateTenant { tenant: tenant(), parent: Some(owner()) },
        Command::SetQuota { tenant: tenant(), model: model(), quota: quota() },
        Command::CreateCluster {
            cluster: cluster(),
            owner: owner(),
            region: region(),
            devices_max: 64,
        },
        Command::SetPrice {
            owner: owner(),
            model: model(),
            tier: Tier::Standard,
            per_gpu_hour: MicroCredits::new(2_000_000),
        },
        Command::RegisterNode { cluster: cluster(), node: node(), boot, host: host() },
        Command::OfferCapacity { offer: offer() },
        Command::RescindOffer { slice, generation: 5, boot, reason: RescindReason::Owner },
        Command::ConfirmMember { lease, slice, token, boot },
        Command::RefuseMember { lease, slice, token, boot, reason: NackReason::OwnerBusy },
        Command::ReportStopped {
            lease,
            slice,
            token,
            boot,
            used: Millis::new(3_600_000),
            outcome: GuestOutcome::Exited { code: -1 },
        },
        Command::ReclaimSlice { slice, token, boot, cause: ReclaimCause::OwnerArrived },
        Command::SubmitRequest { request, tenant: tenant(), spec: spec() },
        Command::CancelRequest { request },
        Command::ReleaseLease { lease },
        Command::RevokeLease { lease },
        Command::CommitPlan { groups: vec![grant, preempt] },
        Command::RecordUsage { entries: vec![Usage { lease, used: Millis::new(60_000) }] },
        Command::DeclareSilent { cluster: cluster(), node: node(), boot },
        Command::Sweep,
        Command::SealTail,
        Command::SetTerms { tenant: tenant(), terms: tenant_terms() },
        Command::MoveTenant { tenant: tenant(), parent: Some(owner()) },
        Command::ReportCheckpoint { lease },
        Command::RecallLease {
            lease,
            recall: Recall::Planned { by: Timestamp::new(1_700_000_300_000) },
        },
        Command::DeclareStalled { lease, unused: Millis::new(7_200_000) },
        Command::SetCalendar { tenant: tenant(), calendar: Some(calendar()) },
        Command::RemoveNode { cluster: cluster(), node: node() },
        Command::RaiseFeatureLevel { level: 2 },
        Command::ClosePeriod { until: Timestamp::new(1_775_001_600_000) },
        Command::NameTenant { tenant: tenant(), name: Some("Zürich / 团队".parse().unwrap()) },
        Command::EnlistBroker { broker: 4 },
        Command::ProposeRollback {
            rollback: rollback(),
            selector: selector(),
            leases: vec![lease],
            money: MicroCredits::new(2_000_000),
            digest: [7; 32],
        },
        Command::ApproveRollback { rollback: rollback(), digest: [7; 32] },
        Command::RejectRollback { rollback: rollback() },
        Command::AdvanceRollback { rollback: rollback(), done: 64 },
    ]
}

pub fn commands() -> Vec<(String, Stamped)> {
    let stamped = |(number, command): (usize, Command)| {
        let name = command.name().to_owned();
        let stamped = Stamped {
            id: CommandId::new(77),
            actor: actors()[number % 4].clone(),
            now: Timestamp::new(1_700_000_000_000),
            term: 3,
            key: (number % 2 == 0).then(key),
            command,
        };
        (name, stamped)
    };
    let all: Vec<_> = all_commands().into_iter().enumerate().map(stamped).collect();
    assert_eq!(all.len(), 37, "a command has no sample");
    [all, promises()].concat()
}

/// What a plan says besides grants and preemptions.
fn promises() -> Vec<(String, Stamped)> {
    let (request, start) = (request(), Timestamp::new(1_700_003_600_000));
    let not_before = Timestamp::new(1_700_000_600_000);
    let (slices, cause) = (vec![whole()], PromiseCause::Queued);
    let promise = PlanGroup::Promise { request, start, not_before, slices, cause };
    let withdraw = PlanGroup::Withdraw { request, cause: PromiseCause::OwnerReturned };
    let command = Command::CommitPlan { groups: vec![promise, withdraw] };
    let (id, now) = (CommandId::new(78), Timestamp::new(1_700_000_000_000));
    let stamped = Stamped { id, actor: Actor::Leader, now, term: 3, key: None, command };
    vec![("commit_plan_promise".into(), stamped)]
}

pub fn outcomes() -> Vec<(String, Outcome)> {
    let groups = vec![
        GroupOutcome::Granted { lease: lease() },
        GroupOutcome::Pledged,
        GroupOutcome::Refused { rejection: Rejection::SlicePledged },
    ];
    let rejection = Rejection::SpecInvalid(SpecError::Duration);
    let promised = GroupOutcome::Promised;
    let overtaken = GroupOutcome::Overtaken { rejection: Rejection::OfferMissing, by: 299 };
    vec![
        ("done".into(), Outcome::Done { first: 300, count: 3, groups }),
        ("promised".into(), Outcome::Done { first: 300, count: 1, groups: vec![promised] }),
        ("overtaken".into(), Outcome::Done { first: 300, count: 0, groups: vec![overtaken] }),
        ("repeated".into(), Outcome::Repeated { first: 70_000 }),
        ("refused".into(), Outcome::Refused { rejection }),
    ]
}

fn set_up_events() -> Vec<Event> {
    let price = Price { per_gpu_hour: MicroCredits::new(2_000_000), version: 4 };
    vec![
        Event::CellCreated { cell: cell(), epoch: 1, policy: Policy::default() },
        Event::PolicySet { policy: Policy::default() },
        Event::TenantCreated { tenant: tenant(), parent: None },
        Event::QuotaSet { tenant: tenant(), model: model(), quota: quota() },
        Event::ClusterCreated {
            cluster: cluster(),
            owner: owner(),
            region: region(),
            devices_max: 64,
        },
        Event::PriceSet { owner: owner(), model: model(), tier: Tier::Reserved, price },
        Event::NodeRegistered { cluster: cluster(), node: node(), boot: boot(), host: host() },
        Event::NodeSilenced { cluster: cluster(), node: node(), boot: boot() },
        Event::CapacityOffered { offer: offer(), expires_at: Timestamp::new(1_700_000_900_000) },
        Event::OfferRescinded {
            slice: slice(Part::Mig { profile: 19, start: 6 }),
            generation: 5,
            reason: RescindReason::Expired,
        },
    ]
}

fn demand_events() -> Vec<Event> {
    let (request, tenant) = (request(), tenant());
    let slices = vec![whole(), slice(Part::Share { index: 2 })];
    vec![
        Event::RequestSubmitted { request, tenant, spec: spec() },
        Event::RequestRefused {
            request,
            tenant,
            spec: spec(),
            rejection: Rejection::QuotaTooSmall,
        },
        Event::RequestCancelled { request, tenant },
        Event::RequestRequeued { request, tenant, reason: EndReason::Reclaimed },
        Event::RequestClosed { request, tenant, reason: EndReason::Completed },
        Event::CapacityPledged { request, slices, until: Timestamp::new(1_700_000_600_000) },
        Event::PledgeEnded { request },
    ]
}

fn lease_events() -> Vec<Event> {
    let (lease, slice) = (lease(), whole());
    let hold = MicroCredits::new(48_000_000);
    let hold_lines = vec![
        Line::debit(Account::Expense(tenant()), hold),
        Line::credit(Account::Hold(tenant()), hold),
    ];
    let end_lines = vec![
        Line::debit(Account::Hold(tenant()), hold),
        Line::credit(Account::Expense(tenant()), MicroCredits::new(46_000_000)),
        Line::credit(Account::Revenue(owner()), MicroCredits::new(1_899_999)),
        Line::credit(Account::Fee, MicroCredits::new(100_000)),
        Line::credit(Account::Rounding, MicroCredits::new(1)),
    ];
    let settlement = Settlement {
        billed: Millis::new(3_600_000),
        cost: MicroCredits::new(2_000_000),
        fee: MicroCredits::new(100_000),
    };
    let used = Millis::new(3_600_001);
    vec![
        Event::LeaseGranted { terms: terms(), lines: hold_lines },
        Event::MemberConfirmed { lease, slice },
        Event::MemberRefused { lease, slice, reason: NackReason::NotEmpty },
        Event::LeaseActivated { lease, ends_at: Timestamp::new(1_700_086_400_000) },
        Event::UsageRecorded { lease, used },
        Event::LeaseEnding {
            lease,
            cause: EndReason::Preempted,
            deadline: Timestamp::new(1_700_000_120_000),
        },
        Event::MemberStopped { lease, slice, used, outcome: GuestOutcome::Stopped },
        Event::LeaseEnded {
            lease,
            request: request(),
            tenant: tenant(),
            owner: owner(),
            reason: EndReason::Preempted,
            settlement,
            lines: end_lines,
        },
        Event::TailSealed { first: 4_096 },
        Event::KeyUsed { tenant: Some(tenant()), key: key(), first: 12 },
        Event::KeysForgotten { before: Timestamp::new(1_699_395_200_000) },
        Event::NodeFenced { cluster: cluster(), node: node(), other: host() },
        Event::TermsSet { tenant: tenant(), terms: tenant_terms() },
        Event::TenantMoved { tenant: tenant(), parent: Some(owner()) },
        Event::TenantOverAdmitted {
            tenant: tenant(),
            model: model(),
            excess: GpuMilli::new(2_000),
        },
        Event::LeaseCapped { lease, billed_max: Millis::new(1_800_000) },
        Event::CheckpointReported { lease },
        Event::LeaseRecalled { lease, by: Timestamp::new(1_700_000_300_000) },
        Event::LeaseEndAnnounced {
            lease,
            cause: EndReason::Stalled,
            at: Timestamp::new(1_700_000_120_000),
        },
        Event::StartPromised {
            request: request(),
            tenant: tenant(),
            start: Timestamp::new(1_700_003_600_000),
            not_before: Timestamp::new(1_700_000_600_000),
            slices: vec![slice],
            cause: PromiseCause::Overrun,
        },
        Event::PromiseWithdrawn {
            request: request(),
            tenant: tenant(),
            cause: PromiseCause::OwnerReturned,
        },
        Event::CalendarSet { tenant: tenant(), calendar: Some(calendar()) },
        Event::NodeRemoved { cluster: cluster(), node: node() },
        Event::CellRestored { epoch: 1 },
        Event::FeatureLevelRaised { level: 2 },
        Event::PeriodClosed {
            from: Timestamp::new(1_772_323_200_000),
            until: Timestamp::new(1_775_001_600_000),
        },
        Event::TenantNamed { tenant: tenant(), is_named: true },
        Event::BrokerEnlisted { broker: 4 },
    ]
}

pub fn records() -> Vec<(String, Record)> {
    let events = [set_up_events(), demand_events(), lease_events(), rollback_events()].concat();
    let record = |(number, event): (usize, Event)| {
        let name = event.name().to_owned();
        let record = Record {
            index: 1_000,
            term: 3,
            time: Timestamp::new(1_700_000_000_000).after(Seconds::new(1)),
            cause: CommandId::new(77),
            actor: actors()[number % 4].clone(),
            event,
        };
        (name, record)
    };
    let all: Vec<_> = events.into_iter().enumerate().map(record).collect();
    assert_eq!(all.len(), 52, "an event has no sample");
    all
}
