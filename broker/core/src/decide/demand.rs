//! What tenants ask for.

use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{GpuModel, RequestId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::Timestamp;

use super::{Decision, ending, only_owner_of};
use crate::state::{LeaseStage, RequestStage, State};

pub(super) fn submit(
    state: &State,
    actor: &Actor,
    request: RequestId,
    tenant: TenantId,
    spec: &RequestSpec,
) -> Decision {
    only_owner_of(actor, tenant, Rejection::TenantMissing)?;
    let entry = state.tenants.get(&tenant).ok_or(Rejection::TenantMissing)?;
    spec.validate().map_err(Rejection::SpecInvalid)?;
    if state.requests.contains_key(&request) {
        return Err(Rejection::RequestExists);
    }
    if entry.open_requests >= state.policy.requests_per_tenant {
        return Err(Rejection::RequestsExhausted);
    }
    let spec = spec.clone();
    if !is_model_known(state, tenant, &spec) {
        let rejection = Rejection::ModelUnknown;
        return Ok(vec![Event::RequestRefused { request, tenant, spec, rejection }]);
    }
    if !could_ever_fit(state, tenant, &spec) {
        let rejection = Rejection::QuotaTooSmall;
        return Ok(vec![Event::RequestRefused { request, tenant, spec, rejection }]);
    }
    Ok(vec![Event::RequestSubmitted { request, tenant, spec }])
}

/// Whether any of the models that are asked for has a price or a quota, if any is asked for.
pub(crate) fn is_model_known(state: &State, tenant: TenantId, spec: &RequestSpec) -> bool {
    let asked = |model: &GpuModel| spec.models.contains(model);
    spec.models.is_empty()
        || state.prices.keys().any(|(_, model, _)| asked(model))
        || state.tree.models(tenant).iter().any(asked)
}

/// Whether the tenant could hold as much of some allowed model if nobody else held anything and every
/// cluster offered all that its owner's quota counts on.
pub(crate) fn could_ever_fit(state: &State, tenant: TenantId, spec: &RequestSpec) -> bool {
    let total = spec.gpu_total();
    let mut allowed = state.tree.models(tenant).into_iter();
    allowed.any(|model| {
        let is_allowed = spec.models.is_empty() || spec.models.contains(&model);
        is_allowed && state.tree.ceiling(tenant, model) >= total
    })
}

pub(super) fn cancel(state: &State, actor: &Actor, request: RequestId, now: Timestamp) -> Decision {
    let entry = state.requests.get(&request).ok_or(Rejection::RequestMissing)?;
    let tenant = entry.tenant;
    only_owner_of(actor, tenant, Rejection::RequestMissing)?;
    Ok(match &entry.stage {
        RequestStage::Waiting => vec![Event::RequestCancelled { request, tenant }],
        RequestStage::Pledged { .. } => {
            vec![Event::PledgeEnded { request }, Event::RequestCancelled { request, tenant }]
        }
        // The lease is given back; its end closes the request.
        RequestStage::Granted { lease } => {
            let running = &state.leases[lease];
            // It would be done for nothing: the request waits again once the lease has ended.
            if let LeaseStage::Ending { cause, .. } = running.stage
                && ending::waits_again(state, running, cause)
            {
                return Err(Rejection::LeaseEnding);
            }
            ending::begin(*lease, running, EndReason::Released, now).into_iter().collect()
        }
    })
}
