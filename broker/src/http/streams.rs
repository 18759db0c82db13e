//! Streams: records as server-sent events, guest output as lines of JSON.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{FutureExt, Stream, stream};
use sublet_protocol::api::{LogLine, RecordView};
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::records::Record;

use super::app::{App, StreamPermit};
use super::error::ApiError;
use super::extract::Params;
use super::views;
use super::visibility::Visibility;
use crate::error::Chain;
use crate::records::Subscription;
use crate::relay::Reader;

/// How often a silent stream says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Where a stream of records begins: behind `Last-Event-ID`, at `?from=`, or where it says itself.
pub(crate) fn start(headers: &HeaderMap, params: &mut Params) -> Result<Option<u64>, ApiError> {
    let from = params.whole("from", 0..=u64::MAX)?;
    let mut values = headers.get_all("last-event-id").iter();
    let Some(last) = values.next() else { return Ok(from) };
    let text = last.to_str().ok().filter(|_| values.next().is_none());
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let last: Option<u64> = digits.and_then(|text| text.parse().ok());
    let detail = "the id of the last event is the index of a record";
    let last = last.ok_or_else(|| ApiError::malformed("EVENT_ID_INVALID", "Last-Event-ID", detail));
    last.map(|last| Some(last.saturating_add(1)))
}

/// What a stream of records shows, and when it ends.
pub(crate) enum Shown {
    /// All that the caller sees, without end.
    Visible(Visibility),
    /// All of one lease, up to its end.
    Lease(LeaseId),
}

struct Records {
    app: App,
    permit: StreamPermit,
    /// Those that were there when the stream began, if they were looked up.
    before: std::vec::IntoIter<Record>,
    subscription: Subscription,
    shown: Shown,
    is_over: bool,
    /// Whether the caller must be told that it is ahead of the journal.
    must_resync: bool,
}

/// A stream of the records from index `from` on. A caller that has seen more records than there are
/// (the cell was restored from a backup) is told by an event `resync` to read everything again.
pub(crate) fn records(
    app: App,
    permit: StreamPermit,
    shown: Shown,
    from: u64,
) -> Result<Response, ApiError> {
    let size = app.cell.head()?.size;
    let (before, next) = match &shown {
        Shown::Visible(_) => (Vec::new(), from.min(size)),
        Shown::Lease(lease) => {
            let mut records = app.cell.records_of_lease(*lease)?;
            let next = records.last().map_or(size, |record| record.index + 1);
            records.retain(|record| record.index >= from);
            (records, next)
        }
    };
    let is_over = match &shown {
        Shown::Visible(_) => false,
        // Ended, and all was seen.
        Shown::Lease(lease) => before.is_empty() && has_ended(&app, *lease)?,
    };
    let records = Records {
        subscription: app.cell.subscribe(next),
        before: before.into_iter(),
        must_resync: from > size,
        app,
        permit,
        shown,
        is_over,
    };
    let keep_alive = KeepAlive::new().interval(HEARTBEAT);
    Ok(axum::response::Sse::new(events(records)).keep_alive(keep_alive).into_response())
}

fn has_ended(app: &App, lease: LeaseId) -> Result<bool, ApiError> {
    let records = app.cell.records_of_lease(lease)?;
    Ok(records.iter().any(|record| matches!(record.event, Event::LeaseEnded { .. })))
}

fn events(records: Records) -> impl Stream<Item = Result<Sse, Infallible>> {
    stream::unfold(records, |mut records| async move {
        if records.must_resync {
            records.must_resync = false;
            let size = records.app.cell.head().map_or(0, |head| head.size);
            let event = Sse::default().event("resync").data(format!("{{\"size\":{size}}}"));
            return Some((Ok(event), records));
        }
        let record = records.next().await?;
        let (id, kind) = (record.index.to_string(), record.event.name());
        let data = serde_json::to_string(&RecordView::from(record));
        let event = Sse::default().id(id).event(kind).data(data.unwrap_or_default());
        Some((Ok(event), records))
    })
}

impl Records {
    /// The next record that is shown; nothing once the stream is over.
    async fn next(&mut self) -> Option<Record> {
        while !self.is_over {
            let record = match self.before.next() {
                Some(record) => record,
                None => tokio::select! {
                    next = self.subscription.next() => match next? {
                        Ok(record) => Record::clone(&record),
                        Err(error) => {
                            tracing::error!(error = %Chain(&error), "a watch broke off");
                            return None;
                        }
                    },
                    () = self.permit.stopped() => return None,
                },
            };
            let is_shown = match &mut self.shown {
                Shown::Visible(visibility) => visibility.sees(&self.app, &record).ok()?,
                Shown::Lease(lease) => record.event.lease() == Some(*lease),
            };
            if !is_shown {
                continue;
            }
            if matches!(self.shown, Shown::Lease(_)) {
                // A charge may be turned long after.
                self.is_over =
                    matches!(record.event, Event::LeaseEnded { .. } | Event::ChargeTurned { .. });
            }
            return Some(record);
        }
        None
    }
}

/// Whether a stream of output waits for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Until the lease has ended.
    ToTheEnd,
    /// It gives what is there.
    No,
}

struct Output {
    app: App,
    lease: LeaseId,
    permit: StreamPermit,
    reader: Option<Reader>,
    follow: Follow,
    is_over: bool,
}

/// The output of a lease as lines of JSON. Without a reader (its output is forgotten) only the end.
pub(crate) fn output(
    app: App,
    permit: StreamPermit,
    (lease, reader): (LeaseId, Option<Reader>),
    follow: Follow,
) -> Result<Response, ApiError> {
    let output = Output { app, lease, permit, reader, follow, is_over: false };
    let lines = stream::unfold(output, |mut output| async move {
        let line = output.next().await?;
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some((Ok::<_, Infallible>(text), output))
    });
    let body = Body::from_stream(lines);
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

impl Output {
    async fn next(&mut self) -> Option<LogLine> {
        if self.is_over {
            return None;
        }
        if let Some(reader) = &mut self.reader {
            let piece = match self.follow {
                Follow::No => reader.next().now_or_never()?,
                Follow::ToTheEnd => tokio::select! {
                    piece = reader.next() => piece,
                    () = self.permit.stopped() => return None,
                },
            };
            if let Some(piece) = piece {
                return Some(LogLine::Output {
                    stream: piece.stream,
                    offset: piece.offset,
                    missed: piece.missed,
                    base64: STANDARD.encode(&piece.bytes),
                });
            }
        }
        self.is_over = true;
        let records = self.app.cell.records_of_lease(self.lease).ok()?;
        let view = views::lease(&records, self.app.currency())?;
        Some(LogLine::End { exit_code: view.exit_code, reason: view.end_reason? })
    }
}
