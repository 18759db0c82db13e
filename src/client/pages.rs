//! Lists that come in pages.

use serde::de::DeserializeOwned;
use sublet_protocol::api::Page;

use super::Client;
use crate::failure::Outcome;

/// Items of a page; the API gives no more.
const PAGE: u32 = 500;
/// Most pages that are read of one list.
const PAGES_MAX: usize = 10_000;

/// Shows every item of the list at `path` (without a query) to `look`, page by page: of a long list only a
/// page is held.
pub(crate) fn each<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    mut look: impl FnMut(T),
) -> Outcome<()> {
    let mut next = Some(format!("{path}?limit={PAGE}"));
    while let Some(at) = next {
        let page: Page<T> = client.get(&at)?;
        page.items.into_iter().for_each(&mut look);
        next = page.next_cursor.map(|cursor| format!("{path}?limit={PAGE}&cursor={cursor}"));
    }
    Ok(())
}

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
