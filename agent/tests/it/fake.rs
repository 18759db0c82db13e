//! A driver's library for one test: a copy of the fake one, with a scenario beside it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sublet_agent::probe::OwnerQueue;
use sublet_agent::probe::nvml::{Config, NvmlProbe};

/// UUIDs of the GPUs of these tests.
pub(crate) const FIRST: &str = "GPU-6f2c9f1e-71a3-40d5-9c55-0d1f6a3b7e10";
pub(crate) const SECOND: &str = "GPU-b1d0c7a4-2e6f-4f83-8a90-55c2e97d4f21";
pub(crate) const THIRD: &str = "GPU-0e9a4d33-c8b7-4a12-b6de-71f05a8c9d32";

/// A library of its own, in a folder of its own.
pub(crate) struct FakeDriver {
    folder: tempfile::TempDir,
}

impl FakeDriver {
    /// With this scenario.
    pub(crate) fn new(scenario: &Value) -> FakeDriver {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(built(), folder.path().join("libnvidia-ml.so.1")).unwrap();
        let driver = FakeDriver { folder };
        driver.set(scenario);
        driver
    }

    /// From now on this holds.
    pub(crate) fn set(&self, scenario: &Value) {
        self.write(&json!({ "now": scenario }));
    }

    /// Writes a whole file, with later steps.
    pub(crate) fn write(&self, file: &Value) {
        let new = self.folder.path().join("scenario.new");
        std::fs::write(&new, file.to_string()).unwrap();
        std::fs::rename(new, self.folder.path().join("scenario.json")).unwrap();
    }

    /// The library.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// How it is read in tests: little patience, and no pause before it is opened anew.
    pub(crate) fn config(&self) -> Config {
        Config {
            library: Some(self.library()),
            patience: Duration::from_secs(20),
            reopen_pause: Duration::ZERO,
            owner_queue: Some(OwnerQueue::Nothing),
            ..Config::default()
        }
    }

    /// A probe of it.
    pub(crate) fn probe(&self) -> NvmlProbe {
        NvmlProbe::new(self.config())
    }
}

/// Cargo builds the fake library with these tests, beside them.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let beside = own.parent().unwrap();
    let file = "libsublet_fake_nvml.so";
    let places = [beside.join(file), beside.parent().unwrap_or(Path::new("/")).join(file)];
    let found = places.iter().find(|place| place.is_file());
    found.unwrap_or_else(|| panic!("{file} was not built beside {}", own.display())).clone()
}

/// A card of 80 GiB that has all readings and does nothing.
pub(crate) fn idle_gpu(uuid: &str) -> Value {
    json!({
        "uuid": uuid,
        "name": "NVIDIA A100-SXM4-80GB",
        "pci": "00000000:1b:00.0",
        "memory": { "total": 81_920, "reserved": 873 },
        "utilisation": 0,
        "compute": [],
        "graphics": [],
        "instances": [],
        "virtualisation": 0,
        "temperature": 31,
        "slowdown": 89,
        "power": 61_250,
        "energy": 8_400_000,
        "ecc": { "corrected": 2, "uncorrected": 0 },
        "rows": {},
        "retirement_pending": false,
        "links": [],
    })
}

/// A value with other fields.
pub(crate) fn with(mut value: Value, change: &Value) -> Value {
    let fields = value.as_object_mut().unwrap();
    for (key, new) in change.as_object().unwrap() {
        fields.insert(key.clone(), new.clone());
    }
    value
}

/// A value without a field.
pub(crate) fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().unwrap().remove(key).unwrap();
    value
}

/// A machine with these GPUs.
pub(crate) fn machine(gpus: &[Value]) -> Value {
    json!({ "driver": "550.127.05", "gpus": gpus })
}
