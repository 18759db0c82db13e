//! Proofs for callers: that a record is in the ledger that the newest checkpoint signs.

use std::sync::Arc;

use sublet_ledger::checkpoint::Checkpoint;
use sublet_ledger::merkle::Hash;
use sublet_ledger::proof::Inclusion;

use crate::cell::Cell;
use crate::error::Error;

/// Records that are hashed while commands wait: a few milliseconds.
const HASHED_AT_ONCE: u64 = 4_096;

impl Cell {
    /// The newest signed checkpoint; nothing before the first seal, or without the cell's key.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        self.journal(|journal| Ok(journal.checkpoint().cloned()))
    }

    /// Under which name the ledger is known: that of the cell's key, else the cell's.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn origin(&self) -> Result<String, Error> {
        self.journal(|journal| Ok(journal.origin().to_owned()))
    }

    /// The proof that record `index` is in the ledger of the newest checkpoint; nothing while it is
    /// not sealed, or without the cell's key.
    ///
    /// # Errors
    /// [`Error::Ledger`] if the system fails, [`Error::Stopped`].
    pub async fn prove_inclusion(&self, index: u64) -> Result<Option<Inclusion>, Error> {
        self.prove(move |journal| journal.prove_inclusion(index)).await
    }

    /// The hashes that lead from the first `old` records to the newest checkpoint, and that
    /// checkpoint; nothing if it is shorter, or without the cell's key.
    ///
    /// # Errors
    /// As [`Cell::prove_inclusion`].
    pub async fn prove_extension(
        &self,
        old: u64,
    ) -> Result<Option<(Vec<Hash>, Checkpoint)>, Error> {
        self.prove(move |journal| journal.prove_extension(old)).await
    }

    /// Hashes what was not hashed since the start, a part at a time, and then proves.
    async fn prove<T: Send + 'static>(
        &self,
        prove: impl FnOnce(&sublet_ledger::Journal) -> Result<T, sublet_ledger::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let cell = Arc::new(self.clone());
        let proven = tokio::task::spawn_blocking(move || {
            while !cell.journal(|journal| journal.prepare_proofs(HASHED_AT_ONCE))? {}
            cell.journal(prove)
        });
        proven.await.map_err(|_| Error::Stopped)?
    }
}
