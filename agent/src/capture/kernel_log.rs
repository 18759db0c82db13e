//! Xid lines in a kernel log, as `dmesg`, `journalctl` and `/var/log` print them.

use serde::Serialize;

use super::cell;
use super::pci;
use crate::xid::{self, Action, Class, HealthAfter};

/// Most faults kept of one log; the rest is counted.
pub const FAULTS_MAX: usize = 10_000;

/// One Xid line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The line of the file, from 1.
    pub line: u64,
    /// The code.
    pub xid: u32,
    /// The GPU's PCI address; `None` if the line's is not one.
    pub pci: Option<String>,
    /// Whose program it was; `None` if the driver does not say.
    pub pid: Option<u64>,
    /// The program's name.
    pub process: Option<String>,
    /// What the code means.
    pub meaning: &'static str,
    /// What kind of fault it is.
    pub class: Class,
    /// What it asks for.
    pub action: Action,
    /// What is left of the GPU.
    pub gpu_health_after: HealthAfter,
    /// Whether it follows an earlier line about the same GPU and opens no incident of its own.
    pub follows_earlier: bool,
}

/// The Xid lines of a log and how many lines were past [`FAULTS_MAX`].
#[must_use]
pub fn read(text: &str) -> (Vec<Fault>, usize) {
    let mut faults: Vec<Fault> = Vec::new();
    let mut left_out = 0_usize;
    for (number, line) in (1_u64..).zip(text.lines()) {
        let Some(mut fault) = fault(number, line) else { continue };
        if faults.len() >= FAULTS_MAX {
            left_out = left_out.saturating_add(1);
            continue;
        }
        fault.follows_earlier = fault.action == Action::IgnoreIfOtherXid
            && faults.iter().rev().any(|f| f.pci == fault.pci && f.class == Class::Application);
        faults.push(fault);
    }
    (faults, left_out)
}

/// `NVRM: Xid (PCI:0000:1b:00): 13, pid=70211, name=python3, text`, with or without `PCI:` and pid.
fn fault(number: u64, line: &str) -> Option<Fault> {
    let (_, rest) = line.split_once("NVRM: Xid (")?;
    let (address, rest) = rest.split_once("): ")?;
    let (code, text) = rest.split_once(',').unwrap_or((rest, ""));
    let known = xid::look_up(code.trim().parse().ok()?);
    let field = |name: &str| {
        let (_, value) = text.split_once(name)?;
        let value = value.split(',').next()?.trim().trim_matches('\'');
        if value.starts_with('<') || cell::text(value).is_err() { None } else { Some(value) }
    };
    // 154 carries its action in words: "… changed from 0x0 (None) to 0x4 (Drain and Reset)".
    let told = text.rsplit_once('(').filter(|_| known.code == 154);
    let told = told.and_then(|(_, words)| xid::recovery_action(words.trim_end_matches(')')));
    let (action, gpu_health_after) = told.unwrap_or((known.action, known.health_after));
    Some(Fault {
        line: number,
        xid: known.code,
        pci: pci::normal(address),
        pid: field("pid=").and_then(|pid| pid.parse().ok()),
        process: field("name=").map(str::to_owned),
        meaning: known.meaning,
        class: known.class,
        action,
        gpu_health_after,
        follows_earlier: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xid_is_found_under_every_prefix() {
        let log = "Jan 04 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:1B:00): 31, pid=77, name=train, x\n\
            unrelated\n\
            <3>[ 12.1] NVRM: Xid (0000:1b:00): 45, Ch 0000000a\n\
            2026-01-04T10:00:00,5+01:00 NVRM: Xid (PCI:0000:2b:00): 45, pid='<unknown>', name=<unknown>";
        let (faults, left_out) = read(log);
        assert_eq!(left_out, 0);
        let told: Vec<_> =
            faults.iter().map(|f| (f.line, f.xid, f.pid, f.follows_earlier)).collect();
        assert_eq!(told, [(1, 31, Some(77), false), (3, 45, None, true), (4, 45, None, false)]);
        assert_eq!(faults[0].pci.as_deref(), Some("0000:1b:00"));
    }

    #[test]
    fn a_recovery_action_in_words_decides_what_xid_154_asks_for() {
        let line = |to: &str| {
            format!(
                "NVRM: Xid (PCI:0000:bb:00): 154, pid=1, name=x, GPU recovery \
            action changed from 0x0 (None) to {to}"
            )
        };
        let (faults, _) = read(&line("0x2 (Node Reboot)"));
        assert_eq!(faults[0].action, Action::RestartNode);
        let (faults, _) = read(&line("0x0 (None)"));
        assert_eq!(faults[0].gpu_health_after, HealthAfter::Healthy);
    }
}
