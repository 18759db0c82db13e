//! A request, folded from its records.

use sublet_protocol::api::{RequestState, RequestView, StateReason, Time};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{RequestId, TenantId};
use sublet_protocol::money::Currency;
use sublet_protocol::records::Record;
use sublet_protocol::requests::RequestSpec;

use super::{spec, texts};

/// The request that these records are about, as it was after the last of them; nothing if the first
/// is not that of its submission.
pub(crate) fn request(records: &[Record], currency: Currency) -> Option<RequestView> {
    let (first, rest) = records.split_first()?;
    let mut view = match &first.event {
        Event::RequestSubmitted { request, tenant, spec } => {
            let new = New { id: *request, tenant: *tenant, spec };
            let reason = reason("waiting", "it waits for capacity", first);
            new.view(RequestState::Waiting, reason, first, currency)
        }
        Event::RequestRefused { request, tenant, spec, rejection } => {
            let new = New { id: *request, tenant: *tenant, spec };
            let code = rejection.code().to_ascii_lowercase();
            let reason = reason(&code, &rejection.to_string(), first);
            new.view(RequestState::Refused, reason, first, currency)
        }
        _other => return None,
    };
    for record in rest {
        fold(&mut view, record);
        view.version += 1;
        view.updated_at = Time(record.time);
    }
    Some(view)
}

struct New<'a> {
    id: RequestId,
    tenant: TenantId,
    spec: &'a RequestSpec,
}

impl New<'_> {
    fn view(
        &self,
        state: RequestState,
        state_reason: StateReason,
        record: &Record,
        currency: Currency,
    ) -> RequestView {
        RequestView {
            id: self.id,
            tenant: self.tenant,
            state,
            state_reason,
            created_at: Time(record.time),
            updated_at: Time(record.time),
            version: 1,
            tier: self.spec.class.tier(),
            spec: spec::to_body(self.spec, currency),
            lease: None,
            attempts: 0,
            recalls: 0,
            warning: None,
        }
    }
}

fn reason(code: &str, text: &str, record: &Record) -> StateReason {
    StateReason { code: code.to_owned(), text: text.to_owned(), since: Time(record.time) }
}

fn fold(view: &mut RequestView, record: &Record) {
    match &record.event {
        Event::LeaseGranted { terms, .. } => {
            view.state = RequestState::Granted;
            view.lease = Some(terms.lease);
            view.attempts = terms.attempt;
            view.state_reason = reason("granted", "a lease serves it", record);
        }
        Event::RequestRequeued { reason: why, .. } => {
            view.state = RequestState::Waiting;
            view.recalls += u32::from(why.is_recall());
            let text = format!("{}: it waits again", texts::end_reason(*why));
            view.state_reason = reason(why.code(), &text, record);
        }
        Event::RequestClosed { reason: why, .. } => {
            view.state = RequestState::Closed;
            view.recalls += u32::from(why.is_recall());
            view.state_reason = reason(why.code(), texts::end_reason(*why), record);
        }
        Event::RequestCancelled { .. } => {
            view.state = RequestState::Cancelled;
            view.state_reason = reason("cancelled", "it was withdrawn", record);
        }
        Event::CapacityPledged { .. } => {
            let text = "capacity is being freed for it";
            view.state_reason = reason("pledged", text, record);
        }
        Event::PledgeEnded { .. } if view.state == RequestState::Waiting => {
            view.state_reason = reason("waiting", "it waits for capacity", record);
        }
        Event::StartPromised { start, cause, .. } => {
            let text = format!(
                "{}: it starts by {} at the latest",
                texts::promise_cause(*cause),
                Time(*start)
            );
            view.state_reason = reason("promised", &text, record);
        }
        Event::PromiseWithdrawn { cause, .. } => {
            let text = format!("{}: no start can be promised", texts::promise_cause(*cause));
            view.state_reason = reason("waiting", &text, record);
        }
        _other => {}
    }
}
