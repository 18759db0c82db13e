//! The thread that calls the driver, and the side that waits for it, but not for ever.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use sublet_protocol::units::Millis;

use super::open::{Open, Stale, open_error};
use super::{Config, PAUSES_MAX, Round};
use crate::probe::Error;

type Answer = Result<Round, Error>;

/// Asks for rounds. There is never more than one thread, whether it hangs or not.
#[derive(Debug)]
pub(super) struct Reader {
    config: Config,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    asks: Sender<()>,
    answers: Receiver<Answer>,
    /// Since when a round has been out that nobody waits for any more.
    overdue: Option<Instant>,
}

impl Reader {
    pub(super) fn new(config: Config) -> Self {
        Self { config, running: None }
    }

    /// A round of readings, or why there is none. Waits as long as the configuration allows; while an
    /// earlier round is still out, not at all.
    pub(super) fn round(&mut self) -> Answer {
        let patience = self.config.patience;
        let running = match &mut self.running {
            Some(running) => running,
            none => none.insert(start(self.config.clone())?),
        };
        let answer = running.round(patience);
        if answer == Err(Error::Stopped) {
            self.running = None;
        }
        answer
    }
}

impl Running {
    fn round(&mut self, patience: Duration) -> Answer {
        if let Some(since) = self.overdue {
            match self.answers.try_recv() {
                // What it says is old: it is asked again.
                Ok(_) => self.overdue = None,
                Err(TryRecvError::Empty) => return Err(hung(since)),
                Err(TryRecvError::Disconnected) => return Err(Error::Stopped),
            }
        }
        let since = Instant::now();
        self.asks.send(()).map_err(|_| Error::Stopped)?;
        match self.answers.recv_timeout(patience) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.overdue = Some(since);
                Err(hung(since))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::Stopped),
        }
    }
}

fn hung(since: Instant) -> Error {
    let waited = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    Error::Hung { waited: Millis::new(waited) }
}

/// Starts the thread. It ends by itself when nobody can ask any more.
fn start(config: Config) -> Result<Running, Error> {
    let (asks, asked) = channel();
    let (answer, answers) = channel();
    let work = move || Worker { config, asked, answer }.work();
    let named = std::thread::Builder::new().name("nvml".to_owned());
    named.spawn(work).map_err(|_| Error::Stopped)?;
    Ok(Running { asks, answers, overdue: None })
}

struct Worker {
    config: Config,
    asked: Receiver<()>,
    answer: Sender<Answer>,
}

/// Why the library is closed.
enum Closed {
    /// Nobody asks any more.
    Over,
    /// It must be opened anew; somebody waits for an answer.
    Anew,
}

impl Worker {
    fn work(self) {
        let mut pauses = Pauses::new(self.config.reopen_pause);
        let mut failed: Option<Error> = None;
        while self.asked.recv().is_ok() {
            if let Some(error) = failed.clone().filter(|_| !pauses.is_over()) {
                if self.answer.send(Err(error)).is_err() {
                    return;
                }
                continue;
            }
            match self.serve(&mut pauses) {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(error = %error, "the GPU driver cannot be read");
                    pauses.begin();
                    failed = Some(error.clone());
                    if self.answer.send(Err(error)).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Opens the library and answers, the first time for an ask already taken, until nobody asks
    /// (`Ok`) or the library does not work (`Err`, with the ask not yet answered).
    fn serve(&self, pauses: &mut Pauses) -> Result<(), Error> {
        loop {
            let nvml = open(&self.config).map_err(|error| open_error(&error))?;
            match self.answer_all(&nvml, pauses)? {
                Closed::Over => return Ok(()),
                Closed::Anew => {}
            }
        }
    }

    fn answer_all(&self, nvml: &Nvml, pauses: &mut Pauses) -> Result<Closed, Error> {
        let mut open = Open::new(nvml);
        let mut is_whole_before = true;
        let mut has_answered = false;
        loop {
            let round = match open.round(&self.config) {
                Ok(round) => round,
                // It worked until now: the driver may have been loaded anew.
                Err(Stale(_)) if has_answered => return Ok(Closed::Anew),
                Err(Stale(error)) => return Err(error),
            };
            has_answered = true;
            let is_whole = round.silent == 0;
            match (is_whole_before, is_whole) {
                (true, false) => pauses.begin(),
                (_, true) => pauses.reset(),
                (false, false) => {}
            }
            is_whole_before = is_whole;
            if self.answer.send(Ok(round)).is_err() || self.asked.recv().is_err() {
                return Ok(Closed::Over);
            }
            // A GPU that is lost comes back, if at all, only to who opens the library anew.
            if !is_whole && pauses.is_over() {
                return Ok(Closed::Anew);
            }
        }
    }
}

fn open(config: &Config) -> Result<Nvml, nvml_wrapper::error::NvmlError> {
    let mut builder = Nvml::builder();
    if let Some(path) = &config.library {
        builder.lib_path(path.as_os_str());
    }
    builder.init()
}

/// Growing pauses between attempts.
struct Pauses {
    first: Duration,
    next: Duration,
    until: Option<Instant>,
}

impl Pauses {
    fn new(first: Duration) -> Self {
        Self { first, next: first, until: None }
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn begin(&mut self) {
        self.until = Instant::now().checked_add(self.next);
        self.next = self.next.saturating_mul(2).min(self.first.saturating_mul(PAUSES_MAX));
    }

    fn reset(&mut self) {
        self.next = self.first;
        self.until = None;
    }
}
