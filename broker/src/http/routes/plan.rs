//! `/v1/plan`: what would happen to a request.

use std::collections::BTreeSet;

use axum::Json as Answer;
use axum::extract::State;
use sublet_core::matching::{WhatIf, WhatIfOutcome};
use sublet_protocol::api::{
    EffectiveValue, Money, Origin, PlanOutcome, PlanRequest, PlanView, PreemptionTerms, Problem,
    RequestCreate, Time,
};
use sublet_protocol::deferral::{Deferral, Window};
use sublet_protocol::ids::GpuModel;
use sublet_protocol::money::Currency;
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{OnRecall, RequestSpec, Tier};
use sublet_protocol::units::GpuMilli;

use super::requests::unknown_tenant;
use super::why;
use crate::http::app::App;
use crate::http::defer;
use crate::http::error::ApiError;
use crate::http::extract::{Json, Tenant};
use crate::http::views;

/// How many off-peak windows are shown.
const WINDOWS_SHOWN: usize = 3;
/// Most models that are named where one is not known.
const MODELS_NAMED: usize = 16;

/// What would happen if this request were sent now. Changes and keeps nothing; needs no key.
#[utoipa::path(
    post, path = "/v1/plan", tag = "requests", security(("token" = [])),
    request_body = PlanRequest,
    responses((status = OK, body = PlanView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn plan(
    State(app): State<App>,
    Tenant { tenant, .. }: Tenant,
    body: Json<RequestCreate>,
) -> Result<Answer<PlanView>, ApiError> {
    let spec = views::from_body(&body.value, app.currency())?;
    spec.validate().map_err(|error| ApiError::from(Rejection::SpecInvalid(error)))?;
    let read =
        app.cell.read(|state| (state.tenants().contains_key(&tenant), state.policy().clone()));
    let (is_known, policy) = read.await?;
    if !is_known {
        return Err(unknown_tenant());
    }
    let deferral = defer::resolve(&app, tenant, &body.value).await?.map(Box::new);
    let spec = RequestSpec { deferral, ..spec };
    let at = Time(app.cell.now());
    let what_if = app.cell.what_if(tenant, &spec).await?;
    let hold = what_if.hold.map(|hold| Money::new(hold, policy.currency));
    let outcome = outcome(&app, tenant, what_if, policy.currency);
    let text = text(&outcome, spec.gpu, hold);
    let effective = effective(&body, &spec, &policy, &outcome);
    let preemption = preemption(&spec, &policy);
    Ok(Answer(PlanView { outcome, text, effective, hold, preemption, at }))
}

fn outcome(
    app: &App,
    tenant: sublet_protocol::ids::TenantId,
    what_if: WhatIf,
    currency: Currency,
) -> PlanOutcome {
    match what_if.outcome {
        WhatIfOutcome::Grant { cluster, model, price, gpu, members } => PlanOutcome::Grant {
            cluster,
            model,
            per_gpu_hour: Money::new(price.per_gpu_hour, currency),
            slices: u32::try_from(members.len()).unwrap_or(u32::MAX),
            gpu: gpu.get(),
        },
        WhatIfOutcome::Preempt { victims } => {
            let count = u32::try_from(victims.len()).unwrap_or(u32::MAX);
            let own = app.cell.read_stale(|state| {
                let is_own = |id: &sublet_protocol::ids::LeaseId| {
                    state.leases().get(id).is_some_and(|lease| lease.terms().tenant == tenant)
                };
                victims.into_iter().filter(is_own).collect()
            });
            PlanOutcome::Preempt { victims: count, own }
        }
        WhatIfOutcome::Wait(explanation) => {
            PlanOutcome::Wait { why: why::waiting(app, &explanation) }
        }
        WhatIfOutcome::Refuse(rejection) => {
            let Problem { code, detail: text, errors, .. } = refusal(app, rejection).problem("");
            PlanOutcome::Refuse { code, text, errors }
        }
    }
}

/// A refusal as it is told: of an unknown model, with those that are known.
pub(super) fn refusal(app: &App, rejection: Rejection) -> ApiError {
    if rejection != Rejection::ModelUnknown {
        return ApiError::from(rejection);
    }
    let known = app.cell.read_stale(known_models);
    let detail = known.map_or_else(
        || format!("{rejection}: none has a price yet"),
        |known| format!("{rejection}: known are {known}"),
    );
    ApiError::content(rejection.code(), "/models", detail)
}

/// The models that have a price, in words; nothing if none has.
pub(super) fn known_models(state: &sublet_core::State) -> Option<String> {
    let known: BTreeSet<GpuModel> = state.prices().keys().map(|(_, model, _)| *model).collect();
    let named: Vec<String> = known.iter().take(MODELS_NAMED).map(GpuModel::to_string).collect();
    let more = match known.len().saturating_sub(MODELS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}

fn text(outcome: &PlanOutcome, asked: GpuMilli, hold: Option<Money>) -> String {
    let most = hold.map(|hold| format!(", at most {hold}")).unwrap_or_default();
    match outcome {
        PlanOutcome::Grant { cluster, model, per_gpu_hour, slices, gpu } => {
            let larger = match *gpu > asked.get() {
                true => format!(
                    "; no part that small is on offer: each is {gpu} thousandths of a GPU, and is \
                     paid and counted as that"
                ),
                false => String::new(),
            };
            format!(
                "it would be granted now: {slices} of {model} in {cluster} \
                 at {per_gpu_hour} per GPU-hour{most}{larger}"
            )
        }
        PlanOutcome::Preempt { victims, .. } => {
            format!("it would be granted once {victims} of lower rank have ended for it{most}")
        }
        PlanOutcome::Wait { why } => format!("it would wait: {}", why.text),
        PlanOutcome::Refuse { text, .. } => format!("it would be refused: {text}"),
    }
}

fn effective(
    body: &Json<RequestCreate>,
    spec: &RequestSpec,
    policy: &Policy,
    outcome: &PlanOutcome,
) -> Vec<EffectiveValue> {
    let list = |items: Vec<String>| match items.is_empty() {
        true => "any".to_owned(),
        false => items.join(", "),
    };
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let names = |value: &dyn Fn() -> Result<serde_json::Value, serde_json::Error>| {
        value().map(word).unwrap_or_default()
    };
    let declared = [
        ("project", spec.project.to_string()),
        ("class", names(&|| serde_json::to_value(spec.class))),
        ("priority", spec.priority.to_string()),
        ("models", list(spec.models.iter().map(ToString::to_string).collect())),
        ("count", spec.count.to_string()),
        ("gpu", format!("{}/1000 of a GPU", spec.gpu)),
        ("memory", format!("{} MiB", spec.memory)),
        ("cpu", format!("{}/1000 of a core", spec.cpu)),
        ("host_memory", format!("{} MiB", spec.host_memory)),
        ("placement", names(&|| serde_json::to_value(spec.placement))),
        ("duration", format!("{} s", spec.duration)),
        (
            "max_price",
            match body.value.max_price {
                Some(price) => format!("{price} per GPU-hour"),
                None => "any".to_owned(),
            },
        ),
        ("regions", list(spec.regions.iter().map(ToString::to_string).collect())),
        ("on_recall", names(&|| serde_json::to_value(spec.on_recall))),
        ("defer", spec.deferral.as_deref().map_or_else(|| "no".to_owned(), deferred)),
    ];
    let origin = |field: &str| match body.given.iter().any(|given| given == field) {
        true => Origin::Declared,
        false => Origin::Default,
    };
    let value = |field: &str, value: String, origin| EffectiveValue {
        field: field.to_owned(),
        value,
        origin,
    };
    let mut values: Vec<EffectiveValue> =
        declared.into_iter().map(|(field, text)| value(field, text, origin(field))).collect();
    let tier = names(&|| serde_json::to_value(spec.class.tier()));
    values.push(value("tier", tier, Origin::Policy));
    values.push(value("grace", format!("{} s", grace(spec, policy)), Origin::Policy));
    if let Some(prediction) = &spec.prediction {
        let text = format!("{} s", prediction.duration_q50);
        values.push(value("duration_expected", text, Origin::Predicted));
        let text = format!("{} MiB", prediction.memory_bound);
        values.push(value("memory_expected", text, Origin::Predicted));
    }
    if let PlanOutcome::Grant { per_gpu_hour, .. } = outcome {
        values.push(value("price", format!("{per_gpu_hour} per GPU-hour"), Origin::Price));
    }
    values
}

/// When it is to start, if it can be promised that.
fn deferred(deferral: &Deferral) -> String {
    let windows = deferral.windows.iter();
    let window = |window: &Window| format!("{} to {}", Time(window.from), Time(window.until));
    let first: Vec<String> = windows.take(WINDOWS_SHOWN).map(window).collect();
    let more = match deferral.windows.len().saturating_sub(WINDOWS_SHOWN) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    match first.is_empty() {
        true => format!("not before {}", Time(deferral.start_by)),
        false => {
            let last = Time(deferral.start_by);
            format!("from {}{more}; at {last} at the latest, or at once", first.join(", "))
        }
    }
}

/// As the rules set it in a grant.
fn grace(spec: &RequestSpec, policy: &Policy) -> u64 {
    match spec.class.tier() {
        Tier::Opportunistic => policy.owner_grace_opportunistic.get(),
        Tier::Standard | Tier::Reserved => policy.owner_grace.get(),
    }
}

fn may_preempt(other: Tier, tier: Tier, policy: &Policy) -> bool {
    let gap = other.rank().checked_sub(tier.rank());
    gap.is_some_and(|gap| gap >= policy.preemption.tier_gap.max(1))
}

fn preemption(spec: &RequestSpec, policy: &Policy) -> PreemptionTerms {
    let tier = spec.class.tier();
    let all = [Tier::Opportunistic, Tier::Standard, Tier::Reserved];
    let preempted_by: Vec<Tier> =
        all.into_iter().filter(|other| may_preempt(*other, tier, policy)).collect();
    let (grace, min_run) = (grace(spec, policy), policy.min_run.of(tier).get());
    let then = match spec.on_recall {
        OnRecall::Requeue => "the request then waits again",
        OnRecall::Close => "the request is then closed",
    };
    let rank = match preempted_by.is_empty() {
        true => "no other request can preempt it".to_owned(),
        false => format!("a request of a higher tier can preempt it after {min_run} s"),
    };
    let text = format!(
        "the owner may take the GPU back at any time, with {grace} s of grace; {rank}; {then}"
    );
    PreemptionTerms { tier, preempted_by, min_run, grace, on_recall: spec.on_recall, text }
}
