//! The library's memory: the scenario as read last, and what its callers hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as nvml;

use crate::scenario::{File, Gpu, Instance, Scenario};

/// Names the scenario file, before the one beside the library.
const VARIABLE: &str = "SUBLET_FAKE_NVML";
/// How often a hanging call looks whether the file has changed.
const LOOK: Duration = Duration::from_millis(5);

/// Tells one state of the file from another.
type Stamp = (u64, i64, i64, u64);

/// What a handle stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Thing {
    Gpu { uuid: String },
    Mig { gpu: String, uuid: String },
    GpuInstance { gpu: String, gi: u32 },
}

#[derive(Default)]
pub(crate) struct State {
    path: Option<PathBuf>,
    stamp: Option<Stamp>,
    file: File,
    read_at: Option<Instant>,
    /// How often it was opened, and which load of the driver that was.
    opened: (u32, u64),
    things: Vec<Thing>,
    /// GPUs of which each event set wants to hear, and the Xids delivered.
    pub(crate) sets: BTreeMap<usize, BTreeSet<String>>,
    pub(crate) delivered: BTreeSet<(String, u64)>,
    /// Samples: which instance they are of.
    pub(crate) samples: BTreeMap<usize, Option<(String, u32)>>,
    next: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Runs `work` on the state, with the scenario as it is now.
pub(crate) fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, Option<State>> =
        STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let state = state.get_or_insert_with(State::default);
    state.refresh();
    work(state)
}

/// Returns when the call may go on.
pub(crate) fn hang(symbol: &str) {
    let hang = with(|state| {
        let hang = state.now().hang.clone().filter(|hang| hang.symbol == symbol);
        hang.map(|hang| (hang.ms, state.stamp))
    });
    match hang {
        None => {}
        Some((Some(ms), _)) => std::thread::sleep(Duration::from_millis(ms)),
        Some((None, stamp)) => {
            while with(|state| state.stamp == stamp) {
                std::thread::sleep(LOOK);
            }
        }
    }
}

impl State {
    fn refresh(&mut self) {
        let path = self.path.get_or_insert_with(scenario_path).clone();
        let stamp = stamp(&path);
        if stamp.is_none() || stamp == self.stamp {
            return;
        }
        let text = fs::read(&path).unwrap_or_default();
        match serde_json::from_slice(&text) {
            Ok(file) => self.file = file,
            // A scenario that cannot be read is the test's fault, and must not look like a machine.
            Err(error) => panic!("{}: {error}", path.display()),
        }
        self.stamp = stamp;
        self.read_at = Some(Instant::now());
    }

    /// The scenario that holds now.
    pub(crate) fn now(&self) -> &Scenario {
        let passed = self.read_at.map_or(Duration::ZERO, |at| at.elapsed()).as_millis();
        let mut begun = self.file.later.iter().filter(|step| u128::from(step.after_ms) <= passed);
        begun.next_back().map_or(&self.file.now, |step| &step.scenario)
    }

    pub(crate) fn open(&mut self) {
        self.opened = (self.opened.0 + 1, self.now().load);
    }

    pub(crate) fn close(&mut self) {
        self.opened.0 = self.opened.0.saturating_sub(1);
    }

    /// The code that `symbol` returns for its errors in general, if any.
    pub(crate) fn refuses(&self, symbol: &str) -> Option<nvml::nvmlReturn_t> {
        let now = self.now();
        if let Some(code) = now.errors.get(symbol) {
            return Some(*code);
        }
        let is_open = self.opened.0 > 0 && self.opened.1 == now.load;
        (!is_open).then_some(nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)
    }

    /// A number for a thing, the same whenever it is asked for; 0 is none.
    pub(crate) fn number(&mut self, thing: Thing) -> usize {
        let known = self.things.iter().position(|known| *known == thing);
        let place = known.unwrap_or_else(|| {
            self.things.push(thing);
            self.things.len() - 1
        });
        place + 1
    }

    /// A number that nothing else has, for a set or a sample.
    pub(crate) fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// What a number stands for.
    pub(crate) fn thing(&self, number: usize) -> Option<&Thing> {
        self.things.get(number.checked_sub(1)?)
    }

    /// The GPU a thing is or is on, if it is still there.
    pub(crate) fn gpu(&self, thing: &Thing) -> Option<&Gpu> {
        let uuid = match thing {
            Thing::Gpu { uuid } => uuid,
            Thing::Mig { gpu, .. } | Thing::GpuInstance { gpu, .. } => gpu,
        };
        self.now().gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }
}

/// The MIG instance a thing is, on its GPU.
pub(crate) fn instance<'a>(gpu: &'a Gpu, thing: &Thing) -> Option<&'a Instance> {
    let mut all = gpu.instances.iter().flatten();
    match thing {
        Thing::Gpu { .. } => None,
        Thing::Mig { uuid, .. } => all.find(|one| one.uuid == *uuid),
        Thing::GpuInstance { gi, .. } => all.find(|one| one.gi == *gi),
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
}

fn scenario_path() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => own_file().map(|own| own.with_file_name("scenario.json")).unwrap_or_default(),
    }
}

/// The file this code was loaded from: the mapping that holds it.
fn own_file() -> Option<PathBuf> {
    let here = (scenario_path as fn() -> PathBuf) as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (from, until) = words.next()?.split_once('-')?;
        let [from, until] = [from, until].map(|text| usize::from_str_radix(text, 16));
        let path = words.nth(4)?;
        (from.ok()? <= here && here < until.ok()? && path.starts_with('/'))
            .then(|| PathBuf::from(path))
    })
}
