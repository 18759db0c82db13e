//! What an Xid asks for: NVIDIA's numbered GPU faults, read as classes and actions.
//!
//! The meanings and the immediate actions follow NVIDIA's "Xid Errors" catalogue (GPU deployment
//! and management documentation, its table of Xids and recommended actions). A code that is not in
//! the table is shown and counted and does nothing by itself: drivers add codes, and a wrong guess
//! drains healthy nodes. An application's fault never makes a GPU sick.
//!
//! Pure. A code says what happened; whether a lease ends is decided where the lease is known.

use serde::Serialize;

/// What kind of fault a code stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The program on the GPU did something wrong; its GPU is fine.
    Application,
    /// Follows another fault and says nothing of its own.
    Consequence,
    /// Memory of the GPU: uncorrectable, contained or remapped.
    Memory,
    /// The link to the GPU, or between GPUs.
    Link,
    /// The driver or the firmware of the GPU.
    Driver,
    /// The GPU cannot be reached any more.
    Lost,
    /// Told for information.
    Notice,
    /// Not in the catalogue.
    Unknown,
}

/// What a fault asks for, from nothing to a new card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Ignore,
    /// Nothing, if another Xid came with it; else look at the application.
    IgnoreIfOtherXid,
    /// Not known: show and count, do nothing by itself.
    UnknownCode,
    /// End the application that was touched; the GPU goes on.
    RestartApp,
    /// A row waits to be remapped: take no new work, reset when the GPU is free.
    NoteRemapPending,
    /// Reset the GPU.
    ResetGpu,
    /// Let what runs end, then reset the GPU.
    DrainAndReset,
    /// Restart the node.
    RestartNode,
    /// Replace the card.
    Replace,
}

/// What is left of a GPU after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthAfter {
    /// It takes new leases.
    Healthy,
    /// It keeps what runs and takes nothing new.
    Degraded,
    /// What runs there ends, as the provider's fault.
    Unhealthy,
}

/// One code of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Xid {
    /// The number in the kernel log.
    pub code: u32,
    /// What it means, in a few words.
    pub meaning: &'static str,
    /// What kind of fault it is.
    pub class: Class,
    /// What it asks for.
    pub action: Action,
    /// What is left of the GPU.
    pub health_after: HealthAfter,
}

const fn row(
    code: u32,
    class: Class,
    action: Action,
    health_after: HealthAfter,
    meaning: &'static str,
) -> Xid {
    Xid { code, meaning, class, action, health_after }
}

/// The codes that are known, in order.
const CATALOGUE: &[Xid] = {
    use Action::{
        DrainAndReset, Ignore, IgnoreIfOtherXid, NoteRemapPending, ResetGpu, RestartApp,
        RestartNode,
    };
    use Class::{Application, Consequence, Driver, Link, Lost, Memory, Notice};
    use HealthAfter::{Degraded, Healthy, Unhealthy};
    &[
        row(8, Application, RestartApp, Healthy, "the GPU stopped processing a channel"),
        row(13, Application, RestartApp, Healthy, "graphics engine exception"),
        row(31, Application, RestartApp, Healthy, "memory page fault of an application"),
        row(32, Application, RestartApp, Healthy, "invalid or corrupted push buffer stream"),
        row(38, Driver, ResetGpu, Degraded, "driver firmware error"),
        row(43, Application, Ignore, Healthy, "an application's channel was reset"),
        row(45, Consequence, IgnoreIfOtherXid, Healthy, "preemptive cleanup after another error"),
        row(48, Memory, ResetGpu, Degraded, "uncorrectable double-bit ECC error"),
        row(61, Driver, ResetGpu, Degraded, "internal microcontroller breakpoint"),
        row(62, Driver, ResetGpu, Degraded, "internal microcontroller halt"),
        row(63, Memory, NoteRemapPending, Degraded, "a row was marked for remapping"),
        row(64, Memory, ResetGpu, Degraded, "a row could not be remapped"),
        row(68, Application, RestartApp, Healthy, "video processor exception"),
        row(69, Application, RestartApp, Healthy, "graphics engine class error"),
        row(74, Link, ResetGpu, Degraded, "NVLink error"),
        row(79, Lost, RestartNode, Unhealthy, "the GPU has fallen off the bus"),
        row(92, Notice, Ignore, Healthy, "high rate of single-bit ECC errors"),
        row(94, Memory, RestartApp, Degraded, "uncorrectable memory error, contained"),
        row(95, Memory, ResetGpu, Unhealthy, "uncorrectable memory error, not contained"),
        row(109, Driver, ResetGpu, Degraded, "context switch timed out"),
        row(110, Driver, ResetGpu, Degraded, "security fault"),
        row(119, Driver, ResetGpu, Degraded, "the GPU's system processor does not answer"),
        row(120, Driver, ResetGpu, Degraded, "error of the GPU's system processor"),
        row(121, Link, Ignore, Healthy, "corrected error of the chip-to-chip link"),
        row(123, Driver, ResetGpu, Degraded, "failure of the power management unit"),
        row(140, Memory, ResetGpu, Degraded, "unrecovered ECC error"),
        row(143, Driver, ResetGpu, Degraded, "GPU could not be initialised"),
        row(154, Notice, DrainAndReset, Degraded, "the driver's recovery action has changed"),
    ]
};

/// What `code` means; one that is not in the catalogue is [`Class::Unknown`].
///
/// Code 154 carries its action in its text: see [`recovery_action`].
#[must_use]
pub fn look_up(code: u32) -> Xid {
    CATALOGUE.iter().find(|xid| xid.code == code).copied().unwrap_or(Xid {
        code,
        meaning: "not in the catalogue",
        class: Class::Unknown,
        action: Action::UnknownCode,
        health_after: HealthAfter::Healthy,
    })
}

/// What the driver's own words for a recovery action ask for (`nvidia-smi -q`, Xid 154), and what
/// is left of the GPU until it is done. `None` for words that are not known.
///
/// Words, not numbers: the numbers differ between drivers.
#[must_use]
pub fn recovery_action(words: &str) -> Option<(Action, HealthAfter)> {
    match words.trim().to_ascii_lowercase().as_str() {
        "none" => Some((Action::Ignore, HealthAfter::Healthy)),
        "gpu reset" | "reset" => Some((Action::ResetGpu, HealthAfter::Degraded)),
        "node reboot" | "reboot" | "gpu reboot" => {
            Some((Action::RestartNode, HealthAfter::Unhealthy))
        }
        "drain p2p" | "drain and reset" => Some((Action::DrainAndReset, HealthAfter::Degraded)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_fault_leaves_the_gpu_healthy() {
        for code in [13, 31, 43, 45] {
            assert_eq!(look_up(code).health_after, HealthAfter::Healthy, "{code}");
        }
        assert_eq!(look_up(31).class, Class::Application);
    }

    #[test]
    fn a_code_of_a_later_driver_is_shown_and_does_nothing() {
        let xid = look_up(4_711);
        assert_eq!(
            (xid.class, xid.action, xid.health_after),
            (Class::Unknown, Action::UnknownCode, HealthAfter::Healthy)
        );
    }

    #[test]
    fn a_contained_error_is_never_called_corrected() {
        assert!(!look_up(94).meaning.contains("corrected"));
        assert!(!look_up(95).meaning.contains("corrected"));
    }

    #[test]
    fn the_catalogue_is_in_order_and_has_each_code_once() {
        assert!(CATALOGUE.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[test]
    fn a_recovery_action_is_known_by_its_words() {
        assert_eq!(recovery_action("GPU Reset").unwrap().0, Action::ResetGpu);
        assert_eq!(recovery_action("None").unwrap().1, HealthAfter::Healthy);
        assert_eq!(recovery_action("Make Coffee"), None);
    }
}
