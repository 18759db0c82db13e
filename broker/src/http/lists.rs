//! Lists in pages: from the state by id, from the journal by index.

use sublet_protocol::api::Page;
use sublet_protocol::records::Record;

use super::app::App;
use super::error::ApiError;
use crate::auth::Scope;
use crate::cell::RECORDS_MAX;

/// Most batches of [`RECORDS_MAX`] records that are searched for one page.
const BATCHES_MAX: usize = 20;

/// The first `limit` of the items, each with the cursor that stands behind it.
pub(crate) fn page<T>(items: impl Iterator<Item = (String, T)>, limit: usize) -> Page<T> {
    let mut taken: Vec<(String, T)> = items.take(limit.saturating_add(1)).collect();
    let is_last = taken.len() <= limit;
    taken.truncate(limit);
    let next_cursor = taken.last().filter(|_| !is_last).map(|(cursor, _)| cursor.clone());
    Page { items: taken.into_iter().map(|(_, item)| item).collect(), next_cursor }
}

/// What `pick` finds in the records that `scope` is named in, behind record `after`.
///
/// At most `limit`, and no more than a bounded number of records are searched: a page may be short
/// and have a cursor all the same.
pub(crate) fn search<T>(
    app: &App,
    scope: Scope,
    (after, limit): (Option<u64>, usize),
    mut pick: impl FnMut(&Record) -> Result<Option<T>, ApiError>,
) -> Result<Page<T>, ApiError> {
    let (mut items, mut after) = (Vec::new(), after);
    for _ in 0..BATCHES_MAX {
        let batch = match scope {
            Scope::Tenant(tenant) => app.cell.records_of_tenant(tenant, after, RECORDS_MAX)?,
            Scope::Cell => match after.map_or(Some(0), |last| last.checked_add(1)) {
                Some(from) => app.cell.records(from, RECORDS_MAX)?,
                None => Vec::new(),
            },
        };
        let is_end = batch.len() < RECORDS_MAX;
        for record in &batch {
            if items.len() == limit {
                return Ok(Page { items, next_cursor: after.map(|last| last.to_string()) });
            }
            after = Some(record.index);
            items.extend(pick(record)?);
        }
        if is_end {
            return Ok(Page { items, next_cursor: None });
        }
    }
    Ok(Page { items, next_cursor: after.map(|last| last.to_string()) })
}
