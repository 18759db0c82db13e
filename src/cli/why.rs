//! `sublet why`: why a request waits, or why a request or lease is in its state.

use clap::Args;
use sublet_protocol::api::WhyView;

use super::amounts::word;
use super::find;
use super::global::Context;
use crate::failure::Outcome;

/// Say why a request or lease is in its state.
#[derive(Debug, Args)]
pub(super) struct Why {
    /// A request or lease: its id or a unique beginning of it.
    id: String,
}

impl Why {
    /// Prints it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let found = find::either(&client, &self.id)?;
        let why = find::or_unknown(&client, found, client.why(&found.to_string()))?;
        context.printer.item(&why, &fields(&why))
    }
}

/// The answer as names and values.
pub(super) fn fields(why: &WhyView) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    if let Some(id) = &why.id {
        fields.push(("id", id.clone()));
    }
    fields.push(("state", why.state.clone()));
    fields.push(("reason", format!("{} ({})", why.text, why.code)));
    if let Some(since) = why.since {
        fields.push(("since", since.to_string()));
    }
    if let (Some(position), Some(ahead)) = (why.position, why.ahead) {
        fields.push(("position", format!("{position} ({ahead} ahead)")));
    }
    if let Some(warning) = &why.warning {
        fields.push(("warning", warning.clone()));
    }
    if let Some(start) = why.promised_start {
        fields.push(("promised start", format!("{start} at the latest")));
    }
    if why.position.is_some() || why.latest_start.is_some() {
        fields.push(("expected", expected(why)));
    }
    let misses = why.near_misses.iter().map(|miss| {
        let place = miss.cluster.map(|cluster| format!(", as in {cluster}")).unwrap_or_default();
        let detail = miss.detail.as_ref().map(|more| format!(" ({more})")).unwrap_or_default();
        let offers = if miss.offers == 1 { "offer" } else { "offers" };
        let (count, reason) = (miss.offers, word(&miss.reason));
        format!("{count} {offers} would fit but for {reason}{place}{detail}")
    });
    let misses: Vec<String> = misses.collect();
    if !misses.is_empty() {
        fields.push(("near misses", misses.join("\n")));
    }
    if let Some(change) = &why.change {
        fields.push(("would help", change.clone()));
    }
    fields
}

/// When a waiting request will start, as far as that can be told.
fn expected(why: &WhyView) -> String {
    match (why.earliest_start, why.latest_start) {
        (Some(earliest), Some(latest)) if earliest == latest => format!("{latest}"),
        (Some(earliest), Some(latest)) => format!("{earliest} to {latest}"),
        (Some(_), None) | (None, Some(_)) | (None, None) => "not known".to_owned(),
    }
}
