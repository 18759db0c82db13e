//! Waiting until a request has its lease.

use std::time::{Duration, Instant};

use sublet_protocol::api::{LeaseState, LeaseView, RequestState, RequestView};
use sublet_protocol::ids::RequestId;

use crate::client::Client;
use crate::failure::Outcome;
use crate::output;
use crate::signals::Signals;

/// Between two looks: short at first, for most requests are served at once.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// A request that is served sooner than this is not worth a word.
const QUIET: Duration = Duration::from_secs(1);

/// How the waiting ended.
pub(super) enum Waited {
    /// There is a lease that has not ended.
    Granted(Box<LeaseView>),
    /// The request will have no further lease.
    Over(Box<RequestView>),
    /// The time is over; it still waits.
    OutOfTime(Box<RequestView>),
    /// A signal arrived; it still waits.
    Interrupted(Box<RequestView>),
}

/// Waits for a lease of `request` until `deadline`. Changes of the reason go to standard error.
pub(super) fn wait(
    client: &Client,
    request: RequestId,
    deadline: Option<Instant>,
    signals: &Signals,
) -> Outcome<Waited> {
    let mut looks = LOOKS.into_iter();
    let mut told = String::new();
    let begin = Instant::now();
    loop {
        let view = client.request(request)?;
        match (view.state, view.lease) {
            (RequestState::Granted, Some(id)) => {
                let lease = client.lease(id)?;
                if lease.state != LeaseState::Ended {
                    return Ok(Waited::Granted(Box::new(lease)));
                }
            }
            (RequestState::Closed | RequestState::Cancelled | RequestState::Refused, _) => {
                return Ok(Waited::Over(Box::new(view)));
            }
            (RequestState::Granted, None) => {}
            (RequestState::Waiting, _) if begin.elapsed() < QUIET => {}
            (RequestState::Waiting, _) => tell(client, &view, &mut told),
        }
        let out_of_time = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if out_of_time {
            return Ok(Waited::OutOfTime(Box::new(view)));
        }
        if signals.wait(looks.next().unwrap_or(LOOKS[LOOKS.len() - 1])) {
            return Ok(Waited::Interrupted(Box::new(view)));
        }
    }
}

/// Says why it waits, each time the reason is another one; that its numbers change is no news. A
/// reason that cannot be had is no failure of the waiting.
fn tell(client: &Client, view: &RequestView, told: &mut String) {
    let Ok(why) = client.why(&view.id.to_string()) else { return };
    if why.code != *told {
        output::note(&format!("waiting: {}", why.text));
        *told = why.code;
    }
}
