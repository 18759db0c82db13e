//! Puts the health of each device into its sample, and keeps what is known over a restart.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sublet_protocol::ids::DeviceId;
use sublet_protocol::units::Millis;

use super::{Health, Layout, Sample};
use crate::health::{Change, HealthRule, HealthWatch, Quarantine};

/// Judges the samples of one node.
#[derive(Debug, Default)]
pub(super) struct Judge {
    rule: HealthRule,
    watch: HealthWatch,
    /// Where it is kept, if it is.
    file: Option<PathBuf>,
}

impl Judge {
    /// One that forgets everything when it ends.
    pub(super) fn new(rule: HealthRule) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Goes on with what is kept in `file`, if it is there, and keeps it there.
    pub(super) fn keep_in(&mut self, file: PathBuf) -> io::Result<()> {
        match fs::read(&file) {
            Ok(bytes) => self.watch = serde_json::from_slice(&bytes).map_err(io::Error::from)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = Some(file);
        Ok(())
    }

    /// Judges one look at all devices. An instance is as well as its GPU.
    pub(super) fn judge(&mut self, now: Millis, samples: &mut [Sample]) {
        let is_gpu = |sample: &&mut Sample| !matches!(sample.layout, Layout::Instance(_));
        let mut healths: BTreeMap<DeviceId, Health> = BTreeMap::new();
        let mut has_changed = false;
        for sample in samples.iter_mut().filter(is_gpu) {
            has_changed |= !sample.vitals.xids.is_empty();
            let vitals = Some(&sample.vitals);
            let (health, changes) = self.watch.on_look(self.rule, now, sample.device, vitals);
            has_changed |= self.tell(sample.device, &changes);
            sample.health = health;
            healths.insert(sample.device, health);
        }
        let known: Vec<DeviceId> = self.watch.devices().collect();
        for gone in known.into_iter().filter(|device| !healths.contains_key(device)) {
            let (_, changes) = self.watch.on_look(self.rule, now, gone, None);
            has_changed |= self.tell(gone, &changes);
        }
        for sample in samples {
            if let Layout::Instance(place) = sample.layout {
                sample.health = healths.get(&place.gpu).copied().unwrap_or(Health::Unknown);
            }
        }
        if has_changed {
            self.store();
        }
    }

    /// Why a device is not lent, if it is in quarantine.
    pub(super) fn quarantine(&self, device: DeviceId) -> Option<&Quarantine> {
        self.watch.quarantine(device)
    }

    /// Logs changes, and says whether there are any.
    fn tell(&self, device: DeviceId, changes: &[Change]) -> bool {
        for change in changes {
            match change {
                Change::Quarantined(faults) => {
                    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                    let faults = faults.join(", ");
                    tracing::error!(%device, faults, "device in quarantine");
                }
                Change::Reset => tracing::info!(%device, "device was reset"),
                Change::Released => tracing::info!(%device, "device out of quarantine"),
            }
        }
        !changes.is_empty()
    }

    fn store(&self) {
        let Some(file) = &self.file else { return };
        // What cannot be kept is known as long as the agent runs; the devices stay in quarantine.
        if let Err(error) = self.write(file) {
            tracing::error!(%error, file = %file.display(), "health of devices cannot be kept");
        }
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let new = file.with_extension("new");
        let mut to = File::create(&new)?;
        to.write_all(&serde_json::to_vec(&self.watch)?)?;
        to.sync_all()?;
        fs::rename(&new, file)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}
