//! `/v1/cell`: the brokers of the cell, and changes of them.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_protocol::api::{
    BrokerAdd, BrokerRole, BrokerView, CellView, DiskRoom, DiskView, LevelSet, Problem,
};
use sublet_protocol::commands::Command;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Auditor, Call, Json, NoBody, Number, Operator, Params};
use crate::http::mutation::Mutation;
use crate::members::Broker;
use crate::raft::Endpoint;
use crate::space::{Room, Space};

/// Longest address in bytes.
const ADDRESS_MAX: usize = 255;

/// The brokers, as this one sees them. Answered also by a broker that knows of no leader.
#[utoipa::path(
    get, path = "/v1/cell", tag = "cell", security(("token" = [])),
    responses((status = OK, body = CellView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    _: Auditor,
    params: Params,
) -> Result<Answer<CellView>, ApiError> {
    params.end()?;
    Ok(Answer(view(&app).await))
}

async fn view(app: &App) -> CellView {
    let brokers = app.cell.brokers().await;
    let status = app.cell.status();
    let applied = |broker: &Broker| broker.health.as_ref().and_then(|health| health.applied);
    let furthest = brokers.iter().filter_map(applied).max();
    let views = brokers.iter().map(|broker| {
        let member = &broker.member;
        let role = match member.is_voter {
            _ if status.leader == Some(member.node_id) => BrokerRole::Leader,
            true => BrokerRole::Voter,
            false => BrokerRole::Learner,
        };
        let health = broker.health.as_ref();
        let applied = applied(broker);
        BrokerView {
            id: member.node_id,
            role,
            peer: member.endpoint.peer.clone(),
            api: member.endpoint.api.clone(),
            reached: health.is_some(),
            version: health.map(|health| health.version.clone()),
            applied,
            lag: furthest.zip(applied).map(|(furthest, applied)| furthest.saturating_sub(applied)),
            records: health.map(|health| health.records),
            root: health.map(|health| hex::encode(health.root)),
            disk: health.and_then(|health| health.disk).map(disk),
            feature_level: health.map(|health| health.feature_level),
        }
    });
    CellView {
        cell: app.cell.read_stale(|state| state.cell().map(|(cell, _)| cell)),
        broker: status.node_id,
        leader: status.leader,
        term: status.term,
        feature_level: app.cell.read_stale(|state| state.feature_level()),
        brokers: views.collect(),
    }
}

fn disk((Space { free, total }, room): (Space, Room)) -> DiskView {
    let room = match room {
        Room::Full => DiskRoom::Full,
        Room::Low => DiskRoom::Low,
        Room::Plenty => DiskRoom::Plenty,
    };
    DiskView { room, free_bytes: free, total_bytes: total }
}

/// Takes a broker in. It copies the log first and then gets a vote; the answer comes when it has
/// one, or with 503 `BROKER_BEHIND` while it still copies: ask again then.
#[utoipa::path(
    post, path = "/v1/cell/brokers", tag = "cell", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = BrokerAdd,
    responses((status = CREATED, body = CellView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn add(
    State(app): State<App>,
    _: Operator,
    _call: Call,
    body: Json<BrokerAdd>,
) -> Result<(StatusCode, Answer<CellView>), ApiError> {
    let BrokerAdd { id, peer, api } = body.value;
    if id == 0 {
        return Err(ApiError::content("BODY_INVALID", "/id", "brokers are numbered from 1"));
    }
    let is_address = peer.len() <= ADDRESS_MAX
        && peer.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0)
        });
    if !is_address {
        let detail = "write the address as host:port";
        return Err(ApiError::content("BODY_INVALID", "/peer", detail));
    }
    let is_url = api.len() <= ADDRESS_MAX
        && (api.is_empty() || api.starts_with("http://") || api.starts_with("https://"));
    if !is_url {
        let detail = "write the URL as http://host:port";
        return Err(ApiError::content("BODY_INVALID", "/api", detail));
    }
    app.cell.add_broker(id, Endpoint { peer, api }).await?;
    Ok((StatusCode::CREATED, Answer(view(&app).await)))
}

/// Lets the cell use what needs a feature level, if every broker can do that. There is no way back.
#[utoipa::path(
    put, path = "/v1/cell/level", tag = "cell", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = LevelSet,
    responses((status = OK, body = CellView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn raise(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<LevelSet>,
) -> Result<Answer<CellView>, ApiError> {
    let level = body.value.level;
    app.cell.can_raise(level).await?;
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let command = Command::RaiseFeatureLevel { level };
    Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    Ok(Answer(view(&app).await))
}

/// Takes a broker out of the cell. Its number must not be used again.
#[utoipa::path(
    delete, path = "/v1/cell/brokers/{broker}", tag = "cell", security(("token" = [])),
    params(("broker" = u64, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = CellView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    _: Operator,
    Number(broker): Number,
    _call: Call,
    _: NoBody,
) -> Result<Answer<CellView>, ApiError> {
    app.cell.remove_broker(broker).await?;
    Ok(Answer(view(&app).await))
}
