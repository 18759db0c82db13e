//! `/`: how the cell is, for a person with a browser. Needs no script and shows no names.

use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_FRAME_OPTIONS};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};
use sublet_protocol::api::{StatusView, Time};
use sublet_protocol::records::Record;

use super::status::status_of;
use crate::http::app::App;
use crate::http::error::ApiError;

/// How often the page asks again, in seconds.
const REFRESH: u32 = 5;
/// Events that are shown.
const EVENTS: u64 = 20;

const STYLE: &str = "\
:root{color-scheme:light dark;font:16px/1.4 system-ui,sans-serif}\
body{max-width:64rem;margin:2rem auto;padding:0 1rem}\
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(10rem,1fr));gap:1rem}\
dl div{border:1px solid;border-radius:.5rem;padding:.5rem 1rem}\
dt{font-size:.8rem}dd{margin:0;font-size:1.6rem}\
code{overflow-wrap:anywhere}td,th{text-align:left;padding-right:1.5rem}";

/// How the cell is, as a page.
#[utoipa::path(
    get, path = "/", tag = "status",
    responses((status = OK, body = String, content_type = "text/html")),
)]
pub(crate) async fn page(State(app): State<App>) -> Result<Response, ApiError> {
    let status = status_of(&app)?;
    let from = status.ledger.size.saturating_sub(EVENTS);
    let limit = usize::try_from(EVENTS).unwrap_or(usize::MAX);
    let events = app.cell.records(from, limit)?;
    let headers: [(HeaderName, String); 3] = [
        (CONTENT_SECURITY_POLICY, policy()),
        (REFERRER_POLICY, "no-referrer".to_owned()),
        (X_FRAME_OPTIONS, "DENY".to_owned()),
    ];
    Ok((headers, render(&status, &events)).into_response())
}

/// Nothing may be loaded or run but the one style sheet in the page, named by its hash.
fn policy() -> String {
    use base64::Engine;
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
}

fn render(status: &StatusView, events: &[Record]) -> Markup {
    let cell = status.cell.map_or_else(|| "no cell yet".to_owned(), |cell| cell.to_string());
    let live = status.leases.granted + status.leases.active + status.leases.ending;
    let hours = status.gpu_seconds_lent / 3_600;
    let tenths = status.gpu_seconds_lent % 3_600 / 360;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(REFRESH);
                meta name="viewport" content="width=device-width";
                title { "Sublet · " (cell) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Sublet · " (cell) }
                p { "Ledger time " (status.now) " · version " (status.version) }
                dl {
                    (tile("GPUs on offer", &status.offers.to_string()))
                    (tile("requests waiting", &status.waiting.to_string()))
                    (tile("live leases", &live.to_string()))
                    (tile("of them active", &status.leases.active.to_string()))
                    (tile("tenants", &status.tenants.to_string()))
                    (tile("clusters", &status.clusters.to_string()))
                    (tile("nodes silent", &format!("{} of {}", status.nodes_silent, status.nodes)))
                    (tile("GPU-hours lent since start", &format!("{hours}.{tenths}")))
                    (tile("ledger records", &status.ledger.size.to_string()))
                }
                p { "Ledger root " code { (status.ledger.root) } }
                h2 { "Last events" }
                (table(events))
                p { "By command line: " code { "sublet status" } ", " code { "sublet events" } }
            }
        }
    }
}

fn tile(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

fn table(events: &[Record]) -> Markup {
    html! {
        table {
            thead { tr { th { "#" } th { "ledger time" } th { "event" } } }
            tbody {
                @for record in events.iter().rev() {
                    tr {
                        td { (record.index) }
                        td { (Time(record.time)) }
                        td { (record.event.name()) }
                    }
                }
            }
        }
    }
}
