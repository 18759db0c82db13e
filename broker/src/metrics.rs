//! The broker's metrics: names, types, help, and the calls that set them. Labels come from closed
//! sets; no ids. Each has a row in `docs/metrics.md`.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use sublet_core::State;
use sublet_core::leader::{ClockState, LeakKind};
use sublet_protocol::commands::{Command, GroupOutcome, Outcome};
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::ClockOffset;

use crate::space::Room;

/// Counter. Commands applied, by `command` and `outcome` (`done`, `repeated`, `refused`).
pub const COMMANDS: &str = "sublet_broker_commands_total";
/// Counter. Commands refused, by `code` of the refusal.
pub const REFUSALS: &str = "sublet_broker_refusals_total";
/// Counter. Records journalled.
pub const RECORDS: &str = "sublet_broker_records_total";
/// Histogram. Seconds to apply one log entry, journal included.
pub const APPLY: &str = "sublet_broker_apply_duration_seconds";
/// Counter. Times the invariants were checked.
pub const CHECKED: &str = "sublet_broker_invariants_checked_total";
/// Counter. Invariants found broken, by `invariant`.
pub const VIOLATIONS: &str = "sublet_broker_invariant_violations_total";
/// Counter. Leases granted.
pub const GRANTED: &str = "sublet_broker_leases_granted_total";
/// Counter. Leases ended, by `reason`.
pub const ENDED: &str = "sublet_broker_leases_ended_total";
/// Gauge. Leases that have not ended.
pub const LEASES: &str = "sublet_broker_live_leases";
/// Gauge. Requests that wait.
pub const WAITING: &str = "sublet_broker_waiting_requests";
/// Gauge. Slices that can be leased.
pub const OFFERS: &str = "sublet_broker_open_offers";
/// Gauge. 1 on the leader.
pub const LEADING: &str = "sublet_broker_is_leader";
/// Counter. Messages from agents, by `kind`.
pub const MESSAGES: &str = "sublet_broker_agent_messages_total";
/// Counter. Messages from agents that were repetitions.
pub const REPEATED: &str = "sublet_broker_agent_messages_repeated_total";
/// Counter. Messages from agents refused before the rules saw them, by `why`.
pub const REFUSED: &str = "sublet_broker_agent_messages_refused_total";
/// Counter. Messages to agents, by `kind` and `result` (`sent`, `failed`).
pub const SENT: &str = "sublet_broker_messages_sent_total";
/// Histogram. Seconds to make one plan.
pub const PLAN: &str = "sublet_broker_plan_duration_seconds";
/// Counter. Groups of plans judged, by `outcome` (`granted`, `pledged`, `promised`, `refused`,
/// `overtaken`).
pub const GROUPS: &str = "sublet_broker_plan_groups_total";
/// Histogram. Seconds by which an agent's wall clock is off, whichever way, at each reading.
pub const CLOCK: &str = "sublet_broker_agent_clock_offset_seconds";
/// Gauge. Agents whose wall clock was measured, by `state` (`right`, `off`, `far`).
pub const CLOCKS: &str = "sublet_broker_agent_clocks";
/// Gauge. Members of leases of which broker, agent and GPU do not say the same, by `kind` (`not_held`,
/// `not_leased`, `not_used`), on the leader.
pub const LEAKS: &str = "sublet_broker_leaks";
/// Gauge. Nodes that have not reported what they hold for two cycles, on the leader.
pub const UNRECONCILED: &str = "sublet_broker_unreconciled_nodes";
/// Counter. Sealed segments of the ledger that were read again, by `result` (`good`, `bad`).
pub const SCRUBBED: &str = "sublet_ledger_segments_read_total";
/// Counter. Bytes of guest output lost on their way.
pub const OUTPUT_LOST: &str = "sublet_broker_output_lost_bytes_total";
/// Gauge. Bytes that this broker may still write on the disk of its data folder.
pub const DISK_FREE: &str = "sublet_broker_disk_free_bytes";
/// Gauge. What that disk has room for: 2 everything, 1 everything but new grants, 0 what ends something.
pub const DISK_ROOM: &str = "sublet_broker_disk_room";
/// Counter. Calls of the HTTP API, by `route` (as in the OpenAPI document, or `none`) and `status`.
pub const CALLS: &str = "sublet_broker_http_calls_total";
/// Histogram. Seconds until the answer to a call begins, by `route`.
pub const CALL: &str = "sublet_broker_http_call_duration_seconds";

/// Tells the recorder what each metric means. To be called once it is installed.
pub fn describe() {
    describe_counter!(COMMANDS, "Commands applied, by command and outcome.");
    describe_counter!(REFUSALS, "Commands refused, by code of the refusal.");
    describe_counter!(RECORDS, "Records journalled.");
    describe_histogram!(APPLY, Unit::Seconds, "Time to apply one log entry, journal included.");
    describe_counter!(CHECKED, "Times the invariants were checked.");
    describe_counter!(VIOLATIONS, "Invariants found broken, by invariant.");
    describe_counter!(GRANTED, "Leases granted.");
    describe_counter!(ENDED, "Leases ended, by reason.");
    describe_gauge!(LEASES, "Leases that have not ended.");
    describe_gauge!(WAITING, "Requests that wait.");
    describe_gauge!(OFFERS, "Slices that can be leased.");
    describe_gauge!(LEADING, "1 on the leader.");
    describe_counter!(MESSAGES, "Messages from agents, by kind.");
    describe_counter!(REPEATED, "Messages from agents that were repetitions.");
    describe_counter!(REFUSED, "Messages from agents refused before the rules saw them, by why.");
    describe_counter!(SENT, "Messages to agents, by kind and result.");
    describe_histogram!(PLAN, Unit::Seconds, "Time to make one plan.");
    describe_counter!(GROUPS, "Groups of plans judged, by outcome.");
    describe_histogram!(CLOCK, Unit::Seconds, "By how much an agent's wall clock is off.");
    describe_gauge!(CLOCKS, "Agents whose wall clock was measured, by state.");
    describe_gauge!(LEAKS, "Members of leases that broker, agent and GPU disagree on, by kind.");
    describe_gauge!(UNRECONCILED, "Nodes that have not said for two cycles what they hold.");
    describe_counter!(SCRUBBED, "Sealed segments that were read again, by result.");
    describe_counter!(CALLS, "Calls of the HTTP API, by route and status.");
    describe_histogram!(CALL, Unit::Seconds, "Time until the answer to a call begins, by route.");
    describe_gauge!(DISK_FREE, Unit::Bytes, "Bytes that may still be written on the data disk.");
    describe_gauge!(DISK_ROOM, "What the data disk has room for: 2 all, 1 no grants, 0 only ends.");
    describe_counter!(OUTPUT_LOST, Unit::Bytes, "Bytes of guest output lost on their way.");
}

pub(crate) fn command_applied(command: &Command, outcome: &Outcome) {
    let label = match outcome {
        Outcome::Done { .. } => "done",
        Outcome::Repeated { .. } => "repeated",
        Outcome::Refused { rejection } => {
            counter!(REFUSALS, "code" => rejection.code()).increment(1);
            "refused"
        }
    };
    counter!(COMMANDS, "command" => command.name(), "outcome" => label).increment(1);
}

pub(crate) fn entry_applied(took: std::time::Duration, records: usize) {
    histogram!(APPLY).record(took.as_secs_f64());
    counter!(RECORDS).increment(u64::try_from(records).unwrap_or(u64::MAX));
}

pub(crate) fn invariants_checked() {
    counter!(CHECKED).increment(1);
}

pub(crate) fn invariant_violated(invariant: u8) {
    counter!(VIOLATIONS, "invariant" => invariant.to_string()).increment(1);
}

pub(crate) fn lease_granted() {
    counter!(GRANTED).increment(1);
}

pub(crate) fn lease_ended(reason: EndReason) {
    counter!(ENDED, "reason" => reason.code()).increment(1);
}

pub(crate) fn state_is(state: &State) {
    gauge!(LEASES).set(float(state.leases().len()));
    gauge!(WAITING).set(float(state.waiting().len()));
    gauge!(OFFERS).set(float(state.offers().len()));
}

pub(crate) fn leading(is_leader: bool) {
    gauge!(LEADING).set(if is_leader { 1.0 } else { 0.0 });
}

pub(crate) fn message_received(kind: &'static str) {
    counter!(MESSAGES, "kind" => kind).increment(1);
}

pub(crate) fn message_repeated() {
    counter!(REPEATED).increment(1);
}

pub(crate) fn message_refused(why: &'static str) {
    counter!(REFUSED, "why" => why).increment(1);
}

pub(crate) fn message_sent(kind: &'static str, is_sent: bool) {
    let result = if is_sent { "sent" } else { "failed" };
    counter!(SENT, "kind" => kind, "result" => result).increment(1);
}

pub(crate) fn planned(took: std::time::Duration) {
    histogram!(PLAN).record(took.as_secs_f64());
}

pub(crate) fn group_judged(outcome: &GroupOutcome) {
    let outcome = match outcome {
        GroupOutcome::Granted { .. } => "granted",
        GroupOutcome::Pledged => "pledged",
        GroupOutcome::Promised => "promised",
        GroupOutcome::Refused { .. } => "refused",
        GroupOutcome::Overtaken { .. } => "overtaken",
    };
    counter!(GROUPS, "outcome" => outcome).increment(1);
}

pub(crate) fn clock_measured(offset: ClockOffset) {
    histogram!(CLOCK).record(std::time::Duration::from_millis(offset.size().get()).as_secs_f64());
}

pub(crate) fn clocks_are(state: ClockState, count: usize) {
    let state = match state {
        ClockState::Right => "right",
        ClockState::Off => "off",
        ClockState::Far => "far",
    };
    gauge!(CLOCKS, "state" => state).set(float(count));
}

pub(crate) const fn leak_kind(kind: LeakKind) -> &'static str {
    match kind {
        LeakKind::NotHeld => "not_held",
        LeakKind::NotLeased => "not_leased",
        LeakKind::NotUsed => "not_used",
    }
}

pub(crate) fn leaks_are(kind: LeakKind, count: usize) {
    gauge!(LEAKS, "kind" => leak_kind(kind)).set(float(count));
}

pub(crate) fn nodes_unknown(count: usize) {
    gauge!(UNRECONCILED).set(float(count));
}

pub(crate) fn segment_read(is_good: bool) {
    counter!(SCRUBBED, "result" => if is_good { "good" } else { "bad" }).increment(1);
}

pub(crate) fn output_lost(bytes: u64) {
    counter!(OUTPUT_LOST).increment(bytes);
}

pub(crate) fn call_answered(route: &str, status: u16, took: std::time::Duration) {
    counter!(CALLS, "route" => route.to_owned(), "status" => status.to_string()).increment(1);
    histogram!(CALL, "route" => route.to_owned()).record(took.as_secs_f64());
}

pub(crate) fn disk_is(room: Room, free: u64) {
    let room = match room {
        Room::Full => 0.0,
        Room::Low => 1.0,
        Room::Plenty => 2.0,
    };
    gauge!(DISK_ROOM).set(room);
    // In whole MiB, so that it is exact: 2^32 of them are 4 EiB.
    let mib = u32::try_from(free / (1 << 20)).unwrap_or(u32::MAX);
    gauge!(DISK_FREE).set(f64::from(mib) * 1_048_576.0);
}

/// A count as a gauge's value, exact up to 2³².
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
