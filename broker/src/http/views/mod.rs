//! Bodies from state and journal. Pure: a view is a function of the records or the state it shows.

mod leases;
mod offers;
mod registry;
mod requests;
mod spec;
mod terms;
pub(crate) mod texts;

pub(crate) use leases::lease;
pub(crate) use offers::{OfferFilter, is_offer_group, offers};
pub(crate) use registry::{
    cluster, cluster_created, node, node_removed, price, price_set, quota_of, quota_set, quotas,
    tenant, tenant_created,
};
pub(crate) use requests::request;
pub(crate) use spec::{from_body, money};
pub(crate) use terms::{over_admitted, terms, terms_set};
