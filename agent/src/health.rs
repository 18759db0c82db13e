//! Whether devices are well: judged from what the driver tells, with quarantine. No clock, no I/O.
//!
//! A fault puts a device into quarantine at the look that shows it. It is released only after a reset,
//! if the fault asks for one, and then after some clean looks in a row. A look is clean if all that
//! was read before can be read and shows no fault; it is no computation on the device.
//!
//! The driver does not say that a device was reset. It shows by counters that begin anew (energy, ECC
//! errors since loading), by a pending repair that is no longer pending, or, where energy is not told, by a
//! device that was gone and is back; or an operator says so.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::DeviceId;
use sublet_protocol::units::Millis;

use crate::probe::{Cause, Health, Vitals};
use crate::xid::{self, HealthAfter};

/// When a device is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthRule {
    /// Clean looks in a row after the reset.
    pub clean_looks: u32,
}

impl Default for HealthRule {
    /// Three clean looks: a minute and a half at the usual pace.
    fn default() -> Self {
        Self { clean_looks: 3 }
    }
}

/// What is wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The driver has told an Xid of this code.
    Xid(u32),
    /// ECC errors that were not corrected, since the driver was loaded or the device reset.
    UncorrectedErrors,
    /// A memory row could not be replaced: the device must be replaced.
    RepairFailed,
    /// A memory row or page waits for a reset.
    RepairPending,
    /// It is as hot as where it slows itself down.
    Hot,
    /// A reading fails that is no matter of permission.
    ReadingFails,
    /// It has gone.
    Gone,
}

impl Fault {
    fn leaves(&self) -> HealthAfter {
        match self {
            Fault::Xid(code) => xid::look_up(*code).health_after,
            Fault::RepairFailed | Fault::Gone => HealthAfter::Unhealthy,
            Fault::UncorrectedErrors | Fault::RepairPending | Fault::Hot | Fault::ReadingFails => {
                HealthAfter::Degraded
            }
        }
    }

    /// Whether only a reset ends it. The others end by themselves.
    const fn needs_reset(&self) -> bool {
        match self {
            Fault::Xid(_) | Fault::UncorrectedErrors | Fault::RepairPending => true,
            Fault::RepairFailed | Fault::Hot | Fault::ReadingFails | Fault::Gone => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Xid(code) => write!(f, "Xid {code} ({})", xid::look_up(*code).meaning),
            Fault::UncorrectedErrors => f.write_str("uncorrected ECC errors"),
            Fault::RepairFailed => f.write_str("a memory row could not be replaced"),
            Fault::RepairPending => f.write_str("a memory repair waits for a reset"),
            Fault::Hot => f.write_str("as hot as where it slows down"),
            Fault::ReadingFails => f.write_str("the driver fails to read it"),
            Fault::Gone => f.write_str("gone"),
        }
    }
}

/// Why a device is not lent, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Every fault since it began, the earliest first.
    pub faults: Vec<Fault>,
    /// When it began.
    pub since: Millis,
    /// Whether a reset is still awaited.
    pub awaits_reset: bool,
    /// Clean looks in a row.
    pub clean: u32,
}

/// What is known of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    quarantine: Option<Quarantine>,
    marks: Marks,
    /// How often each code was heard.
    xids: BTreeMap<u32, u64>,
}

/// What shows a reset when it falls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Marks {
    energy: Option<u64>,
    uncorrected: Option<u64>,
    is_pending: bool,
}

impl Marks {
    fn of(vitals: &Vitals) -> Marks {
        Marks {
            energy: vitals.energy,
            uncorrected: vitals.ecc.map(|ecc| ecc.uncorrected),
            is_pending: is_pending(vitals),
        }
    }

    /// Whether a device that shows `later` was reset since.
    fn show_reset(&self, later: &Marks) -> bool {
        let fell = |before: Option<u64>, now: Option<u64>| {
            before.zip(now).is_some_and(|(before, now)| now < before)
        };
        fell(self.energy, later.energy)
            || fell(self.uncorrected, later.uncorrected)
            || (self.is_pending && !later.is_pending)
    }

    /// Keeps what could not be read this time.
    fn with(self, later: Marks) -> Marks {
        Marks {
            energy: later.energy.or(self.energy),
            uncorrected: later.uncorrected.or(self.uncorrected),
            is_pending: later.is_pending,
        }
    }
}

/// What a look has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Faults that were not known before; the device is, or stays, in quarantine.
    Quarantined(Vec<Fault>),
    /// It was reset; clean looks are counted from now on.
    Reset,
    /// It is lent again.
    Released,
}

/// Watches the health of a node's devices. What it knows is worth keeping over a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthWatch {
    devices: BTreeMap<DeviceId, Record>,
}

impl HealthWatch {
    /// Takes a look at a device; `None` if it is gone. Says how it is, and what has changed.
    pub fn on_look(
        &mut self,
        rule: HealthRule,
        now: Millis,
        device: DeviceId,
        vitals: Option<&Vitals>,
    ) -> (Health, Vec<Change>) {
        let record = self.devices.entry(device).or_default();
        let mut changes = Vec::new();
        let faults = match vitals {
            Some(vitals) => record.see(vitals, &mut changes),
            None => vec![Fault::Gone],
        };
        let is_clean = faults.is_empty();
        let new = record.add(now, faults);
        if !new.is_empty() {
            changes.push(Change::Quarantined(new));
        }
        if is_clean && record.is_released(rule) {
            record.quarantine = None;
            changes.push(Change::Released);
        }
        (record.health(vitals), changes)
    }

    /// An operator has reset a device, or says that it needs no reset.
    pub fn on_reset(&mut self, device: DeviceId) {
        if let Some(record) = self.devices.get_mut(&device) {
            record.reset();
        }
    }

    /// Why a device is not lent, if it is in quarantine.
    #[must_use]
    pub fn quarantine(&self, device: DeviceId) -> Option<&Quarantine> {
        self.devices.get(&device)?.quarantine.as_ref()
    }

    /// How often each Xid code of a device was heard, unknown codes included.
    #[must_use]
    pub fn xids(&self, device: DeviceId) -> Option<&BTreeMap<u32, u64>> {
        self.devices.get(&device).map(|record| &record.xids)
    }

    /// The devices that were ever seen.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.keys().copied()
    }
}

impl Record {
    /// The faults of this look.
    fn see(&mut self, vitals: &Vitals, changes: &mut Vec<Change>) -> Vec<Fault> {
        let before = self.marks;
        let now = Marks::of(vitals);
        let was_gone = self.come_back();
        // A device that only did not answer for a while was not reset: its energy goes on.
        let can_tell = before.energy.is_some() && now.energy.is_some();
        if before.show_reset(&now) || (was_gone && !can_tell) {
            // Also without a quarantine: counters begin anew.
            if self.reset() {
                changes.push(Change::Reset);
            }
            self.marks = Marks::default();
        }
        let mut faults = self.hear(&vitals.xids);
        // At the first look whatever was counted since the driver was loaded is news.
        if now.uncorrected > Some(self.marks.uncorrected.unwrap_or(0)) {
            faults.push(Fault::UncorrectedErrors);
        }
        if vitals.rows.is_some_and(|rows| rows.has_failed) {
            faults.push(Fault::RepairFailed);
        }
        if is_pending(vitals) {
            faults.push(Fault::RepairPending);
        }
        if vitals.temperature.zip(vitals.slowdown).is_some_and(|(is, slow)| is >= slow) {
            faults.push(Fault::Hot);
        }
        if vitals.unread.iter().any(|unread| unread.cause == Cause::Device) {
            faults.push(Fault::ReadingFails);
        }
        self.marks = self.marks.with(now);
        faults
    }

    /// Counts the codes, and says which of them are faults of the device.
    fn hear(&mut self, codes: &[u32]) -> Vec<Fault> {
        let mut faults = Vec::new();
        for code in codes.iter().copied() {
            let count = self.xids.entry(code).or_insert(0);
            *count = count.saturating_add(1);
            match xid::look_up(code).health_after {
                HealthAfter::Healthy => {}
                HealthAfter::Degraded | HealthAfter::Unhealthy => faults.push(Fault::Xid(code)),
            }
        }
        faults
    }

    /// Adds faults to the quarantine, or begins it. Those that were not in it before.
    fn add(&mut self, now: Millis, faults: Vec<Fault>) -> Vec<Fault> {
        if faults.is_empty() {
            return faults;
        }
        let begin = || Quarantine { faults: Vec::new(), since: now, awaits_reset: false, clean: 0 };
        let quarantine = self.quarantine.get_or_insert_with(begin);
        quarantine.clean = 0;
        quarantine.awaits_reset |= faults.iter().any(Fault::needs_reset);
        let mut new = Vec::new();
        for fault in faults {
            if !quarantine.faults.contains(&fault) {
                quarantine.faults.push(fault.clone());
                new.push(fault);
            }
        }
        new
    }

    /// Counts a clean look, and says whether the device may be lent again.
    fn is_released(&mut self, rule: HealthRule) -> bool {
        let Some(quarantine) = &mut self.quarantine else { return false };
        if quarantine.awaits_reset {
            return false;
        }
        quarantine.clean = quarantine.clean.saturating_add(1);
        quarantine.clean >= rule.clean_looks
    }

    /// It is there. Whether it was gone at the last look.
    fn come_back(&mut self) -> bool {
        let Some(quarantine) = &mut self.quarantine else { return false };
        let before = quarantine.faults.len();
        quarantine.faults.retain(|fault| *fault != Fault::Gone);
        quarantine.faults.len() < before
    }

    /// Whether there was something to reset.
    fn reset(&mut self) -> bool {
        let Some(quarantine) = &mut self.quarantine else { return false };
        let awaited = std::mem::replace(&mut quarantine.awaits_reset, false);
        quarantine.clean = 0;
        // What the reset has ended is no longer what is wrong now.
        quarantine.faults.retain(|fault| !fault.needs_reset());
        awaited
    }

    fn health(&self, vitals: Option<&Vitals>) -> Health {
        match &self.quarantine {
            Some(quarantine)
                if quarantine.faults.iter().any(|f| f.leaves() == HealthAfter::Unhealthy) =>
            {
                Health::Unhealthy
            }
            Some(_) => Health::Degraded,
            None if vitals.is_some_and(tells_of_faults) => Health::Healthy,
            None => Health::Unknown,
        }
    }
}

fn is_pending(vitals: &Vitals) -> bool {
    vitals.rows.is_some_and(|rows| rows.is_pending) || vitals.retirement_pending == Some(true)
}

/// Whether a fault would show at all: a device that tells neither errors nor events may be sick.
const fn tells_of_faults(vitals: &Vitals) -> bool {
    vitals.hears_xids || vitals.ecc.is_some()
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
