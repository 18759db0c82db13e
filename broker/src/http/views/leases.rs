//! A lease, folded from its records: live and ended ones alike.

use std::collections::BTreeMap;

use sublet_protocol::api::{
    AnnouncedEnd, LeaseSlice, LeaseState, LeaseView, Money, PriceFrozen, StateReason, Time,
};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::events::Event;
use sublet_protocol::leases::{EndReason, LeaseTerms, Member};
use sublet_protocol::money::{Currency, MicroCredits, cost_half_even};
use sublet_protocol::records::Record;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::Millis;

use super::{spec, texts};

/// The lease that these records are about, as it was after the last of them; nothing if the first is
/// not that of its grant.
pub(crate) fn lease(records: &[Record], currency: Currency) -> Option<LeaseView> {
    let (first, rest) = records.split_first()?;
    let Event::LeaseGranted { terms, .. } = &first.event else { return None };
    let mut fold = Fold {
        view: granted(terms, first, currency),
        terms,
        used: Millis::ZERO,
        exits: BTreeMap::new(),
        settled: None,
    };
    for record in rest {
        fold.record(record);
        fold.view.version += 1;
        fold.view.updated_at = Time(record.time);
    }
    Some(fold.finish(currency))
}

struct Fold<'a> {
    view: LeaseView,
    terms: &'a LeaseTerms,
    used: Millis,
    exits: BTreeMap<SliceId, i32>,
    settled: Option<MicroCredits>,
}

impl Fold<'_> {
    fn record(&mut self, record: &Record) {
        let view = &mut self.view;
        match &record.event {
            Event::MemberRefused { reason: why, .. } => {
                view.state_reason = reason("refused", texts::nack_reason(*why), record);
            }
            Event::LeaseActivated { ends_at, .. } => {
                view.state = LeaseState::Active;
                view.active_since = Some(Time(record.time));
                view.ends_at = Some(Time(*ends_at));
                view.state_reason = reason("active", "its guest may run", record);
            }
            Event::UsageRecorded { used, .. } => self.used = self.used.max(*used),
            Event::LeaseEndAnnounced { cause, at, .. } => {
                view.announced_end = Some(AnnouncedEnd { reason: *cause, at: Time(*at) });
            }
            Event::LeaseEnding { cause, deadline, .. } => {
                view.state = LeaseState::Ending;
                view.announced_end = None;
                view.stop_by = Some(Time(*deadline));
                view.end_reason = Some(*cause);
                view.state_reason = end(*cause, record);
            }
            Event::MemberStopped { slice, used, outcome, .. } => {
                self.used = self.used.max(*used);
                let stopped = view.slices.iter_mut().filter(|of| is_slice(of, slice));
                stopped.for_each(|of| of.stopped = true);
                if let GuestOutcome::Exited { code } = outcome {
                    self.exits.insert(*slice, *code);
                }
            }
            Event::CheckpointReported { .. } => view.checkpoint_at = Some(Time(record.time)),
            Event::LeaseRecalled { by, .. } => {
                view.recalled_by = Some(Time(*by));
                let text = "its owner recalls it: save the work and end before recalled_by";
                view.state_reason = reason("recalled", text, record);
            }
            Event::LeaseEnded { reason, settlement, .. } => {
                view.lost_gpu_seconds = lost(view, self.terms, *reason, record.time);
                view.state = LeaseState::Ended;
                view.announced_end = None;
                view.ended_at = Some(Time(record.time));
                view.end_reason = Some(*reason);
                view.state_reason = end(*reason, record);
                view.slices.iter_mut().for_each(|slice| slice.stopped = true);
                self.settled = Some(settlement.cost);
            }
            Event::ChargeTurned { turn } => {
                self.settled = Some(match turn.standing {
                    ChargeStanding::Reversed => MicroCredits::ZERO,
                    ChargeStanding::Charged => turn.settlement.cost,
                });
            }
            _other => {}
        }
    }

    fn finish(mut self, currency: Currency) -> LeaseView {
        let billed = self.used.min(self.terms.duration.as_millis());
        let so_far = cost_half_even(self.terms.price, self.terms.gpu_total(), billed);
        // The cost of a part of the duration is at most the hold, which was written.
        let cost = self.settled.or(so_far).unwrap_or(self.terms.hold);
        self.view.cost = Money::new(cost, currency);
        self.view.used = self.used.as_seconds_floor().get();
        let failed = self.exits.values().find(|code| **code != 0);
        self.view.exit_code = failed.or(self.exits.values().next()).copied();
        self.view
    }
}

/// Work that was not saved when a lease was taken away: whole GPU-seconds, rounded up.
fn lost(
    view: &LeaseView,
    terms: &LeaseTerms,
    reason: EndReason,
    ended: sublet_protocol::units::Timestamp,
) -> Option<u64> {
    let since = view.active_since.filter(|_| reason.is_recall())?.0;
    let saved = view.checkpoint_at.map_or(since, |at| at.0.max(since));
    let span = ended.since(saved).get().saturating_mul(terms.gpu_total().get());
    Some(span.div_ceil(1_000_000))
}

fn reason(code: &str, text: &str, record: &Record) -> StateReason {
    StateReason { code: code.to_owned(), text: text.to_owned(), since: Time(record.time) }
}

fn end(why: EndReason, record: &Record) -> StateReason {
    reason(why.code(), texts::end_reason(why), record)
}

fn granted(terms: &LeaseTerms, record: &Record, currency: Currency) -> LeaseView {
    let time = Time(record.time);
    LeaseView {
        id: terms.lease,
        request: terms.request,
        tenant: terms.tenant,
        owner: terms.owner,
        project: terms.project,
        state: LeaseState::Granted,
        state_reason: reason("granted", "its agents prepare it", record),
        created_at: time,
        updated_at: time,
        version: 1,
        attempt: terms.attempt,
        class: terms.class,
        tier: terms.tier(),
        cluster: terms.cluster,
        model: terms.model,
        gpu: terms.gpu.get(),
        slices: terms.members.iter().map(slice).collect(),
        price: PriceFrozen {
            per_gpu_hour: Money::new(terms.price.per_gpu_hour, currency),
            version: terms.price.version,
        },
        duration: terms.duration.get(),
        hold: Money::new(terms.hold, currency),
        used: 0,
        cost: Money::new(MicroCredits::ZERO, currency),
        grace: terms.grace.get(),
        active_since: None,
        ends_at: None,
        announced_end: None,
        recalled_by: None,
        checkpoint_at: None,
        lost_gpu_seconds: None,
        stop_by: None,
        ended_at: None,
        end_reason: None,
        exit_code: None,
        workload: terms.workload.as_ref().map(spec::workload),
    }
}

fn slice(member: &Member) -> LeaseSlice {
    let Member { slice, capacity, .. } = member;
    LeaseSlice {
        cluster: slice.cluster,
        node: slice.node,
        device: slice.device,
        part: slice.part,
        gpu: capacity.gpu.get(),
        memory: capacity.memory.get(),
        cpu: capacity.cpu.get(),
        host_memory: capacity.host_memory.get(),
        isolation: capacity.isolation,
        stopped: false,
    }
}

fn is_slice(view: &LeaseSlice, slice: &SliceId) -> bool {
    let SliceId { cluster, node, device, part } = slice;
    (view.cluster, view.node, view.device, view.part) == (*cluster, *node, *device, *part)
}
