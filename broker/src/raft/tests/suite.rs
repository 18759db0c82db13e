//! openraft's own conformance tests of log and state machine.

use std::io;
use std::sync::Arc;

use futures::Stream;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{OptionalSend, StorageError};
use tempfile::TempDir;

use super::super::fatal::Fatal;
use super::super::log_store::LogStore;
use super::super::machine::{Adapter, Builder, Shared};
use super::super::snapshots::{Snapshots, StoredSnapshot};
use super::super::wire::TypeConfig;
use super::{Diary, options};

/// The adapter, with a machine that is always sealed when openraft *forces* a snapshot. (The suite
/// forces them anywhere; in operation there is one only where the machine sealed.)
struct AlwaysSealed(Adapter);

impl RaftStateMachine<TypeConfig> for AlwaysSealed {
    type SnapshotData = StoredSnapshot;
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        self.0.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        self.0.apply(entries).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        if force {
            self.0.keep_sealed(Vec::new());
        }
        self.0.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.0.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: StoredSnapshot,
    ) -> io::Result<()> {
        self.0.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, StoredSnapshot>>> {
        self.0.get_current_snapshot().await
    }
}

struct InTemporaryFolders;

impl StoreBuilder<TypeConfig, LogStore, AlwaysSealed, TempDir> for InTemporaryFolders {
    async fn build(&self) -> Result<(TempDir, LogStore, AlwaysSealed), StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().unwrap();
        let (options, _) = options(folder.path());
        let fatal = Fatal::new(options.on_fatal.clone());
        let log = LogStore::open(&options, fatal.clone()).unwrap();
        let snapshots = Snapshots::open(&folder.path().join("snapshots"), &options.cell).unwrap();
        let adapter =
            Adapter::restore(Diary::new(), Arc::new(snapshots), Arc::new(Shared::default()), fatal);
        Ok((folder, log, AlwaysSealed(adapter.unwrap())))
    }
}

#[tokio::test]
async fn log_and_state_machine_pass_openrafts_conformance_suite() {
    Suite::test_all(InTemporaryFolders).await.unwrap();
}
