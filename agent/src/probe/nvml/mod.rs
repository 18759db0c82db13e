//! The devices of a real machine, by NVML: the library that comes with NVIDIA's driver.
//!
//! [`NvmlProbe`] asks a thread of its own for each round of readings and waits for it for a bounded
//! time: a driver that hangs costs one thread, and everything is unknown until it comes back. The
//! library is opened anew when the driver was loaded anew or a GPU was lost, with growing pauses.
//! Only this folder names `nvml-wrapper`.
//!
//! Nothing is written to a device here. What a device does not support, may not be read, or fails,
//! is unknown; a number outside its possible range is, too.

mod device;
mod open;
mod raw;
mod thread;
mod topology;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sublet_protocol::ids::{DeviceId, GpuModel};
use sublet_protocol::units::Millis;

use super::judged::Judge;
use super::{Error, OwnerQueue, Probe, Sample};
use crate::health::{HealthRule, Quarantine};
use thread::Reader;
pub use topology::Link;

/// How the driver is read.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's library; `None` lets the system find `libnvidia-ml.so`.
    pub library: Option<PathBuf>,
    /// How long a round of readings may take, in real time.
    pub patience: Duration,
    /// From a failed opening, or a lost GPU, to the next opening of the library, in real time. It
    /// doubles with each failure, up to [`PAUSES_MAX`] times as long.
    pub reopen_pause: Duration,
    /// What the owner's scheduler has on every device, where that is known once for all: a machine
    /// without a scheduler has nothing there. `None` is unknown, and nothing is offered.
    pub owner_queue: Option<OwnerQueue>,
    /// When a device that was sick is lent again.
    pub health: HealthRule,
}

impl Default for Config {
    /// The system's library, 5 s for a round, 30 s between two openings, the owner's queue unknown.
    fn default() -> Self {
        Self {
            library: None,
            patience: Duration::from_secs(5),
            reopen_pause: Duration::from_secs(30),
            owner_queue: None,
            health: HealthRule::default(),
        }
    }
}

/// The longest pause between two openings, as a multiple of the first one.
pub const PAUSES_MAX: u32 = 16;

/// A round of readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// What was read of each device that answered: GPUs, each followed by its MIG instances.
    pub samples: Vec<Sample>,
    /// GPUs that have an index but do not say which they are: lost, or about to be.
    pub silent: u32,
    /// The driver's version.
    pub driver: Option<String>,
    /// Pairs of GPUs with an NVLink between them.
    pub links: Vec<Link>,
}

/// Reads the devices of this machine.
#[derive(Debug)]
pub struct NvmlProbe {
    reader: Reader,
    judge: Judge,
    /// How many devices the last round showed that showed any.
    seen: usize,
}

impl NvmlProbe {
    /// A probe that has not opened the library yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let judge = Judge::new(config.health);
        Self { reader: Reader::new(config), judge, seen: 0 }
    }

    /// Keeps in `file` which devices are sick, and goes on with what is there.
    ///
    /// # Errors
    /// When there is a file that cannot be read: a sick device must not be lent because of it.
    pub fn keeping_health_in(mut self, file: PathBuf) -> io::Result<Self> {
        self.judge.keep_in(file)?;
        Ok(self)
    }

    /// Why a device is not lent, if it is in quarantine.
    #[must_use]
    pub fn quarantine(&self, device: DeviceId) -> Option<&Quarantine> {
        self.judge.quarantine(device)
    }

    /// A round of readings, with what is not part of a sample. Nobody has judged its health.
    ///
    /// # Errors
    /// When the library cannot be opened or does not come back.
    pub fn round(&mut self) -> Result<Round, Error> {
        let round = self.reader.round()?;
        if round.samples.len() < self.seen {
            let (were, are) = (self.seen, round.samples.len());
            tracing::error!(were, are, silent = round.silent, "devices are lost");
        }
        self.seen = round.samples.len();
        Ok(round)
    }
}

impl Probe for NvmlProbe {
    fn sample(&mut self, now: Millis) -> Result<Vec<Sample>, Error> {
        let mut samples = self.round()?.samples;
        self.judge.judge(now, &mut samples);
        Ok(samples)
    }

    fn next_change(&mut self, _now: Millis) -> Option<Millis> {
        None
    }
}

/// The model as Sublet names it: the driver's name in lower case, without the maker, words joined by
/// dashes. `NVIDIA A100-SXM4-80GB` is `a100-sxm4-80gb`. `None` if nothing is left of it.
#[must_use]
pub fn model(name: &str) -> Option<GpuModel> {
    let lower = name.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.skip_while(|word| *word == "nvidia").collect();
    GpuModel::new(&words.join("-")).ok()
}

/// The device with this UUID, in any of the driver's forms: `GPU-…`, `MIG-…`, and the older
/// `MIG-GPU-…/3/0`, which has no UUID of its own and gets one made from its parts.
#[must_use]
pub fn device_id(uuid: &str) -> Option<DeviceId> {
    let rest = uuid.strip_prefix("MIG-").unwrap_or(uuid);
    let mut parts = rest.split('/');
    let own = parts.next()?;
    let own = own.strip_prefix("GPU-").unwrap_or(own);
    let gpu: DeviceId = format!("GPU-{own}").parse().ok()?;
    let numbers: Option<Vec<u128>> =
        parts.map(|part| part.parse::<u8>().ok().map(u128::from)).collect();
    match numbers?.as_slice() {
        [] => Some(gpu),
        // One more than the numbers, so that the first instance is not its GPU.
        [gi, ci] => Some(DeviceId::new(gpu.get() ^ ((gi + 1) << 8) ^ (ci + 1))),
        _ => None,
    }
}

/// What was learnt of the devices of a node, to be kept between rounds.
type Known<T> = BTreeMap<DeviceId, T>;
