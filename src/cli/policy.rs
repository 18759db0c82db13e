//! `sublet policy`: the numbers that the cell decides by.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use sublet_protocol::api::RecordView;
use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::units::Seconds;

use super::global::Context;
use crate::client::{Client, each};
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Column, Table};
use crate::suggest;
use crate::units::{parse_seconds, show_seconds};

/// Show and set the policy of the cell.
#[derive(Debug, Subcommand)]
pub(super) enum Policy {
    /// Show every field.
    Show,
    /// Set fields.
    Set(Set),
    /// Show what was set, when and by whom. It reads the whole ledger, so it needs the rights to.
    History,
    /// Set it back to what it was.
    Revert(Revert),
}

/// Set the policy back to what it was before its last change, or after a record.
#[derive(Debug, Args)]
pub(super) struct Revert {
    /// The record after which it was as it is to be again, as `policy history` names it. Default: that
    /// before the last.
    #[arg(value_name = "RECORD")]
    record: Option<u64>,
}

/// Set fields of the policy. What is not named stays as it is.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// What to set, as half_life=3d, preemption.per_request=3 or stalled_after=none.
    #[arg(value_name = "FIELD=VALUE", required = true)]
    fields: Vec<String>,
}

/// Fields that are spans of time, by the last part of their names or, for what differs by tier, the
/// part before.
const SPANS: [&str; 22] = [
    "renew",
    "lease_ttl",
    "silence_margin",
    "owner_grace_opportunistic",
    "owner_grace",
    "end_notice",
    "offer_ttl",
    "start_timeout",
    "pledge",
    "min_run",
    "key_retention",
    "seal_interval",
    "half_life",
    "entry_penalty",
    "min_run_max",
    "pauses",
    "checkpoint_interval",
    "node_pause",
    "stalled_after",
    "clock_warning",
    "clock_limit",
    "approve_within",
];
/// Fields that are thousandths.
const THOUSANDTHS: [&str; 2] = ["clock_rate_error", "fee"];

impl Policy {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let policy = match self {
            Policy::Show => client.policy()?,
            Policy::Set(Set { fields }) => set(&client, &fields)?,
            Policy::History => return print_history(context, &history(&client)?),
            Policy::Revert(Revert { record }) => revert(&client, record)?,
        };
        let columns = [Column::text("FIELD"), Column::text("VALUE")];
        let mut table = Table::new(&columns, "no policy");
        for (name, value) in leaves(&policy) {
            let shown = show(&name, value);
            table.row([name, shown]);
        }
        context.printer.list(&policy, &table)
    }
}

fn set(client: &Client, fields: &[String]) -> Outcome<Value> {
    let from = client.policy()?;
    let mut to = from.clone();
    for field in fields {
        let (name, text) = field.split_once('=').ok_or_else(|| {
            Failure::usage(format!("{field:?} sets nothing: write it as half_life=3d"))
        })?;
        let known = leaves(&from);
        let Some((_, was)) = known.iter().find(|(known, _)| known == name) else {
            let names: Vec<String> = known.into_iter().map(|(name, _)| name).collect();
            return Err(suggest::unknown("field of the policy", name, &names));
        };
        let value = read(name, text, was)
            .map_err(|error| Failure::usage(format!("{name} cannot be set: {error}")))?;
        if let Some(place) = to.pointer_mut(&format!("/{}", name.replace('.', "/"))) {
            *place = value;
        }
    }
    put(client, from, to)
}

/// Sets all of it, if it still is as it was read.
fn put(client: &Client, from: Value, to: Value) -> Outcome<Value> {
    let mut body = Map::new();
    body.insert("from".to_owned(), from);
    body.insert("to".to_owned(), to);
    client.set_policy(&Value::Object(body))
}

/// The policy that a record set, if it set one.
fn of(record: &RecordView) -> Option<Value> {
    let policy = match &record.event {
        Event::CellCreated { policy, .. } | Event::PolicySet { policy } => policy,
        _other => return None,
    };
    serde_json::to_value(policy).ok()
}

/// Every record that set the policy, oldest first.
fn history(client: &Client) -> Outcome<Vec<(RecordView, Value)>> {
    let mut found = Vec::new();
    each(client, "/v1/ledger/records", |record: RecordView| {
        if let Some(policy) = of(&record) {
            found.push((record, policy));
        }
    })?;
    Ok(found)
}

fn print_history(context: &Context, found: &[(RecordView, Value)]) -> Outcome<()> {
    let columns =
        [Column::number("RECORD"), Column::text("TIME"), Column::text("BY"), Column::text("SET")];
    let mut table = Table::new(&columns, "no policy was ever set");
    let before = std::iter::once(None).chain(found.iter().map(|(_, policy)| Some(policy)));
    for ((record, policy), before) in found.iter().zip(before) {
        let set = before.map_or_else(|| "all of it".to_owned(), |before| changes(before, policy));
        let by = who(&record.actor);
        table.row([record.index.to_string(), record.time.to_string(), by, set]);
    }
    let records: Vec<&RecordView> = found.iter().map(|(record, _)| record).collect();
    context.printer.list(&records, &table)
}

fn who(actor: &Actor) -> String {
    match actor {
        Actor::Operator { subject, .. } | Actor::Tenant { subject, .. } => subject.to_string(),
        Actor::Agent { cluster, node } => format!("{cluster}/{node}"),
        Actor::Leader => "the cell".to_owned(),
    }
}

/// What is another in `to`, as it can be given to `policy set`.
fn changes(from: &Value, to: &Value) -> String {
    let from = leaves(from);
    let changed = leaves(to).into_iter().filter(|known| !from.contains(known));
    let changed = changed.map(|(name, value)| {
        let shown = show(&name, value);
        format!("{name}={}", shown.trim_end_matches(" ‰").replace(' ', ""))
    });
    let changed: Vec<String> = changed.collect();
    if changed.is_empty() { "nothing new".to_owned() } else { changed.join(" ") }
}

fn revert(client: &Client, record: Option<u64>) -> Outcome<Value> {
    let from = client.policy()?;
    let found = history(client)?;
    let wanted = match record {
        Some(index) => found.iter().find(|(record, _)| record.index == index),
        None => found.iter().rev().find(|(_, policy)| *policy != from),
    };
    let wanted = wanted.ok_or_else(|| {
        let what = match record {
            Some(index) => format!("record {index} set no policy"),
            None => "the policy has never been another".to_owned(),
        };
        Failure::new(Exit::NotFound, what)
            .hint("`sublet policy history` names the records that did")
    })?;
    put(client, from, wanted.1.clone())
}

/// Every field that holds no others, by its name as `preemption.per_request`.
fn leaves(policy: &Value) -> Vec<(String, &Value)> {
    fn walk<'v>(name: &str, value: &'v Value, found: &mut Vec<(String, &'v Value)>) {
        match value {
            Value::Object(fields) => {
                for (part, value) in fields {
                    let name =
                        if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
                    walk(&name, value, found);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => found.push((name.to_owned(), value)),
        }
    }
    let mut found = Vec::new();
    walk("", policy, &mut found);
    found
}

fn is_span(name: &str) -> bool {
    let mut parts = name.split('.');
    parts.any(|part| SPANS.contains(&part))
}

/// A span as people read it, unless that leaves something out.
fn exactly(span: Seconds) -> String {
    let short = show_seconds(span);
    match parse_seconds(&short) {
        Ok(read) if read == span => short,
        Ok(_) | Err(_) => format!("{span}s"),
    }
}

fn show(name: &str, value: &Value) -> String {
    let span = |value: &Value| {
        let seconds = value.as_u64().map(Seconds::new);
        seconds.map_or_else(|| value.to_string(), exactly)
    };
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if is_span(name) => {
            let spans: Vec<String> = items.iter().map(span).collect();
            if spans.is_empty() { "none".to_owned() } else { spans.join(",") }
        }
        Value::Number(_) if is_span(name) => span(value),
        Value::Number(number) if THOUSANDTHS.contains(&name) => format!("{number} ‰"),
        Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// The value that a text means for a field that was `was`.
fn read(name: &str, text: &str, was: &Value) -> Result<Value, String> {
    let span = |text: &str| parse_seconds(text).map(|span| Value::from(span.get()));
    match was {
        Value::Array(_) if is_span(name) && text == "none" => Ok(Value::Array(Vec::new())),
        Value::Array(_) if is_span(name) => text.split(',').map(span).collect(),
        Value::Null | Value::Number(_) if is_span(name) && text == "none" => Ok(Value::Null),
        Value::Null | Value::Number(_) if is_span(name) => span(text),
        Value::Number(_) => {
            let number = text.parse::<u64>().map(Value::from);
            number.map_err(|_| format!("{text:?} is no whole number"))
        }
        Value::String(_) => Ok(Value::from(text)),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            serde_json::from_str(text).map_err(|error| format!("{text:?} is not JSON: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::policy::Policy;

    use super::*;

    fn usual() -> Value {
        serde_json::to_value(Policy::default()).unwrap()
    }

    /// Whoever adds a field says whether it is a span: a number of seconds is not told from a count.
    #[test]
    fn every_field_is_a_span_a_count_or_a_share() {
        const COUNTS: [&str; 13] = [
            "start_retries",
            "currency",
            "requests_per_tenant",
            "keys_per_tenant",
            "offers_per_cluster",
            "seal_records",
            "preemption.tier_gap",
            "preemption.per_request",
            "preemption.per_cluster_hour",
            "preemption.per_cell_hour",
            "node_refusals",
            "rollback.leases_alone",
            "rollback.money_alone",
        ];
        let policy = usual();
        for (name, _) in leaves(&policy) {
            let kinds = [is_span(&name), COUNTS.contains(&&*name), THOUSANDTHS.contains(&&*name)];
            let count = kinds.iter().filter(|is| **is).count();
            assert_eq!(count, 1, "{name} is in {count} lists of kinds");
        }
    }

    #[test]
    fn what_is_shown_can_be_set_again() {
        let policy = usual();
        for (name, value) in leaves(&policy) {
            let shown = show(&name, value).trim_end_matches(" ‰").replace(' ', "");
            assert_eq!(read(&name, &shown, value).as_ref(), Ok(value), "{name}={shown}");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_refused_with_what_to_write() {
        let policy = usual();
        let of = |name: &str| policy.pointer(&format!("/{}", name.replace('.', "/"))).unwrap();
        for (name, text, expected) in [
            ("half_life", "7", "has no unit"),
            ("half_life", "-1d", "before zero"),
            ("preemption.pauses", "60s,soon", "no span of time"),
            ("preemption.per_request", "-1", "no whole number"),
            ("preemption.per_request", "2.5", "no whole number"),
            ("fee", "5%", "no whole number"),
        ] {
            let error = read(name, text, of(name)).unwrap_err();
            assert!(error.contains(expected), "{name}={text}: {error}");
        }
        assert_eq!(read("stalled_after", "none", of("stalled_after")), Ok(Value::Null));
        assert_eq!(show("half_life", &Value::from(3_661)), "3661s");
        let none = read("preemption.pauses", "none", of("preemption.pauses"));
        assert_eq!(none, Ok(Value::Array(vec![])));
    }
}
