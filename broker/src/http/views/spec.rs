//! Requests between their body and their form in the rules.

use sublet_protocol::api::{
    DeferCreate, Money, PredictionBody, RequestCreate, Time, Whole, WorkloadDeclared,
};
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::requests::{CHOICES_MAX, Prediction, RequestSpec, WorkloadRef};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Permille, Seconds};

use crate::http::error::ApiError;

/// The request that a body asks for. What the type of the body cannot say is checked here.
pub(crate) fn from_body(body: &RequestCreate, currency: Currency) -> Result<RequestSpec, ApiError> {
    let lists = [("/models", body.models.len()), ("/regions", body.regions.len())];
    if let Some((pointer, _)) = lists.iter().find(|(_, length)| *length > CHOICES_MAX) {
        let detail = format!("at most {CHOICES_MAX} may be listed");
        return Err(ApiError::content("SPEC_INVALID", *pointer, detail));
    }
    let max_price = body.max_price.map(|price| money(price, "/max_price", currency)).transpose()?;
    let spec = RequestSpec {
        project: body.project,
        class: body.class,
        priority: narrow(body.priority.get()),
        models: body.models.clone(),
        count: body.count.get_u32(),
        gpu: GpuMilli::new(body.gpu.get()),
        memory: MiB::new(body.memory.get()),
        cpu: CpuMilli::new(body.cpu.get()),
        host_memory: MiB::new(body.host_memory.get()),
        placement: body.placement,
        duration: Seconds::new(body.duration.get()),
        max_price,
        regions: body.regions.clone(),
        on_recall: body.on_recall,
        workload: body
            .workload
            .as_ref()
            .map(|workload| WorkloadRef { sha256: workload.sha256, size: workload.size.get_u32() }),
        prediction: body.prediction.as_ref().map(prediction),
        capability: body.capability,
        // What it asks for depends on the tenant's hours and the time: see `defer`.
        deferral: None,
    };
    Ok(spec)
}

/// An amount of the cell's currency, zero or more.
pub(crate) fn money(
    money: Money,
    pointer: &str,
    currency: Currency,
) -> Result<MicroCredits, ApiError> {
    if money.currency != currency {
        let detail = format!("the cell's currency is {currency}");
        return Err(ApiError::content("CURRENCY_INVALID", format!("{pointer}/currency"), detail));
    }
    if money.amount < MicroCredits::ZERO {
        let detail = "the amount must be zero or more";
        return Err(ApiError::content("AMOUNT_INVALID", format!("{pointer}/amount"), detail));
    }
    Ok(money.amount)
}

fn prediction(body: &PredictionBody) -> Prediction {
    Prediction {
        layer: body.layer,
        version: body.version.get_u32(),
        confidence: Permille::new(narrow(body.confidence.get())),
        duration_q10: Seconds::new(body.duration_q10.get()),
        duration_q50: Seconds::new(body.duration_q50.get()),
        duration_q90: Seconds::new(body.duration_q90.get()),
        memory_bound: MiB::new(body.memory_bound.get()),
    }
}

/// A number whose range was checked when the body was read.
fn narrow<T: TryFrom<u64>>(value: u64) -> T
where
    T::Error: std::fmt::Debug,
{
    T::try_from(value).expect("the body's type keeps the number within its range")
}

/// The body that asks for this request, every default filled in.
pub(crate) fn to_body(spec: &RequestSpec, currency: Currency) -> RequestCreate {
    RequestCreate {
        project: spec.project,
        class: spec.class,
        priority: Whole::clamped(spec.priority.into()),
        models: spec.models.clone(),
        count: Whole::clamped(spec.count.into()),
        gpu: Whole::clamped(spec.gpu.get()),
        memory: Whole::clamped(spec.memory.get()),
        cpu: Whole::clamped(spec.cpu.get()),
        host_memory: Whole::clamped(spec.host_memory.get()),
        placement: spec.placement,
        duration: Whole::clamped(spec.duration.get()),
        max_price: spec.max_price.map(|amount| Money::new(amount, currency)),
        regions: spec.regions.clone(),
        on_recall: spec.on_recall,
        workload: spec.workload.as_ref().map(workload),
        prediction: spec.prediction.as_ref().map(|prediction| PredictionBody {
            layer: prediction.layer,
            version: Whole::clamped(prediction.version.into()),
            confidence: Whole::clamped(prediction.confidence.get().into()),
            duration_q10: Whole::clamped(prediction.duration_q10.get()),
            duration_q50: Whole::clamped(prediction.duration_q50.get()),
            duration_q90: Whole::clamped(prediction.duration_q90.get()),
            memory_bound: Whole::clamped(prediction.memory_bound.get()),
        }),
        capability: spec.capability,
        defer: spec.deferral.as_ref().map(|deferral| DeferCreate {
            not_before: deferral.not_before.map(Time),
            off_peak: !deferral.windows.is_empty(),
            deadline: deferral.deadline.map(Time),
        }),
    }
}

/// A declared workload as a body shows it.
pub(crate) fn workload(workload: &WorkloadRef) -> WorkloadDeclared {
    WorkloadDeclared { sha256: workload.sha256, size: Whole::clamped(workload.size.into()) }
}
