//! The routes of the API that the command line uses, each as one call.

use serde_json::Value;
use sublet_protocol::api::{
    AccountView, BrokerAdd, CalendarSet, CalendarView, CellView, CheckpointView, ClusterCreate,
    ClusterView, ExtensionView, LeaseView, LedgerState, LevelSet, NameSet, NameView, NodeRemoved,
    NodeView, OfferPage, ParentSet, ParentView, PastState, PeriodClose, PeriodsView, PlanView,
    PriceSet, PriceView, ProofView, QuotaSet, QuotaView, RecallCreate, RecallView,
    ReconciliationView, RequestView, RollbackApprove, RollbackCreate, RollbackPlan, RollbackSelect,
    RollbackView, StateDiff, StatementView, StatusView, TenantCreate, TenantView, TermsSet,
    TermsView, VerifyView, WhyView,
};
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, NodeId, RequestId, RollbackId, TenantId};
use ureq::http::Method;

use super::{Body, Client, Query, all};
use crate::failure::Outcome;

/// No body.
const NOTHING: Option<&()> = None;

impl Client {
    /// Idle capacity, alike slices counted together; every page.
    pub(crate) fn offers(&self, query: &Query) -> Outcome<OfferPage> {
        let mut whole: OfferPage = self.get(&query.path("/v1/offers"))?;
        while let Some(cursor) = whole.next_cursor.take() {
            let query = query.clone().with("cursor", Some(cursor));
            let page: OfferPage = self.get(&query.path("/v1/offers"))?;
            whole.items.extend(page.items);
            whole.next_cursor = page.next_cursor;
        }
        Ok(whole)
    }

    /// What would happen to this request.
    pub(crate) fn plan(&self, request: &Value) -> Outcome<PlanView> {
        self.ask("/v1/plan", request)
    }

    /// Lets the cell use what needs a feature level.
    pub(crate) fn raise_level(&self, level: u16) -> Outcome<CellView> {
        self.change(&Method::PUT, "/v1/cell/level", Some(&LevelSet { level }))
    }

    /// The bytes of a backup, as they arrive.
    pub(crate) fn backup(&self) -> Outcome<Body> {
        self.stream("/v1/ledger/backup", "application/octet-stream", None)
    }

    /// The brokers of the cell.
    pub(crate) fn cell(&self) -> Outcome<CellView> {
        self.get("/v1/cell")
    }

    /// Takes a broker in; temporary trouble while it copies the log.
    pub(crate) fn add_broker(&self, broker: &BrokerAdd) -> Outcome<CellView> {
        self.change(&Method::POST, "/v1/cell/brokers", Some(broker))
    }

    /// Takes a broker out.
    pub(crate) fn remove_broker(&self, id: u64) -> Outcome<CellView> {
        self.change(&Method::DELETE, &format!("/v1/cell/brokers/{id}"), NOTHING)
    }

    /// Asks for capacity.
    pub(crate) fn submit(&self, request: &Value) -> Outcome<RequestView> {
        self.change(&Method::POST, "/v1/requests", Some(request))
    }

    /// One request.
    pub(crate) fn request(&self, id: RequestId) -> Outcome<RequestView> {
        self.get(&format!("/v1/requests/{id}"))
    }

    /// The requests of the caller's tenant.
    pub(crate) fn requests(&self, query: &Query, limit: usize) -> Outcome<Vec<RequestView>> {
        all(self, &query.path("/v1/requests"), limit)
    }

    /// Withdraws a request; a lease that serves it is given back.
    pub(crate) fn cancel(&self, id: RequestId) -> Outcome<RequestView> {
        self.change(&Method::DELETE, &format!("/v1/requests/{id}"), NOTHING)
    }

    /// One lease.
    pub(crate) fn lease(&self, id: LeaseId) -> Outcome<LeaseView> {
        self.get(&format!("/v1/leases/{id}"))
    }

    /// The leases of the caller's tenant.
    pub(crate) fn leases(&self, query: &Query, limit: usize) -> Outcome<Vec<LeaseView>> {
        all(self, &query.path("/v1/leases"), limit)
    }

    /// Gives a lease back.
    pub(crate) fn release(&self, id: LeaseId) -> Outcome<LeaseView> {
        self.change(&Method::DELETE, &format!("/v1/leases/{id}"), NOTHING)
    }

    /// Says that the work of a lease is saved.
    pub(crate) fn checkpoint(&self, id: LeaseId) -> Outcome<LeaseView> {
        self.change(&Method::POST, &format!("/v1/leases/{id}/checkpoints"), NOTHING)
    }

    /// Recalls a lease on the caller's own GPUs.
    pub(crate) fn recall(&self, id: LeaseId, recall: &RecallCreate) -> Outcome<RecallView> {
        self.change(&Method::POST, &format!("/v1/leases/{id}/recall"), Some(recall))
    }

    /// Sends what a lease shall run; the bytes are those whose hash was declared.
    pub(crate) fn send_workload(&self, id: LeaseId, bytes: &[u8]) -> Outcome<()> {
        let path = format!("/v1/leases/{id}/workload");
        self.change_bytes(&Method::PUT, &path, Some(bytes))
    }

    /// What the guest of a lease prints after its first `from` bytes, line by line as JSON, until
    /// the lease has ended.
    pub(crate) fn logs(&self, id: LeaseId, from: u64) -> Outcome<Body> {
        let path = format!("/v1/leases/{id}/logs?follow=true&from={from}");
        self.stream(&path, "application/x-ndjson", None)
    }

    /// Why a request or lease is in its state.
    pub(crate) fn why(&self, id: &str) -> Outcome<WhyView> {
        self.get(&format!("/v1/why/{id}"))
    }

    /// How the cell is.
    pub(crate) fn status(&self) -> Outcome<StatusView> {
        self.get("/v1/status")
    }

    /// Checks the whole ledger.
    pub(crate) fn verify(&self) -> Outcome<VerifyView> {
        self.get("/v1/ledger/verify")
    }

    /// The newest signed checkpoint, if there is one.
    pub(crate) fn signed_checkpoint(&self) -> Outcome<Option<CheckpointView>> {
        self.find("/v1/ledger/checkpoint")
    }

    /// The proof that a record is in the ledger, if it is sealed and the caller may see it.
    pub(crate) fn proof(&self, index: u64) -> Outcome<Option<ProofView>> {
        self.find(&format!("/v1/ledger/proofs/{index}"))
    }

    /// What shows that the newest checkpoint extends the first `from` records, if it does.
    pub(crate) fn extension(&self, from: u64) -> Outcome<Option<ExtensionView>> {
        self.find(&format!("/v1/ledger/extension?from={from}"))
    }

    /// How far the ledger is.
    pub(crate) fn ledger(&self) -> Outcome<LedgerState> {
        self.get("/v1/ledger/state")
    }

    /// Ledger, broker and agents held against each other.
    pub(crate) fn reconciliation(&self) -> Outcome<ReconciliationView> {
        self.get("/v1/ledger/reconciliation")
    }

    /// The accounts of the double-entry books.
    pub(crate) fn accounts(&self) -> Outcome<Vec<AccountView>> {
        all(self, "/v1/ledger/accounts", usize::MAX)
    }

    /// What a tenant owes or earned.
    pub(crate) fn statement(&self, query: &Query) -> Outcome<StatementView> {
        self.get(&query.path("/v1/ledger/statements"))
    }

    /// What undoing these leases would do.
    pub(crate) fn plan_rollback(&self, select: &RollbackSelect) -> Outcome<RollbackPlan> {
        self.ask("/v1/rollbacks/plan", select)
    }

    /// Undoes leases, or proposes it.
    pub(crate) fn roll_back(&self, create: &RollbackCreate) -> Outcome<RollbackView> {
        self.change(&Method::POST, "/v1/rollbacks", Some(create))
    }

    /// Rollbacks that are known.
    pub(crate) fn rollbacks(&self) -> Outcome<Vec<RollbackView>> {
        self.get("/v1/rollbacks")
    }

    /// One rollback.
    pub(crate) fn rollback(&self, id: RollbackId) -> Outcome<RollbackView> {
        self.get(&format!("/v1/rollbacks/{id}"))
    }

    /// Approves a rollback.
    pub(crate) fn approve_rollback(
        &self,
        id: RollbackId,
        approve: &RollbackApprove,
    ) -> Outcome<RollbackView> {
        self.change(&Method::POST, &format!("/v1/rollbacks/{id}/approval"), Some(approve))
    }

    /// Drops a rollback that waits for its approval.
    pub(crate) fn reject_rollback(&self, id: RollbackId) -> Outcome<RollbackView> {
        self.change(&Method::DELETE, &format!("/v1/rollbacks/{id}"), NOTHING)
    }

    /// The state as it was.
    pub(crate) fn past_state(&self, query: &Query) -> Outcome<PastState> {
        self.get(&query.path("/v1/ledger/past"))
    }

    /// What differs between two states.
    pub(crate) fn state_diff(&self, query: &Query) -> Outcome<StateDiff> {
        self.get(&query.path("/v1/ledger/diff"))
    }

    /// Up to when the books are closed.
    pub(crate) fn periods(&self) -> Outcome<PeriodsView> {
        self.get("/v1/ledger/periods")
    }

    /// Closes the books up to an instant.
    pub(crate) fn close_period(&self, close: &PeriodClose) -> Outcome<PeriodsView> {
        self.change(&Method::POST, "/v1/ledger/periods", Some(close))
    }

    /// The tenants.
    pub(crate) fn tenants(&self) -> Outcome<Vec<TenantView>> {
        all(self, "/v1/tenants", usize::MAX)
    }

    /// One tenant, if it is there.
    pub(crate) fn tenant(&self, id: TenantId) -> Outcome<Option<TenantView>> {
        self.find(&format!("/v1/tenants/{id}"))
    }

    /// Adds a tenant.
    pub(crate) fn create_tenant(&self, tenant: &TenantCreate) -> Outcome<TenantView> {
        self.change(&Method::POST, "/v1/tenants", Some(tenant))
    }

    /// The policy of the cell, in whatever fields this server has.
    pub(crate) fn policy(&self) -> Outcome<Value> {
        self.get("/v1/policy")
    }

    /// Sets the policy: `{"from": …, "to": …}`.
    pub(crate) fn set_policy(&self, change: &Value) -> Outcome<Value> {
        self.change(&Method::PUT, "/v1/policy", Some(change))
    }

    /// Sets weight, budgets and reclaim.
    pub(crate) fn set_terms(&self, tenant: TenantId, terms: &TermsSet) -> Outcome<TermsView> {
        self.change(&Method::PUT, &format!("/v1/tenants/{tenant}/terms"), Some(terms))
    }

    /// Sets when it is off-peak.
    pub(crate) fn set_calendar(
        &self,
        tenant: TenantId,
        calendar: &CalendarSet,
    ) -> Outcome<CalendarView> {
        self.change(&Method::PUT, &format!("/v1/tenants/{tenant}/calendar"), Some(calendar))
    }

    /// Sets what a tenant is called.
    pub(crate) fn name_tenant(&self, tenant: TenantId, name: &NameSet) -> Outcome<NameView> {
        self.change(&Method::PUT, &format!("/v1/tenants/{tenant}/name"), Some(name))
    }

    /// Erases what a tenant is called.
    pub(crate) fn erase_name(&self, tenant: TenantId) -> Outcome<NameView> {
        self.change(&Method::DELETE, &format!("/v1/tenants/{tenant}/name"), NOTHING)
    }

    /// Moves a tenant to another group.
    pub(crate) fn move_tenant(&self, tenant: TenantId, to: &ParentSet) -> Outcome<ParentView> {
        self.change(&Method::PUT, &format!("/v1/tenants/{tenant}/parent"), Some(to))
    }

    /// The quotas.
    pub(crate) fn quotas(&self, query: &Query) -> Outcome<Vec<QuotaView>> {
        all(self, &query.path("/v1/quotas"), usize::MAX)
    }

    /// Sets a quota.
    pub(crate) fn set_quota(
        &self,
        tenant: TenantId,
        model: GpuModel,
        quota: &QuotaSet,
    ) -> Outcome<QuotaView> {
        self.change(&Method::PUT, &format!("/v1/tenants/{tenant}/quotas/{model}"), Some(quota))
    }

    /// The clusters.
    pub(crate) fn clusters(&self) -> Outcome<Vec<ClusterView>> {
        all(self, "/v1/clusters", usize::MAX)
    }

    /// The nodes of a cluster.
    pub(crate) fn nodes(&self, cluster: ClusterId) -> Outcome<Vec<NodeView>> {
        all(self, &format!("/v1/clusters/{cluster}/nodes"), usize::MAX)
    }

    /// Forgets a node that is no more.
    pub(crate) fn remove_node(&self, cluster: ClusterId, node: NodeId) -> Outcome<NodeRemoved> {
        self.change(&Method::DELETE, &format!("/v1/clusters/{cluster}/nodes/{node}"), NOTHING)
    }

    /// Adds a cluster.
    pub(crate) fn create_cluster(&self, cluster: &ClusterCreate) -> Outcome<ClusterView> {
        self.change(&Method::POST, "/v1/clusters", Some(cluster))
    }

    /// The posted prices.
    pub(crate) fn prices(&self, query: &Query) -> Outcome<Vec<PriceView>> {
        all(self, &query.path("/v1/prices"), usize::MAX)
    }

    /// Posts a price.
    pub(crate) fn set_price(&self, price: &PriceSet) -> Outcome<PriceView> {
        self.change(&Method::PUT, "/v1/prices", Some(price))
    }
}
