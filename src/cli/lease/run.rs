//! `sublet lease run`: lease GPUs, run a command on them, end with its exit code.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use sublet_protocol::agent::Workload;
use sublet_protocol::api::{LeaseState, LeaseView, RequestState};
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::units::{GpuMilli, Seconds};

use super::super::amounts::show_money;
use super::console::Console;
use super::create;
use super::grant::{self, Waited};
use super::logs::{self, Said};
use super::spec::Spec;
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output;
use crate::signals::Signals;
use crate::units::{parse_seconds, show_gpus, show_seconds};

/// Lease GPUs, run a command on them, print its output, end with its exit code.
///
/// For example: sublet lease run --gpus 1 --memory 20GiB -- python train.py
///
/// Its standard output is the command's alone, whatever --output says; what is said about the lease
/// goes to standard error. The command's standard input is empty.
#[derive(Debug, Args)]
pub(in crate::cli) struct Run {
    #[command(flatten)]
    spec: Spec,
    /// A variable for the command's environment, which is empty else; may be given several times.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Only if it can be granted at once; else exit code 6.
    #[arg(long)]
    now: bool,
    /// How long to wait for the lease; after that the request is withdrawn, exit code 124.
    #[arg(long, value_parser = parse_seconds, value_name = "SPAN")]
    timeout: Option<Seconds>,
    /// The command and its arguments, behind `--`. No shell reads it.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Between two looks for signals while a guest is silent.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait before a broken log stream is opened again.
const REOPEN: Duration = Duration::from_millis(500);
/// How often in a row a log stream may break without a byte in between.
const BREAKS_MAX: u32 = 60;

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// How a guest's life on one lease ended, as the log stream tells it.
struct End {
    exit_code: Option<i32>,
    reason: EndReason,
    was_interrupted: bool,
}

impl Run {
    /// Does it.
    pub(super) fn run(self, client: &Client) -> Outcome<Exit> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Failure::usage("the command to run is empty")
                .hint("write it behind --, as: sublet lease run -- python train.py"));
        }
        // Before anything is asked for, so that ctrl-c never leaves a lease behind.
        let signals = Signals::listen()?;
        let mut body = self.spec.body(client)?;
        let workload = Workload { argv: self.command.clone(), env: self.env.clone() };
        let bytes = body.add_workload(&workload)?;
        // Run again from the start elsewhere only if the user says so.
        body.set_default("on_recall", json!("close"));
        body.check()?;
        let plan = client.plan(&body.json)?;
        create::check(&plan, create::Wanted::of(self.now))?;
        let request = client.submit(&body.json)?.id;
        let deadline = self.timeout.map(|span| Instant::now() + Duration::from_secs(span.get()));
        loop {
            let lease = match self.lease(client, request, deadline, &signals)? {
                Ok(lease) => lease,
                Err(exit) => return Ok(exit),
            };
            output::note(&format!(
                "lease {}: {} × {} in {}",
                lease.id,
                lease.slices.len(),
                lease.model,
                lease.cluster
            ));
            client.send_workload(lease.id, &bytes)?;
            let end = attend(client, lease.id, &signals)?;
            if let Some(exit) = conclude(client, lease.id, request, &end)? {
                return Ok(exit);
            }
        }
    }

    /// Waits for a lease of the request; an exit code if there will be none.
    fn lease(
        &self,
        client: &Client,
        request: RequestId,
        deadline: Option<Instant>,
        signals: &Signals,
    ) -> Outcome<Result<Box<LeaseView>, Exit>> {
        match grant::wait(client, request, deadline, signals)? {
            Waited::Granted(lease) => Ok(Ok(lease)),
            Waited::OutOfTime(_) => {
                withdraw(client, request);
                Err(Failure::new(Exit::TimedOut, "the time to wait for a lease is over")
                    .because("the request was withdrawn")
                    .hint("a longer --timeout, or what would fit now: sublet offers"))
            }
            Waited::Interrupted(_) => {
                withdraw(client, request);
                output::note("interrupted: the request was withdrawn");
                Ok(Err(Exit::Interrupted))
            }
            Waited::Over(view) => {
                Err(Failure::new(Exit::LeaseFailed, "the request had no lease that lasted")
                    .because(&view.state_reason.text))
            }
        }
    }
}

/// Withdraws the request; if a lease came first, gives that back. Best effort: what stays behind is
/// named to the user.
fn withdraw(client: &Client, request: RequestId) {
    let done = client.cancel(request).map(|_| ()).or_else(|failure| {
        match client.request(request)?.lease {
            Some(lease) => client.release(lease).map(|_| ()),
            None => Err(failure),
        }
    });
    if let Err(failure) = done {
        output::note(&format!("warning: request {request} could not be withdrawn: {failure}"));
    }
}

/// Prints what the guest prints until its lease has ended. The first signal gives the lease back,
/// the second one leaves at once.
fn attend(client: &Client, lease: LeaseId, signals: &Signals) -> Outcome<End> {
    let (mut from, mut breaks, mut was_interrupted) = (0, 0, false);
    let mut said = logs::follow(client.logs(lease, from)?);
    let mut console = Console::new();
    loop {
        match next(&said) {
            Some(Said::Output { stream, missed, next, bytes }) => {
                (from, breaks) = (next, 0);
                console.lost(missed);
                if let Err(failure) = console.print(stream, &bytes) {
                    // Nobody reads any longer: what is not printed need not run.
                    client.release(lease)?;
                    return Err(failure);
                }
            }
            Some(Said::End { exit_code, reason }) => {
                console.end();
                return Ok(End { exit_code, reason, was_interrupted });
            }
            Some(Said::Broken(why)) => {
                breaks += 1;
                if breaks > BREAKS_MAX {
                    return Err(lost(lease, &why));
                }
                std::thread::sleep(REOPEN);
                match client.logs(lease, from) {
                    Ok(body) => said = logs::follow(body),
                    Err(failure) if failure.exit() == Exit::Temporary => {}
                    Err(failure) => return Err(failure),
                }
            }
            None => {}
        }
        if signals.wait(Duration::ZERO) {
            if was_interrupted {
                return Err(Failure::new(Exit::Interrupted, "left at once")
                    .because(format!("lease {lease} is being given back")));
            }
            was_interrupted = true;
            console.break_line();
            output::note("interrupted: giving the lease back");
            match client.release(lease) {
                Ok(_) => {}
                // It ended by itself just now.
                Err(failure) if failure.exit() == Exit::Refused => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}

fn lost(lease: LeaseId, why: &str) -> Failure {
    Failure::new(Exit::Temporary, format!("the output of lease {lease} cannot be read"))
        .because(why)
        .hint(format!("the guest may still run: sublet lease show {lease}"))
}

fn next(said: &Receiver<Said>) -> Option<Said> {
    match said.recv_timeout(LOOK) {
        Ok(said) => Some(said),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Said::Broken("not connected".to_owned())),
    }
}

/// Reports the lease; the exit code, or nothing if the request has or will have another lease.
fn conclude(
    client: &Client,
    lease: LeaseId,
    request: RequestId,
    end: &End,
) -> Outcome<Option<Exit>> {
    let view = client.lease(lease)?;
    report(&view);
    if end.was_interrupted {
        return Ok(Some(Exit::Interrupted));
    }
    if let Some(code) = end.exit_code {
        return Ok(Some(Exit::Guest(u8::try_from(code).unwrap_or(u8::MAX))));
    }
    match client.request(request)?.state {
        RequestState::Waiting | RequestState::Granted => {
            output::note(&format!("{}: waiting for another lease", end.reason.code()));
            Ok(None)
        }
        RequestState::Closed | RequestState::Cancelled | RequestState::Refused => {
            let what = format!("the lease ended before the command did ({})", end.reason.code());
            let failure = Failure::new(Exit::LeaseFailed, what).because(&view.state_reason.text);
            Err(match end.reason {
                EndReason::Reclaimed | EndReason::Preempted => {
                    failure.hint("to have it start again elsewhere: --on-recall requeue")
                }
                EndReason::Expired => failure.hint("a longer --duration"),
                _ => failure,
            })
        }
    }
}

/// The last line: time used and cost.
fn report(lease: &LeaseView) {
    let count = u64::try_from(lease.slices.len()).unwrap_or(u64::MAX);
    let gpus = show_gpus(GpuMilli::new(lease.gpu.saturating_mul(count)));
    let cost = lease.cost;
    let used = match lease.used {
        0 if cost.amount > MicroCredits::ZERO => "less than 1s".to_owned(),
        used => show_seconds(Seconds::new(used)),
    };
    let code = lease.exit_code.filter(|code| *code != 0);
    let code = code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let ending = if lease.state == LeaseState::Ended { "" } else { " so far" };
    output::note(&format!(
        "lease {}: {} GPU for {used}{ending}, {} {} to {}, {}{code}",
        lease.id,
        gpus,
        show_money(cost.amount),
        cost.currency,
        lease.owner,
        lease.end_reason.map_or("still ending", EndReason::code),
    ));
}
