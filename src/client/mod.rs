//! The HTTP client: blocking, small, with retries that are safe.
//!
//! Every mutation carries an `Idempotency-Key` that is made once and kept over its retries, so a
//! lost answer never does a thing twice.

mod pages;
mod problem;
mod query;
mod routes;
mod sse;

use std::cell::RefCell;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sublet_broker::http::{AGE_HEADER, INDEX_HEADER};
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode};

use crate::config::{Settings, TOKEN_LIFE, Wanted};
use crate::failure::{Exit, Failure, Outcome};
use crate::output;

pub(crate) use pages::{all, each};
pub(crate) use query::Query;
use sse::Events;

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer is waited for without a word.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Waits between tries of one request; a server that is starting or electing is back within them.
const WAITS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// Largest answer that is read.
const BODY_MAX: u64 = 64 * 1_024 * 1_024;

/// A connection to one server on behalf of one caller.
pub(crate) struct Client {
    settings: Settings,
    wanted: Wanted,
    agent: ureq::Agent,
    /// Where the receipt of the first change goes, if it is wanted; taken once it is written.
    receipt: RefCell<Option<PathBuf>>,
    token: RefCell<Option<(Instant, Option<String>)>>,
    reads: Reads,
}

/// What reads show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Everything that was acknowledged before.
    Current,
    /// What the asked broker knows; a note says how old that may be.
    Stale,
}

/// The body of an answer as it arrives.
pub(crate) type Body = BufReader<ureq::BodyReader<'static>>;
/// Events as they arrive.
pub(crate) type EventStream = Events<Body>;

/// What one try came to.
enum Try {
    Answer(Response<ureq::Body>),
    /// Nothing is known to have been done; it may be tried again.
    Again(Failure, Duration),
}

impl Client {
    /// A client for what the settings say; `wanted` narrows the rights of its tokens.
    pub(crate) fn new(settings: Settings, wanted: Wanted, receipt: Option<PathBuf>) -> Client {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(ANSWER_MAX))
            .user_agent(concat!("sublet/", env!("CARGO_PKG_VERSION")))
            .build();
        let (receipt, token) = (RefCell::new(receipt), RefCell::new(None));
        let reads = Reads::Current;
        Client { settings, wanted, agent: config.into(), receipt, token, reads }
    }

    /// It, with these reads.
    pub(crate) fn reading(self, reads: Reads) -> Client {
        Client { reads, ..self }
    }

    /// What the client was made from.
    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reads `path`, as `/v1/leases`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        let response = self.send(&Method::GET, path, None, None)?;
        self.read(path, response)
    }

    /// Reads `path`, or nothing if there is no such thing.
    pub(crate) fn find<T: DeserializeOwned>(&self, path: &str) -> Outcome<Option<T>> {
        match self.get(path) {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.exit() == Exit::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Asks without changing anything (a dry run): no idempotency key.
    pub(crate) fn ask<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Outcome<T> {
        self.not_stale()?;
        let body = json(body)?;
        let response = self.send(&Method::POST, path, Some(&body), None)?;
        self.read(path, response)
    }

    /// Nothing is changed or planned on an answer that may be behind.
    fn not_stale(&self) -> Outcome<()> {
        match self.reads {
            Reads::Current => Ok(()),
            Reads::Stale => {
                Err(Failure::usage("--stale is for reads, and this asks for more than a read")
                    .because("nothing was changed")
                    .hint("leave out --stale"))
            }
        }
    }

    /// Changes something.
    pub(crate) fn change<B: Serialize, T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Option<&B>,
    ) -> Outcome<T> {
        let body = body.map(json).transpose()?;
        self.change_bytes(method, path, body.as_deref())
    }

    /// Changes something; the body is sent as it is.
    pub(crate) fn change_bytes<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
    ) -> Outcome<T> {
        self.not_stale()?;
        let key = crate::random::hex()?;
        let response = self.send(method, path, body, Some(&key))?;
        self.keep_receipt(response.headers())?;
        self.read(path, response)
    }

    /// Writes the receipt of the first change that has one, if it is wanted.
    fn keep_receipt(&self, headers: &HeaderMap) -> Outcome<()> {
        let Some(text) = headers.get("sublet-receipt").and_then(|value| value.to_str().ok()) else {
            return Ok(());
        };
        let Some(file) = self.receipt.take() else { return Ok(()) };
        std::fs::write(&file, format!("{text}\n")).map_err(|error| {
            let what =
                format!("the change was made; its receipt cannot be written to {}", file.display());
            Failure::new(Exit::Failed, what).because(error).hint(format!("it is: {text}"))
        })
    }

    /// Opens a stream of events, after the one with the id `last`. One try.
    pub(crate) fn events(&self, path: &str, last: Option<&str>) -> Outcome<EventStream> {
        self.stream(path, "text/event-stream", last).map(Events::new)
    }

    fn stream(&self, path: &str, accept: &str, last: Option<&str>) -> Outcome<Body> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", header_value(accept)?);
        if let Some(last) = last {
            headers.insert("last-event-id", header_value(last)?);
        }
        match self.attempt(&Method::GET, path, None, &headers)? {
            Try::Answer(response) => {
                let body = response.into_body().into_with_config().limit(u64::MAX).reader();
                Ok(BufReader::new(body))
            }
            Try::Again(failure, _) => Err(failure),
        }
    }

    fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> Outcome<Response<ureq::Body>> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", header_value("application/json")?);
        if let Some(key) = key {
            headers.insert("idempotency-key", header_value(key)?);
        }
        let mut waits = WAITS.into_iter();
        loop {
            match self.attempt(method, path, body, &headers)? {
                Try::Answer(response) => return Ok(response),
                Try::Again(failure, asked) => match waits.next() {
                    Some(wait) => {
                        // The first of them comes within a moment: only the last ones are news.
                        if wait >= PATIENCE / 2 {
                            let text = failure.to_string();
                            let first = text.lines().next().unwrap_or_default();
                            output::note(&format!("asking again: {first}"));
                        }
                        std::thread::sleep(wait.max(asked));
                    }
                    None => return Err(failure),
                },
            }
        }
    }

    fn attempt(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
        headers: &HeaderMap,
    ) -> Outcome<Try> {
        let is_stale = self.reads == Reads::Stale && *method == Method::GET;
        let stale = match (is_stale, path.contains('?')) {
            (true, true) => "&stale=true",
            (true, false) => "?stale=true",
            (false, _) => "",
        };
        let uri = format!("{}{path}{stale}", self.settings.server);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(token) = self.token()? {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let waiting = Waiting::begin(format!("waiting for {} to answer", self.settings.server));
        let result = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                request
                    .body(body.to_vec())
                    .map_err(ureq::Error::from)
                    .and_then(|r| self.agent.run(r))
            }
            None => request.body(()).map_err(ureq::Error::from).and_then(|r| self.agent.run(r)),
        };
        drop(waiting);
        match result {
            Ok(response) if response.status().is_success() => {
                if is_stale {
                    output::note(&age(response.headers()));
                }
                Ok(Try::Answer(response))
            }
            Ok(response) => self.refused(path, response),
            Err(error) => problem::unreachable(&self.settings, &error),
        }
    }

    fn refused(&self, path: &str, response: Response<ureq::Body>) -> Outcome<Try> {
        let status = response.status();
        let wait = problem::retry_after(response.headers());
        let bytes = self.bytes(path, response)?;
        let failure = problem::failure(status, &bytes, path);
        let again =
            status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
        if again { Ok(Try::Again(failure, wait)) } else { Err(failure) }
    }

    /// A token that has at least half of its life before it.
    fn token(&self) -> Outcome<Option<String>> {
        let mut kept = self.token.borrow_mut();
        if let Some((made, token)) = kept.as_ref()
            && made.elapsed() < TOKEN_LIFE / 2
        {
            return Ok(token.clone());
        }
        let token = self.settings.credentials.token(&self.wanted)?;
        *kept = Some((Instant::now(), token.clone()));
        Ok(token)
    }

    fn bytes(&self, path: &str, response: Response<ureq::Body>) -> Outcome<Vec<u8>> {
        let mut bytes = Vec::new();
        let reader = response.into_body().into_reader().take(BODY_MAX);
        let mut reader = reader;
        reader.read_to_end(&mut bytes).map_err(|error| {
            let what = format!("the answer of {}{path} broke off", self.settings.server);
            Failure::new(Exit::Temporary, what).because(error)
        })?;
        Ok(bytes)
    }

    fn read<T: DeserializeOwned>(&self, path: &str, response: Response<ureq::Body>) -> Outcome<T> {
        let status = response.status();
        let bytes = self.bytes(path, response)?;
        // An answer without a body reads as null, which fits `()`.
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| {
            let what = format!("{}{path} answered something unexpected", self.settings.server);
            Failure::new(Exit::Failed, what)
                .because(format!("status {status}: {error}"))
                .hint("is that a Sublet server, and of the same version as this command?")
        })
    }
}

/// Says on standard error what is waited for, if it takes longer than [`PATIENCE`].
struct Waiting {
    over: Option<mpsc::Sender<()>>,
}

impl Waiting {
    fn begin(what: String) -> Waiting {
        let (over, waits) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                output::note(&what);
            }
        });
        Waiting { over: Some(over) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.over.take());
    }
}

/// How old a stale answer may be, in words.
fn age(headers: &HeaderMap) -> String {
    let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let records = number(INDEX_HEADER).unwrap_or(0);
    match number(AGE_HEADER) {
        Some(millis) => format!(
            "as of {records} records; the broker heard from the leader {}.{} s ago",
            millis / 1_000,
            millis % 1_000 / 100
        ),
        None => format!("as of {records} records; the broker knows of no leader"),
    }
}

fn json<B: Serialize>(body: &B) -> Outcome<Vec<u8>> {
    serde_json::to_vec(body)
        .map_err(|error| Failure::new(Exit::Failed, "cannot write the request").because(error))
}

fn header_value(text: &str) -> Outcome<ureq::http::HeaderValue> {
    ureq::http::HeaderValue::from_str(text).map_err(|error| {
        Failure::usage(format!("{text:?} cannot stand in a header")).because(error)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::config::Credentials;

    /// Serves one call per answer; an empty answer hangs up. Returns the idempotency keys it saw.
    fn serve(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let mut keys = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim_end().to_lowercase();
                    if let Some(key) = line.strip_prefix("idempotency-key: ") {
                        keys.push(key.to_owned());
                    }
                    if let Some(bytes) = line.strip_prefix("content-length: ") {
                        length = bytes.parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                reader.read_exact(&mut vec![0; length]).unwrap();
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
            keys
        });
        (server, served)
    }

    fn client(server: String) -> Client {
        let credentials = Credentials::None;
        let settings = Settings { server, credentials, origin: "a test".to_owned() };
        Client::new(settings, Wanted::default(), None)
    }

    #[test]
    fn a_change_whose_answer_is_lost_is_asked_again_under_the_same_key() {
        let busy = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\n\
            content-length: 0\r\nconnection: close\r\n\r\n";
        let good = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n7";
        let answers: &[&str] = vec!["", busy, good].leak();
        let (server, served) = serve(answers);
        let seven: u64 = client(server).change(&Method::POST, "/v1/x", Some(&1)).unwrap();
        let keys = served.join().unwrap();
        assert_eq!((seven, keys.len()), (7, 3));
        assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 32), "{keys:?}");
    }

    #[test]
    fn the_age_of_an_answer_is_told_in_words() {
        let mut headers = HeaderMap::new();
        headers.insert(INDEX_HEADER, header_value("7").unwrap());
        assert_eq!(age(&headers), "as of 7 records; the broker knows of no leader");
        headers.insert(AGE_HEADER, header_value("2_345").unwrap());
        assert_eq!(age(&headers), "as of 7 records; the broker knows of no leader");
        headers.insert(AGE_HEADER, header_value("2345").unwrap());
        let told = age(&headers);
        assert_eq!(told, "as of 7 records; the broker heard from the leader 2.3 s ago");
    }

    #[test]
    fn a_refusal_is_not_asked_again() {
        let refused = "HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: 0\r\n\
            connection: close\r\n\r\n";
        let (server, served) = serve(vec![refused].leak());
        let failure = client(server).change::<_, u64>(&Method::POST, "/v1/x", Some(&1));
        assert_eq!(failure.unwrap_err().exit(), Exit::Refused);
        assert_eq!(served.join().unwrap().len(), 1);
    }
}
