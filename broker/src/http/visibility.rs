//! Which records a caller sees.

use std::collections::BTreeMap;

use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId, TenantId};
use sublet_protocol::records::Record;

use super::app::App;
use super::error::ApiError;
use crate::auth::Scope;

/// Leases whose tenant is remembered; all are looked up again once there are more.
const REMEMBERED_MAX: usize = 10_000;

/// Judges records one after the other for one caller.
pub(crate) struct Visibility {
    scope: Scope,
    leases: BTreeMap<LeaseId, Option<TenantId>>,
}

impl Visibility {
    pub(crate) const fn new(scope: Scope) -> Visibility {
        Visibility { scope, leases: BTreeMap::new() }
    }

    /// Whether the caller sees this record: a tenant sees its own business and nobody else's.
    pub(crate) fn sees(&mut self, app: &App, record: &Record) -> Result<bool, ApiError> {
        let Scope::Tenant(own) = self.scope else { return Ok(true) };
        if let Some(tenant) = record.event.tenant() {
            return Ok(tenant == own);
        }
        if let Some(lease) = record.event.lease() {
            return Ok(self.tenant_of(app, lease)? == Some(own));
        }
        if let Some(request) = record.event.request() {
            return Ok(tenant_of_request(app, request)? == Some(own));
        }
        Ok(record.tenant() == Some(own))
    }

    fn tenant_of(&mut self, app: &App, lease: LeaseId) -> Result<Option<TenantId>, ApiError> {
        if let Some(tenant) = self.leases.get(&lease) {
            return Ok(*tenant);
        }
        let live = |state: &sublet_core::State| Some(state.leases().get(&lease)?.terms().tenant);
        let tenant = match app.cell.read_stale(live) {
            Some(tenant) => Some(tenant),
            None => tenant_in(&app.cell.records_of_lease(lease)?),
        };
        if self.leases.len() >= REMEMBERED_MAX {
            self.leases.clear();
        }
        self.leases.insert(lease, tenant);
        Ok(tenant)
    }
}

fn tenant_of_request(app: &App, request: RequestId) -> Result<Option<TenantId>, ApiError> {
    let open = |state: &sublet_core::State| Some(state.requests().get(&request)?.tenant());
    match app.cell.read_stale(open) {
        Some(tenant) => Ok(Some(tenant)),
        None => Ok(tenant_in(&app.cell.records_of_request(request)?)),
    }
}

/// The tenant that the records of one lease or request name.
fn tenant_in(records: &[Record]) -> Option<TenantId> {
    records.iter().find_map(|record| match &record.event {
        Event::LeaseGranted { terms, .. } => Some(terms.tenant),
        event => event.tenant(),
    })
}
