//! Room on the disk below log and ledger, and a reserve for what has to end.
//!
//! A broker whose disk is full can write nothing, and a failed write of the log ends its process. So
//! it looks once a second and stops before. With less than a tenth free the leader grants nothing
//! new. With next to nothing free it takes only what ends something, and gives up a file that it kept
//! for this: guests stop, leases end and are charged. When there is room again the file is made anew
//! and everything goes on; nobody has to be told.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use sublet_protocol::commands::Command;

use crate::cell::Parts;
use crate::folders;
use crate::metrics;

/// The reserve's name in the data folder.
const RESERVE: &str = "reserve";

/// What a file system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Only for what ends something.
    Full,
    /// For everything but new grants.
    Low,
    /// For everything.
    Plenty,
}

/// Asks how much room there is.
#[derive(Clone)]
pub struct Probe(Arc<Ask>);

type Ask = dyn Fn(&Path) -> io::Result<Space> + Send + Sync;

impl Probe {
    /// Asks `probe`, which is given the data folder.
    pub fn new(probe: impl Fn(&Path) -> io::Result<Space> + Send + Sync + 'static) -> Self {
        Self(Arc::new(probe))
    }

    /// Asks the system (`statvfs`): what is free for an ordinary user, quotas left aside.
    #[must_use]
    #[allow(clippy::useless_conversion, reason = "the numbers are narrower on some systems")]
    pub fn system() -> Self {
        Self::new(|folder| {
            let found = statvfs(folder)?;
            let block = u64::from(found.fragment_size());
            let (free, total) = (u64::from(found.blocks_available()), u64::from(found.blocks()));
            Ok(Space { free: free.saturating_mul(block), total: total.saturating_mul(block) })
        })
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

/// When there is too little room. The default is for production.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nothing new is granted with less than this part of the disk free, in thousandths. Default 100.
    pub low_permille: u16,
    /// Size of the reserve in bytes. With less than half of it free the disk counts as full. Default
    /// 64 MiB; 0 keeps none, and then the disk never counts as full.
    pub reserve_bytes: u64,
    /// How often it is looked. Default: every second.
    pub interval: Duration,
    /// Who is asked. Default: the system.
    pub probe: Probe,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            low_permille: 100,
            reserve_bytes: 64 * 1024 * 1024,
            interval: Duration::from_secs(1),
            probe: Probe::system(),
        }
    }
}

/// Looks at the room and keeps the reserve.
#[derive(Debug)]
pub(crate) struct Watch {
    folder: PathBuf,
    settings: Settings,
    seen: Mutex<(Room, Option<Space>)>,
}

impl Watch {
    /// Looks for the first time. To be called before log and ledger are opened: a broker that died of
    /// a full disk gets the room of its reserve to start in.
    pub(crate) fn new(folder: &Path, settings: Settings) -> Self {
        let seen = Mutex::new((Room::Plenty, None));
        let watch = Self { folder: folder.to_owned(), settings, seen };
        watch.look();
        watch
    }

    /// What there is room for, as of the last look.
    pub(crate) fn room(&self) -> Room {
        self.seen().0
    }

    /// What was seen at the last look; nothing if the system would not say.
    pub(crate) fn space(&self) -> Option<Space> {
        self.seen().1
    }

    fn seen(&self) -> MutexGuard<'_, (Room, Option<Space>)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks, gives the reserve up or makes it anew. Blocks.
    pub(crate) fn look(&self) {
        let space = match (self.settings.probe.0)(&self.folder) {
            Ok(space) => space,
            Err(error) => {
                // What is not known changes nothing: the log's own writes will tell.
                tracing::warn!(folder = %self.folder.display(), %error, "free space is not known");
                self.seen().1 = None;
                return;
            }
        };
        let (room, space) = self.judge(space);
        let before = std::mem::replace(&mut *self.seen(), (room, Some(space)));
        metrics::disk_is(room, space.free);
        if before.0 != room {
            let (free, total) = (space.free, space.total);
            match room {
                Room::Plenty => tracing::info!(free, total, "disk: room for everything again"),
                Room::Low => tracing::error!(free, total, "disk: too little room for new grants"),
                Room::Full => tracing::error!(free, total, "disk full: only what ends is taken"),
            }
        }
    }

    /// What there is room for, and what is free after the reserve was given up or made.
    fn judge(&self, space: Space) -> (Room, Space) {
        let Settings { low_permille, reserve_bytes, .. } = self.settings;
        let low = space.total / 1_000 * u64::from(low_permille);
        let (path, full) = (self.folder.join(RESERVE), reserve_bytes / 2);
        let open = if space.free < low { Room::Low } else { Room::Plenty };
        if reserve_bytes == 0 {
            return (open, space);
        }
        let is_kept = fs::metadata(&path).is_ok_and(|found| found.len() == reserve_bytes);
        if space.free < full {
            if fs::remove_file(&path).is_ok() {
                tracing::warn!(bytes = reserve_bytes, "disk: the reserve was given up");
            }
            return (Room::Full, space);
        }
        if is_kept {
            return (open, space);
        }
        // Made anew only if it leaves more than what counts as full: it must not come and go.
        if space.free < reserve_bytes.saturating_mul(2) {
            return (Room::Full, space);
        }
        if let Err(error) = reserve(&path, reserve_bytes) {
            tracing::warn!(file = %path.display(), %error, "disk: the reserve cannot be made");
            return (Room::Full, space);
        }
        let free = space.free.saturating_sub(reserve_bytes);
        let open = if free < low { Room::Low } else { Room::Plenty };
        (open, Space { free, ..space })
    }
}

/// Makes a file whose blocks are really there.
fn reserve(path: &Path, bytes: u64) -> io::Result<()> {
    let made = File::create(path).and_then(|file| {
        #[cfg(target_os = "linux")]
        {
            let length = i64::try_from(bytes).map_err(io::Error::other)?;
            nix::fcntl::posix_fallocate(&file, 0, length)?;
        }
        #[cfg(not(target_os = "linux"))]
        io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut &file)?;
        file.sync_all()
    });
    if made.is_err() {
        // Half of one holds back room and is good for nothing.
        drop(fs::remove_file(path));
        return made;
    }
    path.parent().map_or(Ok(()), folders::sync)
}

/// Looks as long as the cell is open.
pub(crate) fn watch(parts: &Arc<Parts>) {
    let Some(space) = &parts.space else { return };
    let (space, interval) = (Arc::downgrade(space), space.settings.interval);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            let Some(space) = space.upgrade() else { return };
            // It may have to write the reserve.
            if tokio::task::spawn_blocking(move || space.look()).await.is_err() {
                return;
            }
        }
    });
}

/// Waits until there is room for everything.
pub(crate) async fn plenty(parts: &Parts) {
    let Some(space) = &parts.space else { return };
    while space.room() != Room::Plenty {
        tokio::time::sleep(space.settings.interval).await;
    }
}

/// Whether a command is taken where there is this much room.
pub(crate) fn admits(room: Room, command: &Command) -> bool {
    match room {
        Room::Plenty => true,
        Room::Low => !matches!(command, Command::CommitPlan { .. }),
        Room::Full => ends(command),
    }
}

/// Whether a command ends something, or lets something that is there go on to its end.
const fn ends(command: &Command) -> bool {
    match command {
        Command::RegisterNode { .. }
        | Command::RescindOffer { .. }
        | Command::ConfirmMember { .. }
        | Command::RefuseMember { .. }
        | Command::ReportStopped { .. }
        | Command::ReclaimSlice { .. }
        | Command::CancelRequest { .. }
        | Command::ReleaseLease { .. }
        | Command::RevokeLease { .. }
        | Command::RecordUsage { .. }
        | Command::DeclareSilent { .. }
        | Command::Sweep
        | Command::ReportCheckpoint { .. }
        | Command::RecallLease { .. }
        | Command::DeclareStalled { .. }
        // A broker that goes, or comes for it.
        | Command::EnlistBroker { .. }
        | Command::RemoveNode { .. }
        | Command::RejectRollback { .. }
        | Command::AdvanceRollback { .. } => true,
        // A seal frees room in the end, and needs as much as the state is large before that.
        Command::SealTail
        | Command::CreateCell { .. }
        | Command::SetPolicy { .. }
        | Command::CreateTenant { .. }
        | Command::SetQuota { .. }
        | Command::CreateCluster { .. }
        | Command::SetPrice { .. }
        | Command::OfferCapacity { .. }
        | Command::SubmitRequest { .. }
        | Command::CommitPlan { .. }
        | Command::SetTerms { .. }
        | Command::MoveTenant { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::ClosePeriod { .. }
        | Command::NameTenant { .. }
        | Command::ProposeRollback { .. }
        | Command::ApproveRollback { .. }
        | Command::SetCalendar { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// A disk of 1,000 MiB with what the test says free, beside a reserve of 4 MiB.
    fn disk(folder: &Path) -> (Watch, Arc<AtomicU64>) {
        let free = Arc::new(AtomicU64::new(500 * MIB));
        let told = Arc::clone(&free);
        let probe = Probe::new(move |_| {
            Ok(Space { free: told.load(Ordering::SeqCst), total: 1_000 * MIB })
        });
        let settings = Settings { reserve_bytes: 4 * MIB, probe, ..Settings::default() };
        (Watch::new(folder, settings), free)
    }

    #[test]
    fn the_reserve_is_given_up_when_the_disk_is_full_and_made_anew_when_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = folder.path().join(RESERVE);
        let (watch, free) = disk(folder.path());
        for (mib, room, is_kept) in [
            (500, Room::Plenty, true),
            (100, Room::Plenty, true),
            (99, Room::Low, true),
            (2, Room::Low, true),
            (1, Room::Full, false),
            // What the reserve has freed is not room for everything.
            (5, Room::Full, false),
            (7, Room::Full, false),
            (8, Room::Low, true),
            (200, Room::Plenty, true),
        ] {
            free.store(mib * MIB, Ordering::SeqCst);
            watch.look();
            assert_eq!((watch.room(), reserve.exists()), (room, is_kept), "{mib} MiB free");
        }
    }

    #[test]
    fn the_reserve_takes_the_room_that_it_stands_for() {
        let folder = tempfile::tempdir().unwrap();
        let (watch, _) = disk(folder.path());
        assert_eq!(watch.space(), Some(Space { free: 496 * MIB, total: 1_000 * MIB }));
        let kept = fs::metadata(folder.path().join(RESERVE)).unwrap();
        let on_disk = std::os::unix::fs::MetadataExt::blocks(&kept) * 512;
        assert!(on_disk >= 4 * MIB, "{on_disk}");
    }

    #[test]
    fn a_broker_that_starts_on_a_full_disk_gets_the_room_of_its_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let (watch, free) = disk(folder.path());
        assert_eq!(watch.room(), Room::Plenty);
        let settings = watch.settings.clone();
        free.store(0, Ordering::SeqCst);
        assert_eq!(Watch::new(folder.path(), settings).room(), Room::Full);
        assert!(!folder.path().join(RESERVE).exists());
    }

    #[test]
    fn the_system_tells_a_room_that_makes_sense() {
        let found = (Probe::system().0)(Path::new(".")).unwrap();
        assert!(found.free <= found.total && found.total > MIB, "{found:?}");
    }

    #[test]
    fn a_disk_that_cannot_be_asked_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let probe = Probe::new(|_| Err(io::Error::other("gone")));
        let watch = Watch::new(folder.path(), Settings { probe, ..Settings::default() });
        assert_eq!((watch.room(), watch.space()), (Room::Plenty, None));
    }

    #[test]
    fn what_ends_something_is_taken_on_a_full_disk_and_what_begins_something_is_not() {
        let plan = Command::CommitPlan { groups: Vec::new() };
        let usage = Command::RecordUsage { entries: Vec::new() };
        for (room, grants, ends, seals) in [
            (Room::Plenty, true, true, true),
            (Room::Low, false, true, true),
            (Room::Full, false, true, false),
        ] {
            assert_eq!(admits(room, &plan), grants);
            assert_eq!(admits(room, &usage) && admits(room, &Command::Sweep), ends);
            assert_eq!(admits(room, &Command::SealTail), seals);
        }
    }
}
