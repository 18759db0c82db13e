//! Reasons as sentences for people.

use sublet_core::matching::{Change, Explanation, Shortfall, Unmet};
use sublet_protocol::api::{Money, Time};
use sublet_protocol::commands::NackReason;
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::Currency;
use sublet_protocol::requests::{Capability, Placement, PromiseCause, WaitReason};
use sublet_protocol::units::ClockOffset;

/// Why a lease is ending or ended.
pub(crate) const fn end_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "its guest finished by itself",
        EndReason::Released => "its tenant gave it back",
        EndReason::Expired => "the bought time is over",
        EndReason::Reclaimed => "the owner wants the GPU back",
        EndReason::Preempted => "a request of a higher tier needs the GPU",
        EndReason::Revoked => "an operator ended it",
        EndReason::Budget => "the budget is used up",
        EndReason::AgentLost => "its agent fell silent or started anew",
        EndReason::StartFailed => "it could not be started",
        EndReason::GuestFailed => "its guest finished with an error",
        EndReason::DeviceFault => "the GPU is gone or sick",
        EndReason::ForeignUse => "a process that nobody accounts for uses the GPU",
        EndReason::Stalled => "it held the GPU and did nothing",
        EndReason::Moved => "it was moved to another place",
        EndReason::RolledBack => "an operator undid it",
    }
}

/// Why an agent did not start a member.
pub(crate) const fn nack_reason(reason: NackReason) -> &'static str {
    match reason {
        NackReason::StaleToken => "its agent has seen a newer grant",
        NackReason::OtherBoot => "its agent has started anew",
        NackReason::OwnerBusy => "the owner's work is there",
        NackReason::NotEmpty => "the GPU is not empty",
        NackReason::DeviceFault => "the GPU is gone or sick",
        NackReason::StartFailed => "its agent could not start the guest",
        NackReason::Draining => "its agent is being drained",
        NackReason::Workload => "the workload never came or is not the declared one",
    }
}

/// Why a request was promised a start, or another one than before.
pub(crate) const fn promise_cause(cause: PromiseCause) -> &'static str {
    match cause {
        PromiseCause::Queued => "it waits for capacity",
        PromiseCause::Earlier => "an earlier start has become possible",
        PromiseCause::OwnerReturned => "an owner took back what it was promised",
        PromiseCause::CapacityLost => "a GPU that it was promised is gone",
        PromiseCause::Outranked => "a higher tier took what it was promised",
        PromiseCause::Overrun => "a lease before it lasts longer than was bought",
        PromiseCause::TermsChanged => "a quota, a price or the policy has changed",
    }
}

/// The stable code of a reason to wait.
pub(crate) const fn wait_code(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::NoCapacity => "no_capacity",
        WaitReason::Quota => "quota",
        WaitReason::BorrowLimit => "borrow_limit",
        WaitReason::Budget => "budget",
        WaitReason::Price => "price",
        WaitReason::Model => "model",
        WaitReason::Memory => "memory",
        WaitReason::Host => "host",
        WaitReason::Duration => "duration",
        WaitReason::Region => "region",
        WaitReason::Capability => "capability",
        WaitReason::Topology => "topology",
        WaitReason::Isolation => "isolation",
        WaitReason::LenderPolicy => "lender_policy",
        WaitReason::Breaker => "breaker",
        WaitReason::Review => "review",
        WaitReason::Reservation => "reservation",
        WaitReason::Deferred => "deferred",
        WaitReason::PreemptionBudget => "preemption_budget",
    }
}

/// Why a request waits.
pub(crate) const fn wait_reason(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::NoCapacity => "everything that would fit is taken",
        WaitReason::Quota => "quotas leave too little of the model, the tenant's or its group's",
        WaitReason::BorrowLimit => "the limit on borrowed capacity is reached",
        WaitReason::Budget => "the budget of the period would not cover the worst case",
        WaitReason::Price => "every posted price is above the cap, or none is posted",
        WaitReason::Model => "no offer is of an allowed GPU model",
        WaitReason::Memory => "no offer has that much device memory",
        WaitReason::Host => "no offer has that much CPU or host memory",
        WaitReason::Duration => "no offer lasts that long",
        WaitReason::Region => "no offer is in an allowed region",
        WaitReason::Capability => "the driver or the GPU's capability does not fit",
        WaitReason::Topology => "there are enough slices, but not close enough to each other",
        WaitReason::Isolation => "the class of work does not allow the isolation on offer",
        WaitReason::LenderPolicy => "the lender does not want this tenant or use",
        WaitReason::Breaker => "a circuit breaker is open, or the node refused too many starts",
        WaitReason::Review => "a person must look at it first",
        WaitReason::Reservation => "it would delay an earlier, larger request",
        WaitReason::Deferred => {
            "it is not tried yet: it waits for better hours as it asked, or was preempted and pauses"
        }
        WaitReason::PreemptionBudget => "there were too many preemptions lately",
    }
}

/// What the tenant could change about it, if something would help.
pub(crate) const fn wait_change(reason: WaitReason) -> Option<&'static str> {
    match reason {
        WaitReason::Quota => Some("end a lease of the model, ask for less, or ask for more quota"),
        WaitReason::BorrowLimit => {
            Some("end a lease of the model, ask for less, or ask for a higher borrow limit")
        }
        WaitReason::Budget => Some(
            "ask for a shorter lease or fewer GPUs, for a larger budget, or wait for next month",
        ),
        WaitReason::Price => Some("raise or drop max_price"),
        WaitReason::Model => Some("allow more GPU models"),
        WaitReason::Memory => Some("ask for less device memory"),
        WaitReason::Host => Some("ask for less CPU or host memory"),
        WaitReason::Duration => Some("ask for a shorter lease"),
        WaitReason::Region => Some("allow more regions"),
        WaitReason::Topology => Some("ask for fewer slices or a wider placement"),
        WaitReason::Isolation => Some("choose another class of work"),
        WaitReason::NoCapacity
        | WaitReason::Capability
        | WaitReason::LenderPolicy
        | WaitReason::Breaker
        | WaitReason::Review
        | WaitReason::Reservation
        | WaitReason::Deferred
        | WaitReason::PreemptionBudget => None,
    }
}

/// One change with which a request would start now.
pub(crate) fn change(change: Change, currency: Currency) -> String {
    let what = match change {
        Change::Gpu(gpu) => format!("ask for at most {gpu} thousandths of a GPU"),
        Change::Memory(memory) => format!("ask for at most {memory} MiB of device memory"),
        Change::Cpu(cpu) => format!("ask for at most {cpu} thousandths of a core"),
        Change::HostMemory(memory) => format!("ask for at most {memory} MiB of host memory"),
        Change::Capability(capability) => lesser(capability),
        Change::MaxPrice(price) => {
            format!("raise max_price to {} per GPU-hour", Money::new(price, currency))
        }
        Change::Model(model) => format!("allow the model {model}, too"),
        Change::Region(region) => format!("allow the region {region}, too"),
        Change::Placement(Placement::Island) => "let placement be island".to_owned(),
        Change::Placement(Placement::Node) => "let placement be node".to_owned(),
        Change::Placement(Placement::Cluster) => "let placement be cluster".to_owned(),
        Change::Duration(duration) => format!("ask for at most {duration} s"),
        Change::Count(count) => format!("ask for at most {count} slices"),
        Change::AtAnyTime => "do not wait for better hours".to_owned(),
    };
    format!("{what}: it would start now")
}

/// What of driver and code may be asked for.
fn lesser(capability: Capability) -> String {
    let driver = capability.driver.map_or_else(
        || "any driver".to_owned(),
        |driver| format!("driver {}.{} or newer", driver.major, driver.minor),
    );
    let compute = capability.compute.map_or_else(
        || "any compute capability".to_owned(),
        |compute| format!("compute capability {}.{} or higher", compute.major, compute.minor),
    );
    format!("allow {driver} and {compute}")
}

/// What the nearest offer lacks.
pub(crate) fn shortfall(short: Shortfall) -> String {
    match short {
        Shortfall::Gpu(gpu) => format!("{gpu}/1000 of a GPU short"),
        Shortfall::Memory(memory) => format!("{memory} MiB short"),
        Shortfall::Cpu(cpu) => format!("{cpu}/1000 of a core short"),
        Shortfall::HostMemory(memory) => format!("{memory} MiB of host memory short"),
        Shortfall::Time(time) => format!("{time} s short"),
    }
}

/// What of a request nothing that is known could meet.
pub(crate) fn unmet(unmet: Unmet, currency: Currency) -> String {
    match unmet {
        Unmet::NodeTooSmall(most) => format!(
            "no node has ever offered more than {most} GPUs: with this count and placement it \
             cannot start before a larger one does"
        ),
        Unmet::ClusterTooSmall(most) => format!(
            "no cluster may offer more than {most} GPUs: with this count it cannot start before a \
             larger one joins"
        ),
        Unmet::MemoryTooSmall(most) => format!(
            "no GPU on offer or on lease has more than {most} MiB: with this memory it cannot start \
             before a larger one is offered"
        ),
        Unmet::CpuTooSmall(most) => format!(
            "no GPU on offer or on lease comes with more than {most}/1000 of a core: with this cpu \
             it cannot start before a larger host is offered"
        ),
        Unmet::HostMemoryTooSmall(most) => format!(
            "no GPU on offer or on lease comes with more than {most} MiB of host memory: with this \
             host_memory it cannot start before a larger host is offered"
        ),
        Unmet::NoRegion => {
            "no cluster is in a region that it allows: it cannot start before one joins \
                            there"
                .to_owned()
        }
        Unmet::Unpriced => "no price is posted for what it allows: it cannot start before an \
                            operator posts one"
            .to_owned(),
        Unmet::PricesAbove(lowest) => format!(
            "every posted price is above max_price: the lowest is {} per GPU-hour",
            Money::new(lowest, currency)
        ),
    }
}

/// Why a node gets no new leases whose wall clock is off by `offset`.
pub(crate) fn clock_far(offset: ClockOffset) -> String {
    let size = offset.size().as_seconds_floor();
    let way = if offset.get() < 0 { "behind" } else { "ahead" };
    format!("the clock of the machine is {size} s {way}, so nothing new is put there")
}

/// Why a request waits, with its numbers; `detail` says more of the reason, if there is more to say.
pub(crate) fn explanation(explanation: &Explanation, detail: Option<&str>) -> String {
    let Explanation { reason, position, needed, fitting, pledged, deferred_until, .. } =
        explanation;
    let mut text = wait_reason(*reason).to_owned();
    if let Some(detail) = detail {
        detail.clone_into(&mut text);
    }
    if let Some(until) = deferred_until {
        text = format!("{text}: not before {}", Time(*until));
    }
    if *pledged > 0 {
        text = format!("{pledged} of {needed} slices are being freed for it");
    }
    let place = match reason {
        // It is in no line.
        WaitReason::Deferred => String::new(),
        _other => format!("; place {position} in the queue"),
    };
    format!("{text}; it needs {needed}, {fitting} on offer fit{place}")
}
