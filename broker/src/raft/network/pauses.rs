//! Pauses between attempts to reach a peer, and how often the same trouble is told.
//!
//! openraft pauses before a request that it sends, and none is sent while there is no connection: so
//! the pause is kept here, for all that want to talk to a peer together. Chance spreads the attempts
//! of several brokers; nothing that is decided hangs on it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::super::options::Chance;

/// The pause after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause while a peer cannot be reached: it may be back in a moment.
const LONGEST: Duration = Duration::from_secs(1);
/// The longest pause while a peer is refused or refuses: somebody has to put it right.
const LONGEST_REFUSED: Duration = Duration::from_secs(10);
/// Doublings after which every pause is the longest.
const DOUBLINGS_MAX: u32 = 10;
/// How long the same trouble is only counted.
const QUIET: Duration = Duration::from_secs(60);
/// Troubles that are remembered at once.
const TROUBLES_MAX: usize = 256;

/// Whom an attempt is for: its number, and the address it is tried at.
type Whom = (u64, String);

/// The pauses of one node.
pub(super) struct Pauses {
    peers: Mutex<BTreeMap<Whom, Pause>>,
    /// Told when a peer was reached.
    reached: Notify,
    chance: Chance,
}

struct Pause {
    failures: u32,
    /// Nobody tries before.
    until: Instant,
    /// The certificates that the last attempt was made with.
    version: u64,
    /// What it said, if waiting does not help.
    refusal: Option<(io::ErrorKind, String)>,
}

/// Whether waiting alone does not help: a wrong certificate, cell, number, address or program.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData)
}

impl Pauses {
    pub(super) fn new(chance: Chance) -> Self {
        Self { peers: Mutex::default(), reached: Notify::new(), chance }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<Whom, Pause>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `whom` may be tried with certificates of this `version`. Of several that wait one
    /// tries, the others wait for what comes of it.
    pub(super) async fn turn(&self, whom: &Whom, version: u64) {
        loop {
            let reached = self.reached.notified();
            let Some(until) = self.try_turn(whom, version, Instant::now()) else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                () = reached => {}
            }
        }
    }

    /// Takes the turn, or says until when it is not to be had.
    fn try_turn(&self, whom: &Whom, version: u64, now: Instant) -> Option<Instant> {
        let mut peers = self.peers();
        let pause = peers.get_mut(whom)?;
        if pause.version == version && pause.until > now {
            return Some(pause.until);
        }
        // Who comes next waits as long again.
        pause.until = now + self.length(pause);
        pause.version = version;
        None
    }

    /// What `whom` said, if it was refused a moment ago and waiting alone does not help.
    pub(super) fn refusal(&self, whom: &Whom, version: u64, now: Instant) -> Option<io::Error> {
        let peers = self.peers();
        let pause = peers.get(whom).filter(|pause| pause.version == version)?;
        let (kind, text) = pause.refusal.as_ref().filter(|_| pause.until > now)?;
        Some(io::Error::new(*kind, text.clone()))
    }

    /// An attempt has failed.
    pub(super) fn failed(&self, whom: &Whom, version: u64, error: &io::Error, now: Instant) {
        let refusal = is_refusal(error).then(|| (error.kind(), error.to_string()));
        let mut peers = self.peers();
        let before = peers.get(whom).filter(|pause| pause.version == version);
        let failures = before.map_or(0, |pause| pause.failures).saturating_add(1);
        let mut pause = Pause { failures, until: now, version, refusal };
        pause.until = now + self.length(&pause);
        peers.insert(whom.clone(), pause);
    }

    /// Broker `peer` was reached, or has reached this one: nothing keeps from trying.
    pub(super) fn reached(&self, peer: u64) {
        let mut peers = self.peers();
        let before = peers.len();
        peers.retain(|(other, _), _| *other != peer);
        if peers.len() != before {
            drop(peers);
            self.reached.notify_waiters();
        }
    }

    /// Between half of the pause and all of it.
    fn length(&self, pause: &Pause) -> Duration {
        let longest = if pause.refusal.is_some() { LONGEST_REFUSED } else { LONGEST };
        let doublings = pause.failures.saturating_sub(1).min(DOUBLINGS_MAX);
        let whole = FIRST.saturating_mul(1 << doublings).min(longest);
        let half = whole / 2;
        let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_micros(self.chance.draw() % micros)
    }
}

/// What was told lately, so that the same is not told without end.
#[derive(Default)]
pub(super) struct Told(Mutex<BTreeMap<(String, String), Trouble>>);

struct Trouble {
    told: Instant,
    /// How often it happened since.
    untold: u64,
}

impl Told {
    /// Whether trouble with `whom` is to be told: the first of a kind is, then one a minute, with how
    /// often it happened in between.
    pub(super) fn again(&self, whom: &str, error: &io::Error, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (whom.to_owned(), cause(error));
        if let Some(trouble) = told.get_mut(&key) {
            if now.duration_since(trouble.told) < QUIET {
                trouble.untold = trouble.untold.saturating_add(1);
                return None;
            }
            trouble.told = now;
            return Some(std::mem::take(&mut trouble.untold));
        }
        if told.len() >= TROUBLES_MAX {
            let oldest = told.iter().min_by_key(|(_, trouble)| trouble.told);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| told.remove(&key));
        }
        told.insert(key, Trouble { told: now, untold: 0 });
        Some(0)
    }

    /// Trouble with `whom` is over: it is news again. Whether there was any.
    pub(super) fn is_over(&self, whom: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        told.retain(|(other, _), _| other != whom);
        told.len() != before
    }
}

/// What tells one cause from another: not the time at which a certificate was looked at.
fn cause(error: &io::Error) -> String {
    use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(ExpiredContext { .. })) => "expired".to_owned(),
        Some(rustls::Error::InvalidCertificate(NotValidYetContext { .. })) => "early".to_owned(),
        _other => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, "another cell")
    }

    fn whom() -> Whom {
        (2, "host:1".to_owned())
    }

    #[test]
    fn pauses_grow_to_their_cap_and_end_when_the_peer_is_reached() {
        for (error, longest) in
            [(refused(), LONGEST_REFUSED), (io::ErrorKind::ConnectionRefused.into(), LONGEST)]
        {
            let pauses = Pauses::new(Chance::new(|| 7_777_777));
            let mut now = Instant::now();
            assert_eq!(pauses.try_turn(&whom(), 0, now), None, "the first waits for nothing");
            let mut waited = Vec::new();
            for _ in 0..12 {
                pauses.failed(&whom(), 0, &error, now);
                let until = pauses.try_turn(&whom(), 0, now).unwrap();
                waited.push(until - now);
                now = until;
                assert_eq!(pauses.try_turn(&whom(), 0, now), None, "the pause is over");
            }
            assert!(waited[0] >= FIRST / 2 && waited[0] <= FIRST, "{waited:?}");
            assert!(waited[2] > waited[0] && waited[3] > waited[2], "{waited:?}");
            assert!(waited[11] >= longest / 2 && waited[11] <= longest, "{waited:?}");
            pauses.failed(&whom(), 0, &error, now);
            pauses.reached(2);
            assert_eq!(pauses.try_turn(&whom(), 0, now), None);
        }
    }

    #[test]
    fn of_many_that_wait_for_a_peer_one_tries_in_each_pause() {
        let pauses = Pauses::new(Chance::new(|| 0));
        let mut now = Instant::now();
        for _ in 0..20 {
            pauses.failed(&whom(), 0, &refused(), now);
        }
        for _ in 0..4 {
            let until = pauses.try_turn(&whom(), 0, now).unwrap();
            assert_eq!(until - now, LONGEST_REFUSED / 2);
            now = until;
            assert_eq!(pauses.try_turn(&whom(), 0, now), None, "one may try");
        }
    }

    #[test]
    fn a_question_hears_the_refusal_at_once_until_the_certificates_are_others() {
        let (pauses, now) = (Pauses::new(Chance::new(|| 0)), Instant::now());
        pauses.failed(&whom(), 0, &refused(), now);
        assert_eq!(pauses.refusal(&whom(), 0, now).unwrap().to_string(), "another cell");
        assert!(pauses.refusal(&whom(), 1, now).is_none(), "other certificates, another answer");
        assert_eq!(pauses.try_turn(&whom(), 1, now), None);
        pauses.failed(&whom(), 1, &io::ErrorKind::ConnectionRefused.into(), now);
        assert!(pauses.refusal(&whom(), 1, now).is_none(), "it may be there in a moment");
    }

    #[test]
    fn the_same_trouble_is_told_once_a_minute_with_its_count_and_another_at_once() {
        let (told, now) = (Told::default(), Instant::now());
        assert_eq!(told.again("2", &refused(), now), Some(0));
        for _ in 0..5_000 {
            assert_eq!(told.again("2", &refused(), now), None);
        }
        assert_eq!(told.again("2", &io::ErrorKind::TimedOut.into(), now), Some(0));
        assert_eq!(told.again("3", &refused(), now), Some(0));
        let later = now + QUIET;
        assert_eq!(told.again("2", &refused(), later), Some(5_000));
        assert_eq!(told.again("2", &refused(), later), None);
        assert!(told.is_over("2"));
        assert!(!told.is_over("2"));
        assert_eq!(told.again("2", &refused(), later), Some(0));
        for number in 0..2_000 {
            told.again(&format!("host {number}"), &refused(), later);
        }
        assert!(told.0.lock().unwrap().len() <= TROUBLES_MAX);
    }
}
