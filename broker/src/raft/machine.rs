//! The adapter between openraft's state machine worker and the [`Machine`].

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend, SnapshotMeta, StoredMembership};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;

use super::fatal::Fatal;
use super::snapshots::{Snapshots, StoredSnapshot};
use super::types::{Applied, LogPosition, Machine, MachineError};
use super::wire::{Commands, Replies, TypeConfig, position};

/// A sealed state that waits to be stored.
pub(super) struct Sealed {
    meta: SnapshotMetaOf<TypeConfig>,
    bytes: Vec<u8>,
}

/// What the adapter shares with the rest of the node.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<SharedState>,
    /// Told when a seal waits or a snapshot has been stored.
    pub(super) changed: Notify,
    /// Held while the machine is called; `true` once the node has been shut down.
    closed: Mutex<bool>,
}

#[derive(Default)]
struct SharedState {
    waiting: Option<Sealed>,
    storing: usize,
    failure: Option<MachineError>,
    applied: Option<LogPosition>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a seal waits to be stored.
    pub(super) fn waits(&self) -> bool {
        self.state().waiting.is_some()
    }

    /// Whether every seal so far has been stored.
    pub(super) fn idle(&self) -> bool {
        let state = self.state();
        state.waiting.is_none() && state.storing == 0
    }

    /// The last entry that was applied. Never behind what has been acknowledged here.
    pub(super) fn applied(&self) -> Option<LogPosition> {
        self.state().applied
    }

    /// The machine's error, if it failed while the log was recovered.
    pub(super) fn take_failure(&self) -> Option<MachineError> {
        self.state().failure.take()
    }

    /// The machine is not called any more once this has returned.
    pub(super) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// The state machine as openraft knows it.
pub(super) struct Adapter {
    machine: Arc<dyn Machine>,
    snapshots: Arc<Snapshots>,
    shared: Arc<Shared>,
    fatal: Fatal,
    applied: Option<LogIdOf<TypeConfig>>,
    membership: StoredMembershipOf<TypeConfig>,
}

impl Adapter {
    /// Restores `machine` from the newest snapshot, if there is one.
    ///
    /// # Errors
    /// What the machine said, or that the snapshot cannot be read.
    pub(super) fn restore(
        machine: Arc<dyn Machine>,
        snapshots: Arc<Snapshots>,
        shared: Arc<Shared>,
        fatal: Fatal,
    ) -> Result<Self, MachineError> {
        let mut adapter = Self {
            machine,
            snapshots,
            shared,
            fatal,
            applied: None,
            membership: StoredMembership::default(),
        };
        if let Some(stored) = adapter.snapshots.newest() {
            let bytes = stored.read().map_err(MachineError::new)?;
            adapter.load(stored.meta(), &bytes)?;
        }
        Ok(adapter)
    }

    fn load(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        bytes: &[u8],
    ) -> Result<(), MachineError> {
        let Some(last) = meta.last_log_id else {
            return Err(MachineError::new("a snapshot without a position"));
        };
        self.guarded(|machine| machine.restore(position(&last), bytes))?;
        self.moved_to(last);
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    fn moved_to(&mut self, last: LogIdOf<TypeConfig>) {
        self.applied = Some(last);
        self.shared.state().applied = Some(position(&last));
    }

    /// Calls the machine, unless the node was shut down. A panic is an error.
    fn guarded<T>(
        &self,
        call: impl FnOnce(&dyn Machine) -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        let closed = self.shared.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(MachineError::new("the node has been shut down"));
        }
        let machine = &*self.machine;
        blocking(|| catch_unwind(AssertUnwindSafe(|| call(machine)))).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "no message".to_owned());
            Err(MachineError::new(format!("it panicked: {text}")))
        })
    }

    /// Ends the process because of `error`, or keeps it for `open`.
    fn fail(&self, error: MachineError) -> io::Error {
        let text = error.to_string();
        self.shared.state().failure = Some(error);
        self.fatal.strike(&text);
        io::Error::other(text)
    }

    fn apply_commands(&self, at: LogPosition, commands: &Commands) -> io::Result<Applied> {
        let applied = self
            .guarded(|machine| machine.apply(at, &commands.0))
            .map_err(|error| self.fail(error))?;
        if applied.replies.len() == commands.0.len() {
            return Ok(applied);
        }
        let (given, wanted) = (applied.replies.len(), commands.0.len());
        Err(self.fail(MachineError::new(format!("{given} replies to {wanted} commands at {at}"))))
    }

    /// Takes `bytes` for the snapshot at the present position. An older waiting one is dropped.
    pub(super) fn keep_sealed(&self, bytes: Vec<u8>) {
        let meta =
            SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        self.shared.state().waiting = Some(Sealed { meta, bytes });
        self.shared.changed.notify_one();
    }

    fn builder(&self, sealed: Option<Sealed>) -> Builder {
        self.shared.state().storing += 1;
        Builder {
            sealed,
            snapshots: Arc::clone(&self.snapshots),
            shared: Arc::clone(&self.shared),
            fatal: self.fatal.clone(),
        }
    }
}

/// Runs `call` so that it may block, as far as the runtime allows it.
fn blocking<T>(call: impl FnOnce() -> T) -> T {
    let threads = Handle::try_current().map(|handle| handle.runtime_flavor());
    match threads {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(call),
        _ => call(),
    }
}

impl RaftStateMachine<TypeConfig> for Adapter {
    type SnapshotData = StoredSnapshot;
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let (replies, sealed) = match &entry.payload {
                EntryPayload::Blank => (Replies::default(), None),
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                    (Replies::default(), None)
                }
                EntryPayload::Normal(commands) => {
                    let applied = self.apply_commands(position(&entry.log_id), commands)?;
                    (Replies(applied.replies), applied.sealed)
                }
            };
            self.moved_to(entry.log_id);
            if let Some(bytes) = sealed {
                self.keep_sealed(bytes);
            }
            if let Some(responder) = responder {
                responder.send(replies);
            }
        }
        Ok(())
    }

    /// A snapshot exists only where the machine sealed. `force` cannot change that: openraft forces
    /// one only for a purged log without any snapshot, which `open` has refused before.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        let sealed = self.shared.state().waiting.take();
        (force || sealed.is_some()).then(|| self.builder(sealed))
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let sealed = self.shared.state().waiting.take();
        self.builder(sealed)
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: StoredSnapshot,
    ) -> io::Result<()> {
        // The file first: a node that has purged its log must find it again.
        let read = blocking(|| self.snapshots.adopt(meta, &snapshot).map(|stored| stored.read()));
        let bytes = match read {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.fail(MachineError::new(error))),
            Err(error) => {
                self.fatal.strike(&error.to_string());
                return Err(io::Error::other(error));
            }
        };
        self.load(meta, &bytes).map_err(|error| self.fail(error))
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, StoredSnapshot>>> {
        let newest = self.snapshots.newest();
        Ok(newest.map(|stored| Snapshot { meta: stored.meta().clone(), snapshot: stored }))
    }
}

/// Stores one sealed state.
pub(super) struct Builder {
    sealed: Option<Sealed>,
    snapshots: Arc<Snapshots>,
    shared: Arc<Shared>,
    fatal: Fatal,
}

impl Drop for Builder {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.storing = state.storing.saturating_sub(1);
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = StoredSnapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, StoredSnapshot>> {
        let Some(Sealed { meta, bytes }) = self.sealed.take() else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "nothing has been sealed"));
        };
        let snapshots = Arc::clone(&self.snapshots);
        let stored = tokio::task::spawn_blocking(move || snapshots.write(&meta, &bytes)).await;
        let stored = match stored {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => {
                self.fatal.strike(&error.to_string());
                return Err(io::Error::other(error));
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        Ok(Snapshot { meta: stored.meta().clone(), snapshot: stored })
    }
}
