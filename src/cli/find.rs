//! Leases and requests by what a person types: a whole id, a unique prefix, with or without its
//! letter.

use sublet_protocol::ids::{LeaseId, RequestId};

use crate::client::{Client, Query};
use crate::failure::{Exit, Outcome};
use crate::suggest;

/// What is looked for, in messages.
const KIND: &str = "lease or request";
/// Most leases and most requests that a prefix is looked up among.
const CANDIDATES_MAX: usize = 10_000;

/// A lease or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A lease.
    Lease(LeaseId),
    /// A request.
    Request(RequestId),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Lease(id) => id.fmt(f),
            Found::Request(id) => id.fmt(f),
        }
    }
}

impl Found {
    fn parse(text: &str) -> Option<Found> {
        let text = text.to_lowercase();
        let lease = text.parse().ok().map(Found::Lease);
        lease.or_else(|| text.parse().ok().map(Found::Request))
    }
}

/// The lease or request that `given` means; live ones go before ended ones. Only a prefix costs a look
/// at the lists.
pub(super) fn either(client: &Client, given: &str) -> Outcome<Found> {
    if let Some(found) = Found::parse(given) {
        return Ok(found);
    }
    let mut ids = Vec::new();
    for state in [None, Some("all")] {
        ids = all_ids(client, state)?;
        match suggest::by_prefix(KIND, given, &ids) {
            Ok(id) => return Found::parse(&id).ok_or_else(|| suggest::unknown(KIND, given, &ids)),
            // What is not live may have ended.
            Err(failure) if failure.exit() == Exit::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(suggest::unknown(KIND, given, &ids))
}

/// What was `answered` about `found`; if there is no such thing, with its name and the nearest one.
pub(super) fn or_unknown<T>(client: &Client, found: Found, answered: Outcome<T>) -> Outcome<T> {
    match answered {
        Err(failure) if failure.exit() == Exit::NotFound => {
            let ids = all_ids(client, Some("all"))?;
            let kind = match found {
                Found::Lease(_) => "lease",
                Found::Request(_) => "request",
            };
            Err(suggest::unknown(kind, &found.to_string(), &ids))
        }
        answered => answered,
    }
}

/// Ids of live leases and open requests, or (`all`) of all there ever were.
fn all_ids(client: &Client, state: Option<&str>) -> Outcome<Vec<String>> {
    let query = Query::new().with("state", state);
    let leases = client.leases(&query, CANDIDATES_MAX)?;
    let requests = client.requests(&query, CANDIDATES_MAX)?;
    let leases = leases.iter().map(|lease| lease.id.to_string());
    Ok(leases.chain(requests.iter().map(|request| request.id.to_string())).collect())
}
