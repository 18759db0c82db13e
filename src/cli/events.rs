//! `sublet events`: what happens in the cell, record by record.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use sublet_protocol::api::RecordView;
use sublet_protocol::units::Seconds;

use super::amounts;
use super::global::Context;
use crate::client::{Client, Query, all};
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{self, Format, Printer};
use crate::units::show_seconds;

/// Print what happens in the cell, record by record.
#[derive(Debug, Args)]
pub(super) struct Events {
    /// Go on with what happens from now on, until ctrl-c.
    #[arg(long, short)]
    follow: bool,
    /// Begin with this record. Default: the last ten, and with --follow what comes.
    #[arg(long, value_name = "INDEX")]
    from: Option<u64>,
    /// At most this many.
    #[arg(long, value_parser = amounts::limit, value_name = "COUNT", allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Only records of this kind, as lease_granted; may be given several times.
    #[arg(long = "kind", value_delimiter = ',')]
    kinds: Vec<String>,
}

/// What is shown of the past unless asked otherwise.
const LAST: u64 = 10;
/// Between two tries to connect again.
const RECONNECT: Duration = Duration::from_millis(500);
/// How long a server may be away before following ends.
const AWAY_MAX: Duration = Duration::from_secs(60);

impl Events {
    /// Prints them.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        let client = context.client()?;
        let printer = context.printer;
        let end = client.ledger()?.size;
        if printer.format == Format::Csv {
            printer.csv(&["index", "time", "kind", "detail"].map(str::to_owned))?;
        }
        let mut left = self.limit.unwrap_or(usize::MAX);
        if self.follow {
            let first = self.from.unwrap_or(end);
            self.follow(&client, printer, first, &mut left)?;
        } else {
            let first = self.from.unwrap_or(end.saturating_sub(LAST));
            let query = Query::new().with("from", Some(first));
            let limit = if self.kinds.is_empty() { left } else { usize::MAX };
            let records: Vec<RecordView> = all(&client, &query.path("/v1/ledger/records"), limit)?;
            for record in records.iter().filter(|record| self.wants(record)).take(left) {
                print(printer, record)?;
            }
        }
        Ok(Exit::Done)
    }

    fn wants(&self, record: &RecordView) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&record.kind)
    }

    /// Follows the stream; when it breaks, goes on after the last record that was seen.
    fn follow(
        &self,
        client: &Client,
        printer: Printer,
        first: u64,
        left: &mut usize,
    ) -> Outcome<()> {
        let path = Query::new().with("from", Some(first)).path("/v1/watch");
        let mut last: Option<String> = None;
        let mut away: Option<Instant> = None;
        loop {
            match self.read(client, printer, &path, &mut last, left) {
                Ok(()) if *left == 0 => return Ok(()),
                Ok(()) => away = None,
                Err(failure) if failure.exit() != Exit::Temporary => return Err(failure),
                Err(failure) => {
                    let since = *away.get_or_insert_with(Instant::now);
                    if last.is_none() || since.elapsed() > AWAY_MAX {
                        return Err(failure);
                    }
                }
            }
            std::thread::sleep(RECONNECT);
        }
    }

    /// Reads one connection until it ends; remembers the id of the last event.
    fn read(
        &self,
        client: &Client,
        printer: Printer,
        path: &str,
        last: &mut Option<String>,
        left: &mut usize,
    ) -> Outcome<()> {
        for event in client.events(path, last.as_deref())? {
            // A broken connection is like its end: what comes after the last id follows later.
            let Ok(event) = event else { return Ok(()) };
            if event.id.is_some() {
                last.clone_from(&event.id);
            }
            let Ok(record) = serde_json::from_str::<RecordView>(&event.data) else {
                output::note(&format!("({}: {})", event.kind, event.data));
                continue;
            };
            if !self.wants(&record) {
                continue;
            }
            print(printer, &record)?;
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn print(printer: Printer, record: &RecordView) -> Outcome<()> {
    match printer.format {
        // One record a line, also on a terminal: a stream is read line by line.
        Format::Json => {
            let line = serde_json::to_string(record).map_err(|error| {
                Failure::new(Exit::Failed, "cannot write a record as JSON").because(error)
            })?;
            output::print(&format!("{line}\n"))
        }
        Format::Csv => printer.csv(&[
            record.index.to_string(),
            record.time.to_string(),
            record.kind.clone(),
            detail(record),
        ]),
        Format::Table | Format::Wide => {
            let detail = detail(record);
            output::print(&format!(
                "{:>8}  {}  {:<18}  {detail}\n",
                record.index, record.time, record.kind
            ))
        }
    }
}

/// The fields of the event that a line has room for: ids, names, reasons.
fn detail(record: &RecordView) -> String {
    const SHOWN: [&str; 15] = [
        "lease",
        "request",
        "tenant",
        "owner",
        "cluster",
        "node",
        "device",
        "model",
        "tier",
        "reason",
        "cause",
        "outcome",
        "used",
        "generation",
        "attempt",
    ];
    let Ok(Value::Object(event)) = serde_json::to_value(&record.event) else {
        return String::new();
    };
    let mut fields = event.get(&record.kind).cloned().unwrap_or(Value::Null);
    // A grant's and an offer's own words stand one level deeper.
    for inner in ["terms", "offer"] {
        if let Some(deeper) = fields.get(inner) {
            fields = deeper.clone();
        }
    }
    let shown = SHOWN.iter().filter_map(|name| {
        // Where a slice is stands in the slice.
        let slice = fields.get("slice").and_then(|slice| slice.get(name));
        let value = fields.get(name).or(slice).filter(|value| !value.is_null())?;
        let text = match (*name, value.as_u64()) {
            ("used", Some(millis)) => show_seconds(Seconds::new(millis / 1_000)).replace(' ', ""),
            _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        Some(format!("{name}={text}"))
    });
    shown.collect::<Vec<_>>().join(" ")
}
