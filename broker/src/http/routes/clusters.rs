//! `/v1/clusters`.

use std::ops::Bound;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_protocol::api::{ClusterCreate, ClusterView, NodeRemoved, NodeView, Page, Problem};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::{ClusterId, NodeId};

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Id, Ids, Json, NoBody, Operator, Params, Reader};
use crate::http::lists::page;
use crate::http::mutation::Mutation;
use crate::http::views;

/// Clusters that the caller sees: those it owns, or all of the cell.
#[utoipa::path(
    get, path = "/v1/clusters", tag = "clusters", security(("token" = [])),
    params(("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses((status = OK, body = Page<ClusterView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<ClusterView>>, ApiError> {
    let after: Option<ClusterId> = params.id("cursor")?;
    let limit = params.limit()?;
    params.end()?;
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let read = app.cell.read(|state| {
        let seen = state.clusters().range((from, Bound::Unbounded));
        let seen = seen.filter(|(_, cluster)| reader.scope.sees(cluster.owner()));
        let view = |(id, cluster): (&ClusterId, &sublet_core::Cluster)| {
            let clock_of = |node| app.cell.clock_of(*id, node);
            (id.to_string(), views::cluster(*id, cluster, state, clock_of))
        };
        page(seen.map(view), limit)
    });
    Ok(Answer(read.await?))
}

/// Nodes of a cluster whose agents have registered, with their clocks. For its owner.
#[utoipa::path(
    get, path = "/v1/clusters/{cluster}/nodes", tag = "clusters", security(("token" = [])),
    params(("cluster" = String, Path), ("cursor" = Option<String>, Query),
        ("limit" = Option<u32>, Query)),
    responses((status = OK, body = Page<NodeView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn nodes(
    State(app): State<App>,
    reader: Reader,
    Id(id): Id<ClusterId>,
    mut params: Params,
) -> Result<Answer<Page<NodeView>>, ApiError> {
    let after: Option<NodeId> = params.id("cursor")?;
    let limit = params.limit()?;
    params.end()?;
    let read = app.cell.read(|state| {
        state.clusters().get(&id).filter(|cluster| reader.scope.sees(cluster.owner()))?;
        let its = state.nodes().iter().filter(|((cluster, _), _)| *cluster == id);
        let rest = its.filter(|((_, node), _)| after.is_none_or(|after| *node > after));
        let view = |(key, node): (&(ClusterId, NodeId), &sublet_core::Node)| {
            (key.1.to_string(), views::node(*key, node, state, app.cell.clock_of(key.0, key.1)))
        };
        Some(page(rest.map(view), limit))
    });
    read.await?.map(Answer).ok_or_else(ApiError::not_found)
}

/// Forgets a node that is no more, so that another machine can have its id: one whose agent is silent,
/// or that two machines claim, once every lease there has ended.
#[utoipa::path(
    delete, path = "/v1/clusters/{cluster}/nodes/{node}", tag = "clusters",
    security(("token" = [])),
    params(("cluster" = String, Path), ("node" = String, Path),
        ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = NodeRemoved), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn remove_node(
    State(app): State<App>,
    Operator(caller): Operator,
    Ids(cluster, node): Ids<ClusterId, NodeId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<NodeRemoved>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let command = Command::RemoveNode { cluster, node };
    let change = Mutation { actor, call: &call, body: &(), command }.make(&app).await?;
    let view = change.find(views::node_removed);
    view.map(Answer).ok_or_else(ApiError::internal)
}

/// Adds a cluster.
#[utoipa::path(
    post, path = "/v1/clusters", tag = "clusters", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = ClusterCreate,
    responses((status = CREATED, body = ClusterView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<ClusterCreate>,
) -> Result<(StatusCode, Answer<ClusterView>), ApiError> {
    let ClusterCreate { id, owner, region, devices_max } = body.value;
    let is_known = app.cell.read(|state| state.tenants().contains_key(&owner)).await?;
    if !is_known {
        let detail = format!("there is no tenant {owner}");
        return Err(ApiError::content("TENANT_MISSING", "/owner", detail));
    }
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let devices_max = devices_max.get_u32();
    let command = Command::CreateCluster { cluster: id, owner, region, devices_max };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let view = change.find(views::cluster_created);
    Ok((StatusCode::CREATED, Answer(view.ok_or_else(ApiError::internal)?)))
}
