//! `sublet witness`: a small server that signs that ledgers only grow (C2SP `tlog-witness`), and the
//! one who asks it. It is run by somebody else than the brokers; what it decides is in
//! `sublet_ledger::witness`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sublet_ledger::checkpoint::Checkpoint;
use sublet_ledger::merkle::Hash;
use sublet_ledger::note::{Kind, PrivateKey, PublicKey, SignatureLine, Signed};
use sublet_ledger::witness::{Answer, REQUEST_BYTES_MAX, Request, Witness};

use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output;

/// How long a witness may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Makes the key of a witness under this name; its public half.
pub(crate) fn make_key(name: &str, file: &Path) -> Outcome<PublicKey> {
    let key = PrivateKey::new(name, Kind::Witness, &crate::random::bytes()?)
        .map_err(|error| Failure::usage(format!("{name} cannot be a key's name")).because(error))?;
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| {
        opened.write_all(format!("{}\n", key.to_secret_line()).as_bytes())?;
        opened.sync_all()
    });
    written.map_err(|error| failed("cannot write the key", file, &error))?;
    Ok(key.public().clone())
}

/// What a witness is started with.
pub(crate) struct Settings {
    /// The file of its key.
    pub(crate) key: PathBuf,
    /// Public keys of ledgers, or files with them.
    pub(crate) logs: Vec<String>,
    /// Where it keeps what it saw.
    pub(crate) dir: PathBuf,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
}

/// Runs a witness until it is interrupted.
pub(crate) fn serve(settings: &Settings) -> Outcome<Exit> {
    let Settings { key, logs, dir, listen } = settings;
    let line = fs::read_to_string(key).map_err(|error| failed("cannot read", key, &error))?;
    let private = line.parse().map_err(|error| failed("there is no key in", key, &error))?;
    let logs = logs.iter().map(|log| public_key(log)).collect::<Outcome<Vec<_>>>()?;
    let witness = Witness::open(dir, private, logs)
        .map_err(|error| Failure::new(Exit::Failed, "the witness cannot start").because(error))?;
    crate::logging::init("info");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::new(Exit::Failed, "cannot start threads").because(error))?;
    runtime.block_on(listen_on(*listen, Arc::new(witness)))
}

async fn listen_on(address: SocketAddr, witness: Arc<Witness>) -> Outcome<Exit> {
    let cannot = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("cannot listen on {address}")).because(error)
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    let public = witness.public_key().clone();
    output::print(&format!("sublet witness: http://{bound}/add-checkpoint\n  key {public}\n"))?;
    let router = Router::new()
        .route("/add-checkpoint", post(add_checkpoint))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(witness);
    let stop = async {
        // Without a handler for it the signal ends the process anyway.
        let _ = tokio::signal::ctrl_c().await;
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await.map_err(cannot)?;
    Ok(Exit::Done)
}

async fn add_checkpoint(State(witness): State<Arc<Witness>>, body: String) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // It waits for the disk.
    let answer = tokio::task::spawn_blocking(move || witness.add_checkpoint(&body, now)).await;
    let answer = answer.unwrap_or(Answer::Failed);
    let status = StatusCode::from_u16(answer.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_static(answer.content_type());
    (status, [(CONTENT_TYPE, kind)], answer.body()).into_response()
}

/// Has the witness at `url` sign the newest checkpoint of the broker; the checkpoint with both.
pub(crate) fn ask(client: &Client, url: &str, witness: &PublicKey) -> Outcome<Checkpoint> {
    let newest = client.signed_checkpoint()?.ok_or_else(|| {
        Failure::new(Exit::NotFound, "there is no signed checkpoint to be witnessed")
    })?;
    let strange = |what: &str| Failure::new(Exit::Failed, format!("{url} answered {what}"));
    let mut checkpoint: Checkpoint = newest.note.parse().map_err(|_| strange("no checkpoint"))?;
    // What the witness has seen is what it says when it is asked as if for the first time.
    let first = Request { old: 0, path: Vec::new(), checkpoint: checkpoint.clone() };
    let (mut status, mut body) = send(url, &first)?;
    if status == 409 {
        let old: u64 = body.trim().parse().map_err(|_| strange("no size to a stale one"))?;
        let extension = client.extension(old)?.ok_or_else(|| {
            let what =
                format!("the witness has seen {old} records, more than the broker has signed");
            Failure::new(Exit::Failed, what)
                .hint("if this lasts, the ledger was put back: audit it")
        })?;
        checkpoint = extension.note.parse().map_err(|_| strange("no checkpoint"))?;
        let hash =
            |text: &String| STANDARD.decode(text).ok()?.try_into().ok().map(Hash::from_bytes);
        let path = extension.hashes.iter().map(hash).collect::<Option<Vec<_>>>();
        let path = path.ok_or_else(|| strange("hashes that cannot be read"))?;
        (status, body) = send(url, &Request { old, path, checkpoint: checkpoint.clone() })?;
    }
    if status != 200 {
        let what = format!("the witness did not sign: {status} {}", body.trim());
        return Err(Failure::new(Exit::Refused, what));
    }
    for line in body.lines().filter_map(|line| line.parse::<SignatureLine>().ok()) {
        checkpoint.note_mut().add(line);
    }
    match checkpoint.signed_by(witness) {
        Signed::Yes { .. } => Ok(checkpoint),
        Signed::No | Signed::Forged => Err(strange("without a signature of the key")),
    }
}

fn send(url: &str, request: &Request) -> Outcome<(u16, String)> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(ANSWER_MAX))
        .build();
    let url = format!("{}/add-checkpoint", url.trim_end_matches('/'));
    let unreachable = |error: ureq::Error| {
        Failure::new(Exit::Temporary, format!("the witness at {url} cannot be reached"))
            .because(error)
    };
    let answer = ureq::Agent::from(config).post(&url).send(request.to_string());
    let mut answer = answer.map_err(unreachable)?;
    let body = answer.body_mut().with_config().limit(64 * 1_024).read_to_string();
    Ok((answer.status().as_u16(), body.map_err(unreachable)?))
}

/// The key in `text`, or in the file of this name.
pub(crate) fn public_key(text: &str) -> Outcome<PublicKey> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    let path = Path::new(text);
    let line = fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("{text} is neither a public key nor a file with one")).because(error)
    })?;
    line.parse().map_err(|error| failed("there is no public key in", path, &error))
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("{what} {}", path.display())).because(error)
}
