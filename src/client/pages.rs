//! Lists that come in pages.

use serde::de::DeserializeOwned;
use sublet_protocol::api::Page;

use super::Client;
use crate::failure::Outcome;

/// Most pages that are read of one list.
const PAGES_MAX: usize = 10_000;

/// Every item of the list at `path` (with its query, if any), at most `limit`.
pub(crate) fn all<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    limit: usize,
) -> Outcome<Vec<T>> {
    let joint = if path.contains('?') { '&' } else { '?' };
    let mut items = Vec::new();
    let mut next = path.to_owned();
    for _ in 0..PAGES_MAX {
        let page: Page<T> = client.get(&next)?;
        items.extend(page.items);
        match page.next_cursor {
            Some(cursor) if items.len() < limit => next = format!("{path}{joint}cursor={cursor}"),
            _ => break,
        }
    }
    items.truncate(limit);
    Ok(items)
}
