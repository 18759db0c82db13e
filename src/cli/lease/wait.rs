//! `sublet lease wait`: wait until a lease runs or has ended.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sublet_protocol::api::{LeaseState, LeaseView};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::Seconds;

use super::super::find::{self, Found};
use super::super::global::Context;
use super::grant::{self, Waited};
use super::show;
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::signals::Signals;
use crate::units::parse_seconds;

/// Wait until a lease runs or has ended. Exit code 7 if it ended before its work did, 124 if the
/// time is over.
#[derive(Debug, Args)]
pub(in crate::cli) struct Wait {
    /// A lease or request: its id or a unique beginning of it.
    id: String,
    /// For what.
    #[arg(long = "for", value_enum, default_value = "active")]
    goal: Goal,
    /// How long at most. Default: as long as it takes.
    #[arg(long, value_parser = parse_seconds, value_name = "SPAN")]
    timeout: Option<Seconds>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Goal {
    /// Its guests may run.
    Active,
    /// It is over.
    Ended,
}

/// Between two looks at a lease.
const LOOK: Duration = Duration::from_millis(200);

impl Wait {
    /// Does it and prints the lease.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<Exit> {
        let signals = Signals::listen()?;
        let deadline = self.timeout.map(|span| Instant::now() + Duration::from_secs(span.get()));
        let found = find::either(client, &self.id)?;
        let id = match found {
            Found::Lease(id) => find::or_unknown(client, found, client.lease(id))?.id,
            Found::Request(id) => match grant::wait(client, id, deadline, &signals)? {
                Waited::Granted(lease) => lease.id,
                Waited::OutOfTime(_) => return Err(out_of_time(&id.to_string())),
                Waited::Interrupted(_) => return Ok(Exit::Interrupted),
                Waited::Over(request) => match request.lease {
                    Some(lease) => lease,
                    None => {
                        let what = format!("request {id} is {}", request.state.as_str());
                        let why = &request.state_reason.text;
                        return Err(Failure::new(Exit::LeaseFailed, what).because(why));
                    }
                },
            },
        };
        self.lease(context, client, id, deadline, &signals)
    }

    fn lease(
        &self,
        context: &Context,
        client: &Client,
        id: LeaseId,
        deadline: Option<Instant>,
        signals: &Signals,
    ) -> Outcome<Exit> {
        loop {
            let lease = client.lease(id)?;
            let is_there = match self.goal {
                Goal::Active => lease.state == LeaseState::Active,
                Goal::Ended => lease.state == LeaseState::Ended,
            };
            if is_there || lease.state == LeaseState::Ended {
                context.printer.item(&lease, &show::lease_fields(&lease))?;
                return verdict(&lease, is_there);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(out_of_time(&id.to_string()));
            }
            if signals.wait(LOOK) {
                return Ok(Exit::Interrupted);
            }
        }
    }
}

fn out_of_time(id: &str) -> Failure {
    Failure::new(Exit::TimedOut, format!("the time is over and {id} is not there yet"))
        .hint(format!("why: sublet why {id}"))
}

/// What the end of a lease means for who waited for it.
fn verdict(lease: &LeaseView, is_there: bool) -> Outcome<Exit> {
    let is_fine = match lease.end_reason {
        None => true,
        Some(EndReason::Completed | EndReason::Released | EndReason::Expired) => true,
        Some(_) => false,
    };
    if is_there && is_fine {
        return Ok(Exit::Done);
    }
    let what = format!("lease {} has ended", lease.id);
    Err(Failure::new(Exit::LeaseFailed, what).because(&lease.state_reason.text))
}
